"""A part that the library has never heard of is trained, explained, exported, resized, folded, counted and reopened."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nearsight
from nearsight.config.recipe import Optimizer
from nearsight.explanation import attention, rollout
from nearsight.lattice import Grid, lattice, resize_plane
from nearsight.models.counting import count_macs
from nearsight.models.spec import from_json, to_json
from nearsight.ops.attention_matrix import AttentionMatrix
from nearsight.ops.execution import report_macs
from nearsight.parts import register
from nearsight.parts.branches import ParallelBranch
from nearsight.parts.layers import TokenBatchNorm, fold_norm
from nearsight.parts.ranges import Ratio, Side
from nearsight.parts.slots import REGISTERED, Ffn, GridSource, Mixer, Qkv, Resizing, Site, TokenModule
from nearsight.training.optim import make_optimizer, parameter_groups
from tests.rounding import assert_rounded


@register
@dataclass(frozen=True)
class Cross(Mixer):
    """Each token hears the mean of its row and the mean of its column, each `strength` / 2, and a learned table.

    Attributes:
        strength: Of what it hears.
    """

    patches_only: ClassVar[bool] = True

    strength: Ratio = 1.0

    @property
    def label(self) -> str:
        return f"Cross {self.strength:g}"

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        return CrossModule(site, self.strength)

    def branch(self, site: Site, qkv: Qkv, keeper: GridSource) -> ParallelBranch:
        return ParallelBranch(self.build(site, qkv), site.dim, keeper, carries_aux=False)


class CrossMatrix(AttentionMatrix):
    """Rows `[B, 1, q, N]` with a cross of weights around the query."""

    def __init__(self, grid: Grid, images: int, strength: float):
        self.grid, self.images, self.heads, self.strength = grid, images, 1, strength

    def compact(self, queries: Tensor) -> tuple[Tensor, None]:
        every = torch.arange(self.grid.patches)
        row = (queries[:, None] // self.grid.width == every // self.grid.width) / self.grid.width
        column = (queries[:, None] % self.grid.width == every % self.grid.width) / self.grid.height
        return (self.strength * (row + column) / 2).expand(self.images, 1, -1, -1), None


class CrossModule(TokenModule):
    """`cross(norm(value(x))) + table`."""

    undecayed = ("table",)

    def __init__(self, site: Site, strength: float):
        super().__init__()
        self.strength = strength
        self.value = nn.Linear(site.dim, site.dim)
        self.norm: nn.Module = TokenBatchNorm(site.dim)
        self.table = nn.Parameter(torch.zeros(site.grid.height, site.grid.width, site.dim))

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        values = lattice(self.norm(self.value(tokens)), grid)
        report_macs(2 * values.numel())
        heard = (values.mean(dim=2, keepdim=True) + values.mean(dim=1, keepdim=True)) * self.strength / 2
        table = self.table.permute(2, 0, 1)[None]
        table = F.interpolate(table, size=(grid.height, grid.width), mode="bilinear").permute(0, 2, 3, 1)
        return (heard + table).flatten(1, 2)

    def attention_matrix(self, tokens: Tensor, grid: Grid) -> AttentionMatrix:
        return CrossMatrix(grid, len(tokens), self.strength)

    def resizing(self, old: Any) -> Resizing:
        return {"table": lambda table: resize_plane(table, tuple(self.table.shape[:2]), "bilinear")}

    def fold_in_place(self) -> None:
        self.norm = fold_norm(self.norm, behind=self.value)


@register
@dataclass(frozen=True)
class Gated(Ffn):
    """`out(a(x) * sigmoid(b(x)))`.

    Attributes:
        ratio: Hidden width.
        groups: Heads of the last layer.
    """

    ratio: Ratio = 2.0
    groups: Side = 1

    def build(self, site: Site) -> TokenModule:
        return GatedModule(site.dim, int(site.dim * self.ratio))


class GatedModule(TokenModule):
    slow = ("gate",)

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.token_width = hidden
        self.inside, self.gate, self.out = nn.Linear(dim, hidden), nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        return self.out(self.inside(tokens) * self.gate(tokens).sigmoid())


def own_model(**options: Any) -> Any:
    torch.manual_seed(0)
    given: dict[str, Any] = {"mixer": Cross(), "ffn": Gated(), "num_classes": 3, "drop_path_rate": 0.0}
    return nearsight.create_model("swin_nano", **given | options)


@pytest.fixture(scope="module")
def trained() -> Any:
    """A model that has learned to tell three patterns apart."""
    model = own_model().train()
    optimizer = make_optimizer(model, Optimizer(lr=2e-3, lr_batch=None, weight_decay=0.01), batch=12)
    labels = torch.arange(12) % 3
    waves = torch.stack([torch.sin(torch.arange(32) * (k + 1) / 3) for k in range(3)])
    losses = []
    for _ in range(6):
        images = waves[labels][:, None, None].expand(-1, 3, 32, -1) + 0.05 * torch.randn(12, 3, 32, 32)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    return model.eval()


def test_its_parameters_learn_as_it_says() -> None:
    groups = parameter_groups(own_model(), Optimizer(weight_decay=0.05, offsets=0.25))
    held = {name: (group["lr_scale"], group["weight_decay"]) for group in groups for name in group["names"]}
    assert held["stages.0.blocks.0.mixer.table"] == (1.0, 0.0)
    assert held["stages.0.blocks.0.mixer.value.weight"] == (1.0, 0.05)
    assert held["stages.0.blocks.0.ffn.gate.weight"] == (0.25, 0.05)


def test_it_is_explained(trained: Any) -> None:
    images = torch.randn(2, 3, 32, 48)
    seen = attention(trained, images, layer="1.1", at=(5, 3)).maps().values[0, 0]  # patches of 2: row 1, column 2
    expected = np.zeros((16, 24), dtype=np.float32)
    expected[1] += 1 / 48
    expected[:, 2] += 1 / 32
    assert_rounded(seen, expected, sums=80)  # tokens of a row and a column
    flow = rollout(trained, images).values
    assert flow.shape[0] == 2 and np.isfinite(flow).all() and flow.max() > flow.min()


def test_it_is_exported(trained: Any) -> None:
    program = torch.export.export(trained, (torch.randn(2, 3, 32, 32),), dynamic_shapes=({0: torch.export.Dim("n")},))
    images = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(images), trained(images))


def test_it_is_resized(trained: Any) -> None:
    images = torch.randn(1, 3, 48, 64)
    model = own_model(img_size=32)
    model.load_state_dict(trained.state_dict())
    model.eval().set_input_size((48, 64))
    assert model.stages[0].blocks[0].mixer.table.shape == (24, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(images), trained(images))  # its table is interpolated either way


def test_it_is_folded(trained: Any) -> None:
    folded = nearsight.fold(trained)
    assert isinstance(folded.stages[0].blocks[0].mixer.norm, nn.Identity)
    images = torch.randn(2, 3, 40, 32)
    with torch.no_grad():
        assert_rounded(folded(images), trained(images), trained)


def test_it_is_counted() -> None:
    module = Cross().build(Site(8, Grid(4, 6)), None)  # type: ignore[arg-type]
    assert count_macs(module, torch.randn(1, 24, 8), Grid(4, 6)) == 24 * 8 * 8 + 2 * 24 * 8


def test_it_is_saved_and_reopened(trained: Any, tmp_path: Path) -> None:
    file = nearsight.save(trained, tmp_path / "own.safetensors")
    images = torch.randn(2, 3, 32, 32)
    again = nearsight.create_model(weights=file)
    with torch.no_grad():
        assert torch.equal(again(images), trained(images))
        larger = nearsight.create_model(weights=file, img_size=48)
        assert larger.stages[0].blocks[0].mixer.table.shape == (24, 24, 32)


def test_a_file_cannot_bring_a_part_along(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = nearsight.save(trained, tmp_path / "own.safetensors")
    monkeypatch.delitem(REGISTERED, "Cross")
    with pytest.raises(ValueError, match="names the type 'Cross', which Nearsight does not have; if it is a part of"):
        nearsight.create_model(weights=file)
    with pytest.raises(TypeError, match=r"Cross is not registered.*nearsight\.parts\.register"):
        nearsight.save(trained, tmp_path / "other.safetensors")


def test_its_ranges_are_checked_from_python_and_from_json() -> None:
    for strength in (0, -1.0, float("nan"), "x"):
        with pytest.raises(ValueError, match="does not suit Cross, which takes float above 0 up to 64 there"):
            own_model(strength=strength)
    spec = own_model().spec
    wrong = replace(spec, stages=(replace(spec.stages[0], ffn=Gated(groups=0)), *spec.stages[1:]))
    with pytest.raises(ValueError, match="groups=0 does not suit Gated, which takes int from 1 to 255 there"):
        from_json(to_json(wrong)).check()


def test_it_joins_a_pretrained_model_without_changing_it() -> None:
    host = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=3).eval()
    local = nearsight.localize(host, mixer=Cross(), layers=[1])
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(local(images), host(images))
    F.cross_entropy(local.train()(images), torch.arange(4) % 3).backward()
    assert local.blocks[0].attn.near.fade.grad.any()
    with pytest.raises(ValueError, match="Gated is no part that localize"):
        nearsight.localize(host, ffn=Gated())


def test_it_takes_the_place_of_another(trained: Any) -> None:
    plain = nearsight.create_model("swin_nano", num_classes=3)
    changed = nearsight.localize(plain, mixer=Cross(), ffn=Gated(), preserve=False)
    assert [type(block.mixer) for block in changed.stages[0].blocks] == [CrossModule, CrossModule]
    assert changed.spec.stages[0].mixer.label == "Cross 1" and changed.spec.stages[0].ffn.label == "Gated"


def test_what_is_no_part_is_not_registered() -> None:
    class Loose(Ffn):
        pass

    @dataclass(frozen=True)
    class Foreign:
        size: int = 1

    with pytest.raises(TypeError, match="Loose is no frozen dataclass"):
        register(Loose)
    with pytest.raises(TypeError, match="Foreign fills no slot; a part is a subclass of Embed, Qkv, Mixer"):
        register(Foreign)
    with pytest.raises(ValueError, match=r"nearsight\.parts\.feedforward has a part Mlp already"):
        register(dataclass(frozen=True)(type("Mlp", (Ffn,), {"__module__": __name__})))
