"""Which parameter learns how fast, against timm and torch."""

import math
from typing import Any

import pytest
import timm
import torch
from timm.optim import Lamb, param_groups_layer_decay
from timm.optim import Muon as TimmsMuon
from timm.scheduler import CosineLRScheduler
from torch import nn

from nearsight import create_model, list_models, localize
from nearsight.config.recipe import Optimizer, Schedule
from nearsight.heads import DenseModel, DenseSpec, SemanticFpn
from nearsight.models import MODELS as BACKBONES
from nearsight.training.muon import Muon, fastest_type
from nearsight.training.optim import base_rate, clip_gradients, learning_rate, make_optimizer, parameter_groups
from tests.rounding import assert_rounded

MODELS = ["deit_nano_life", "lightvit_nano", "swin_nano", "iddwnet_nano", "localvit_nano", "tnt_tiny"]
OF_TIMM = ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet18", "convnext_atto", "efficientnet_b0"]


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name) if name in OF_TIMM else create_model(name)


def by_name(groups: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    return {n: (group["lr_scale"], group["weight_decay"]) for group in groups for n in group["names"]}


@pytest.mark.parametrize("name", [*list_models("*_nano*"), "t2t_vit_7", "tnt_tiny", *OF_TIMM])
@pytest.mark.parametrize("decay", [None, 0.7])
def test_every_parameter_is_in_one_group_under_its_name(name: str, decay: float | None) -> None:
    model = on_meta(name)
    groups = parameter_groups(model, Optimizer(layer_decay=decay))
    pairs = [pair for group in groups for pair in zip(group["names"], group["params"], strict=True)]
    assert len(pairs) == len(dict(pairs)) == len(list(model.parameters()))
    assert all(dict(model.named_parameters())[key] is parameter for key, parameter in pairs)


@pytest.mark.parametrize("name", [*MODELS, *OF_TIMM])
@pytest.mark.parametrize("decay", [0.7, 1.0])
def test_rates_and_decays_are_those_of_timm(name: str, decay: float) -> None:
    model = on_meta(name)
    exempt = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    expected = param_groups_layer_decay(model, 0.05, exempt, layer_decay=decay)
    wanted = {id(p): (group["lr_scale"], group["weight_decay"]) for group in expected for p in group["params"]}
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    found = by_name(parameter_groups(model, Optimizer(weight_decay=0.05, layer_decay=decay)))
    assert found == {names[key]: pytest.approx(value) for key, value in wanted.items()}


def test_layers_learn_slower_towards_the_input() -> None:
    found = by_name(parameter_groups(on_meta("deit_nano"), Optimizer(layer_decay=0.5)))
    assert found["head.weight"][0] == 1.0
    rates = [found[f"stages.0.blocks.{block}.ffn.fc1.weight"][0] for block in range(6)]
    assert rates == [0.5 ** (6 - block) for block in range(6)]
    assert found["embed.proj.weight"][0] == 0.5**7


def test_what_is_new_in_a_segmenter_learns_at_the_full_rate_and_its_backbone_slower_towards_the_input() -> None:
    with torch.device("meta"):
        spec = DenseSpec(BACKBONES["deit_tiny"], SemanticFpn(channels=16, hidden=16), layers=4, detail=8)
        model = DenseModel(spec, num_classes=3)
    found = by_name(parameter_groups(model, Optimizer(layer_decay=0.75)))
    inner = "pyramid.backbone."
    assert {rate for name, (rate, _) in found.items() if not name.startswith(inner)} == {1.0}  # head, maps, detail
    rates = [found[f"{inner}stages.0.blocks.{block}.ffn.fc1.weight"][0] for block in range(12)]
    assert rates == pytest.approx([0.75 ** (12 - block) for block in range(12)])
    assert found[f"{inner}embed.proj.weight"][0] == pytest.approx(0.75**13)


def test_what_localize_added_has_a_rate_and_a_clipping_of_its_own() -> None:
    model = localize(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2), ffn="localvit", start=0.1)
    new = set(model.localized.new)
    found = by_name(parameter_groups(model, Optimizer(layer_decay=0.5, localized=3.0)))
    assert {rate for name, (rate, _) in found.items() if name in new} == {3.0}
    assert max(rate for name, (rate, _) in found.items() if name not in new) == 1.0

    def norms(settings: Optimizer) -> tuple[float, float]:
        for name, parameter in model.named_parameters():
            parameter.grad = torch.full_like(parameter, 5.0 if name in new else 2.0)
        total = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        clip_gradients(model, settings, total)
        parts = ([p.grad for name, p in model.named_parameters() if (name in new) == which] for which in (True, False))
        added, kept = (float(nn.utils.get_total_norm(part)) for part in parts)
        return added, kept

    raw = norms(Optimizer())
    assert norms(Optimizer(clip=1.0, localized_clip=0.5)) == pytest.approx((0.5, 1.0), rel=1e-3)
    assert norms(Optimizer(localized_clip=0.5)) == pytest.approx((0.5, raw[1]), rel=1e-3)
    whole = math.hypot(*raw)
    assert norms(Optimizer(clip=1.0)) == pytest.approx((raw[0] / whole, raw[1] / whole), rel=1e-3)


def test_norms_biases_tokens_and_positions_do_not_decay() -> None:
    found = by_name(parameter_groups(on_meta("deit_nano"), Optimizer(weight_decay=0.3)))
    free = {name for name, (_, decay) in found.items() if decay == 0}
    assert {"stages.0.aux_tokens", "stages.0.position.table", "norm.weight", "head.bias"} <= free
    assert found["stages.0.blocks.0.ffn.fc1.weight"][1] == found["embed.proj.weight"][1] == 0.3


@pytest.mark.parametrize("layer_decay", [None, 0.5])
def test_offsets_learn_at_a_hundredth_of_their_layers_rate(layer_decay: float | None) -> None:
    found = by_name(parameter_groups(on_meta("lit_nano"), Optimizer(layer_decay=layer_decay, offsets=0.01)))
    for stage in (1, 2):
        merge = f"stages.{stage}.merge"
        assert found[f"{merge}.offsets.weight"][0] == pytest.approx(0.01 * found[f"{merge}.conv.weight"][0])
        assert found[f"{merge}.offsets.bias"][0] == pytest.approx(0.01 * found[f"{merge}.conv.bias"][0])
        assert found[f"{merge}.offsets.bias"][1] == 0
    slow = [name for name, (scale, _) in found.items() if scale == 0.01 and layer_decay is None]
    assert len(slow) == (4 if layer_decay is None else 0)


def test_only_offsets_are_flat_and_only_if_asked_for() -> None:
    for flat in (False, True):
        groups = parameter_groups(on_meta("lit_nano"), Optimizer(offsets=1.0, offsets_flat=flat))
        named = {name for group in groups if group["flat"] for name in group["names"]}
        assert named == (
            {f"stages.{s}.merge.offsets.{kind}" for s in (1, 2) for kind in ("weight", "bias")} if flat else set()
        )


@pytest.mark.parametrize(("nesterov", "moved"), [(True, 1 + 0.9), (False, 1.0)])
def test_nesterovs_form_of_momentum_is_a_setting(nesterov: bool, moved: float) -> None:
    layer = nn.Linear(1, 1, bias=False)
    optimizer = make_optimizer(
        layer, Optimizer(kind="sgd", lr=1.0, momentum=0.9, nesterov=nesterov, weight_decay=0.0), batch=1
    )
    before = layer.weight.item()
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizer.step()
    assert before - layer.weight.item() == pytest.approx(moved)  # the first step: g, or g + 0.9 g


def test_frozen_parameters_are_left_out() -> None:
    model = on_meta("deit_nano")
    model.embed.requires_grad_(False)
    assert not [name for name in by_name(parameter_groups(model, Optimizer())) if name.startswith("embed")]
    model.requires_grad_(False)
    with pytest.raises(ValueError, match=r"^The model has nothing to train: all of its parameters are frozen\.$"):
        parameter_groups(model, Optimizer())


def test_layer_decay_needs_a_model_that_knows_its_layers() -> None:
    sentence = "Linear does not say which layers it has; set optimizer.layer_decay to null for it."
    with pytest.raises(ValueError, match=sentence):
        parameter_groups(nn.Linear(2, 2), Optimizer(layer_decay=0.7))


def test_the_order_is_the_same_every_time() -> None:
    settings = Optimizer(layer_decay=0.7)
    first, second = (parameter_groups(on_meta("lit_nano"), settings) for _ in range(2))
    assert [group["names"] for group in first] == [group["names"] for group in second]


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (Optimizer(kind="adamw", momentum=0.8, beta2=0.95, eps=1e-7), torch.optim.AdamW),
        (Optimizer(kind="lamb"), Lamb),
        (Optimizer(kind="muon", momentum=0.8, beta2=0.95), Muon),
        (Optimizer(kind="sgd", momentum=0.85), torch.optim.SGD),
    ],
)
def test_the_optimizer_is_the_recipes(settings: Optimizer, kind: type) -> None:
    made = make_optimizer(create_model("lit_nano"), settings, batch=64)
    assert type(made) is kind
    for group in made.param_groups:
        assert group["lr"] == settings.lr * group["lr_scale"]
        if kind is torch.optim.SGD:
            assert group["momentum"] == 0.85 and group["nesterov"]
        else:
            assert group["betas"] == (settings.momentum, settings.beta2)
            assert group["eps"] == settings.eps


@pytest.mark.parametrize("kind", ["adamw", "lamb", "sgd", "muon"])
def test_every_optimizer_learns(kind: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = make_optimizer(model, Optimizer(kind=kind, lr=0.05), batch=8)
    inputs, labels = torch.randn(32, 4), torch.arange(32) % 2
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_adamw_moves_as_torchs_own_does_term_by_term() -> None:
    torch.manual_seed(0)
    settings = Optimizer(kind="adamw", lr=1e-2, weight_decay=0.1)
    model, other = nn.Linear(20, 10), nn.Linear(20, 10)
    other.load_state_dict(model.state_dict())
    made = make_optimizer(model, settings, batch=8)
    assert all(group["fused"] for group in made.param_groups)
    decays = [{"params": [other.weight], "weight_decay": 0.1}, {"params": [other.bias], "weight_decay": 0.0}]
    plain = torch.optim.AdamW(decays, lr=1e-2, betas=(settings.momentum, settings.beta2), eps=settings.eps, fused=False)
    for group in made.param_groups:
        group["lr"] = 1e-2
    for _ in range(5):
        for one, same in zip(model.parameters(), other.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            same.grad = one.grad.clone()
        made.step()
        plain.step()
    for one, same in zip(model.parameters(), other.parameters(), strict=True):
        assert_rounded(one, same, 5 * 4)  # four sums in a step


def test_an_sgd_without_momentum_is_plain() -> None:
    assert not make_optimizer(nn.Linear(2, 2), Optimizer(kind="sgd", momentum=0.0), 1).param_groups[0]["nesterov"]


def test_the_rate_follows_the_batch() -> None:
    settings = Optimizer(lr=5e-4, lr_batch=512)
    assert base_rate(settings, 1024) == 1e-3
    assert base_rate(settings, 64) == pytest.approx(6.25e-5)
    assert base_rate(Optimizer(lr=5e-4), 64) == 5e-4


@pytest.mark.parametrize(("warmup", "warmup_lr", "min_lr"), [(5, 0.001, 0.01), (20, 1e-4, 1e-3), (0, 0.5, 0.0)])
def test_the_cosine_is_that_of_timm(warmup: int, warmup_lr: float, min_lr: float) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=2.0)
    reference = CosineLRScheduler(
        optimizer, t_initial=60, lr_min=2 * min_lr, warmup_t=warmup, warmup_lr_init=2 * warmup_lr
    )
    schedule = Schedule(warmup_epochs=warmup, warmup_lr=warmup_lr, min_lr=min_lr)
    for epoch in range(61):
        reference.step(epoch)
        assert 2 * learning_rate(schedule, 60, epoch) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)


@pytest.mark.parametrize("epochs", [200, 10])
def test_steps_are_those_of_torch(epochs: int) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    milestones = [round(fraction * epochs) for fraction in (0.3, 0.6, 0.8)]
    reference = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.2)
    schedule = Schedule(kind="step", milestones=(0.3, 0.6, 0.8), gamma=0.2, min_lr=0.0)
    for epoch in range(epochs):
        assert learning_rate(schedule, epochs, epoch) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()


def test_steps_end_at_the_smallest_rate() -> None:
    schedule = Schedule(kind="step", milestones=(0.3, 0.6), gamma=0.1, min_lr=0.05)
    assert [learning_rate(schedule, 10, epoch) for epoch in (0, 3, 6)] == [1.0, 0.1, 0.05]


def test_a_polynomial_is_that_of_torch() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    peer = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=20, power=0.9)
    for epoch in range(20):
        found = learning_rate(Schedule(kind="poly", power=0.9, min_lr=0.0), 20, epoch)
        assert found == pytest.approx(peer.get_last_lr()[0])
        optimizer.step()
        peer.step()


def test_a_constant_rate_is_warmed_up_and_stays() -> None:
    schedule = Schedule(kind="constant", warmup_epochs=2, warmup_lr=0.0)
    assert [learning_rate(schedule, 10, epoch) for epoch in (0, 0.5, 1, 2, 9.9)] == [0, 0.25, 0.5, 1, 1]


def test_the_rate_moves_within_an_epoch_and_never_goes_up_again() -> None:
    schedule = Schedule(min_lr=0.0)
    rates = [learning_rate(schedule, 3, step / 10) for step in range(31)]
    assert rates == sorted(rates, reverse=True)
    assert rates[5] == pytest.approx((1 + math.cos(math.pi / 6)) / 2)
    assert learning_rate(schedule, 3, 3.5) == rates[-1] == 0


def test_muon_moves_inner_matrices_and_leaves_the_rest_to_adamw() -> None:
    groups = parameter_groups(create_model("localvit_nano"), Optimizer(kind="muon", fallback=0.5))
    turned = {name for group in groups for name in group["names"] if not group["use_fallback"]}
    kinds = {name.removeprefix("stages.0.blocks.").partition(".")[2] for name in turned}
    assert kinds == {
        *("mixer.qkv.proj.weight", "mixer.proj.weight", "ffn.expand.weight", "ffn.project.weight"),
        *("ffn.gate.reduce.weight", "ffn.gate.expand.weight"),
    }
    assert {(group["use_fallback"], group["lr_scale"]) for group in groups} == {(True, 0.5), (False, 1.0)}
    assert {group["weight_decay"] for group in groups if not group["use_fallback"]} == {0.05}


@pytest.mark.skipif(fastest_type(torch.device("cpu")) is not torch.bfloat16, reason="timm's is in bfloat16")
def test_muon_goes_where_timms_goes() -> None:
    def train(kind: Any, **more: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5, bias=False))
        groups = [{"params": list(model.parameters()), "weight_decay": 0.1, "use_fallback": False}]
        optimizer = kind(groups, lr=0.01, **more)
        images, labels = torch.randn(16, 3, 8, 8), torch.arange(16) % 5
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    torch.testing.assert_close(train(Muon), train(TimmsMuon, nesterov=True))


def test_a_step_of_muon_is_near_the_orthogonal_factor_also_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", dict, raising=False)  # no instructions for bfloat16
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(6, 4, 3, 3))
    weight.grad = torch.randn_like(weight)
    left, _, right = torch.linalg.svd(weight.grad.flatten(1), full_matrices=False)
    Muon([{"params": [weight], "use_fallback": False}], lr=0.5).step()
    step = -weight.detach().flatten(1) / (0.5 * 0.2 * 36**0.5)  # the scale of Liu et al. (2025), eq. 4
    assert torch.cosine_similarity(step.flatten(), (left @ right).flatten(), dim=0) > 0.98
    values = torch.linalg.svdvals(step)
    assert values.min() > 0.6 and values.max() < 1.3


def test_what_muon_leaves_to_adamw_moves_as_torchs_moves_it() -> None:
    first, second = (nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    muon = Muon([{"params": [first], "weight_decay": 0.1, "use_fallback": True}], lr=0.01, betas=(0.8, 0.9))
    adamw = torch.optim.AdamW([second], lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)
    for optimizer, parameter in ((muon, first), (adamw, second)):
        for _ in range(5):
            optimizer.zero_grad()
            parameter.exp().sum().backward()
            optimizer.step()
    torch.testing.assert_close(first, second)
