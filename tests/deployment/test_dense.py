"""Bundles of detectors and segmenters: the same boxes, masks and maps as in PyTorch, without PyTorch."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nearsight
from nearsight.data.transforms import DensePreprocessing
from nearsight.heads import (
    CascadeMaskRcnn,
    DenseModel,
    DenseSpec,
    Detr,
    LinearHead,
    MaskRcnn,
    Retina,
    SemanticFpn,
    UperNet,
)
from nearsight.heads.base import DenseHead
from nearsight.heads.graph import nms_keep
from nearsight.heads.rcnn import draw_mask as draw_mask_in_torch
from nearsight.models import MODELS
from nearsight.runs.postprocess import draw_mask, postprocess, suppress, to_prediction
from nearsight.runs.predictor import save_trained
from nearsight.tasks.base import Built
from tests.rounding import assert_rounded

HEADS: dict[str, DenseHead] = {
    "retinanet": Retina(finest=4, levels=3, channels=16, score_threshold=0.001),
    "mask-rcnn": MaskRcnn(finest=4, levels=3, channels=16, hidden=32, candidates=(50, 50), proposals=(50, 50)),
    "cascade-mask-rcnn": CascadeMaskRcnn(
        finest=4, levels=3, channels=16, hidden=32, convs=1, candidates=(50, 50), proposals=(50, 50)
    ),
    "detr": Detr(stride=8, dim=24, heads=2, encoder_layers=1, decoder_layers=1, hidden=32, queries=10),
    "semantic-fpn": SemanticFpn(finest=4, channels=16, hidden=16),
    "upernet": UperNet(finest=4, channels=16, helper_channels=16),
    "linear": LinearHead(),
}
SPREAD = DenseSpec(MODELS["deit_nano"], HEADS["semantic-fpn"], layers=4, detail=8)  # as pretrained transformers are


@cache
def model(name: str) -> DenseModel:
    torch.manual_seed(0)
    spec = SPREAD if name == "spread" else DenseSpec(MODELS["lit_nano"], HEADS[name])
    made = DenseModel(spec, 3).eval().requires_grad_(False)
    with torch.no_grad():  # scores that are far apart, so that rounding decides nothing
        for module in made.head.modules():
            if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
                module.weight *= 3
    return made


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of a model that nobody trained, and two photographs beside it."""
    from sklearn.datasets import load_sample_image

    made = model(request.param)
    (tmp_path / "photos").mkdir()
    for name, part in (("china", 3), ("flower", 5)):
        photo = Image.fromarray(load_sample_image(f"{name}.jpg"))
        photo.resize((photo.width // part, photo.height // part)).save(tmp_path / "photos" / f"{name}.png")
    built = Built(made, "lit_nano", None, DensePreprocessing(64, divisor=made.pyramid.multiple))
    (tmp_path / "run").mkdir()
    save_trained(built, made.task, ("a", "b", "c"), tmp_path / "run" / "model.safetensors", {"threshold": 0.25})
    return tmp_path / "run"


@pytest.mark.parametrize("name", [*HEADS, "spread"])
@pytest.mark.parametrize("size", [(64, 96), (50, 70)])
@torch.no_grad()
def test_what_a_graph_leaves_to_do_ends_in_the_models_own_predictions(name: str, size: tuple[int, int]) -> None:
    made = model(name)
    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
    outputs = {key: value.numpy() for key, value in made.export_outputs(images).items()}
    (found,) = postprocess(outputs, made.postprocessing(), size)
    answer = made(images)
    if isinstance(answer, torch.Tensor):
        np.testing.assert_array_equal(found["logits"], answer[0].numpy())
        return
    wanted = {key: value.numpy() for key, value in answer[0].items()}
    assert len(wanted["scores"]) == len(found["scores"])
    mine, theirs = (to_prediction(one, size, "", size, ("a", "b", "c")) for one in (found, wanted))
    assert mine.agreement(theirs) == 1
    if "masks" in wanted:
        assert (found["masks"] == wanted["masks"]).mean() > 0.999


@pytest.mark.slow  # tests/tasks/test_contract.py does it with one small head for each task
@pytest.mark.parametrize("run", [*HEADS, "spread"], indirect=True)
def test_a_bundle_predicts_as_pytorch_does_without_it(run: Path) -> None:
    photos = run.parent / "photos"
    found = nearsight.export(run, images=photos)
    assert len(found.agreements) == 3 and min(one.top1 for one in found.agreements) > 0.9
    assert json.loads((found.folder / "verify.json").read_text())["sizes"][0]["images"] == 1
    code = (
        "import sys, json, nearsight; found = nearsight.load(sys.argv[1]).predict(sys.argv[2], min_score=0); "
        "print(json.dumps([one.to_dict() for one in found])); assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", code, found.folder, photos]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    theirs = list(nearsight.load(run).predict(photos, min_score=0))
    mine = list(nearsight.load(found.folder).predict(photos, min_score=0))
    assert [one.to_dict() for one in mine] == json.loads(done.stdout)
    assert all(one.agreement(other) > 0.9 for one, other in zip(mine, theirs, strict=True))
    assert nearsight.load(found.folder).threshold == nearsight.load(run).threshold == 0.25


def test_suppression_is_that_of_torchvision() -> None:
    draw = torch.Generator().manual_seed(0)
    corners = 50 * torch.rand(200, 2, generator=draw)
    boxes = torch.cat([corners, corners + 5 + 30 * torch.rand(200, 2, generator=draw)], dim=1)
    scores, labels = torch.rand(200, generator=draw), torch.randint(0, 3, (200,), generator=draw)
    kept = suppress(boxes.numpy(), scores.numpy(), labels.numpy(), 0.5)
    wanted = [nms_keep(boxes[None], (scores * (labels == label))[None], 0.5, 0.0)[0] for label in range(3)]
    assert sorted(kept.tolist()) == torch.where(torch.stack(wanted).any(0))[0].tolist()
    assert (np.diff(scores.numpy()[kept]) <= 0).all()


def test_masks_are_drawn_as_in_pytorch() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        probability = draw.random((28, 28), dtype=np.float32)
        x, y = draw.uniform(-3, 30, 2)
        box = np.array([x, y, x + draw.uniform(0.5, 40), y + draw.uniform(0.5, 40)], dtype=np.float32)
        wanted = torch.zeros(40, 50, dtype=torch.bool)
        draw_mask_in_torch(wanted, torch.from_numpy(probability), box.tolist())
        assert (draw_mask(probability, box, (40, 50)) == wanted.numpy()).mean() > 0.999


def test_a_bundle_of_the_first_version_is_a_classifier(tmp_path: Path) -> None:
    from nearsight.runs.bundle import ABOUT, CLASSES, Bundle, describe, read_bundle, write_json

    (tmp_path / "model.onnx").write_bytes(b"weights")
    bundle = Bundle("onnx", "lit_nano", "trained", ("a", "b"), (32, 32), 0.9, (0, 0, 0), (1, 1, 1), True, True)
    about = describe(bundle, tmp_path)
    for key in ("task", "outputs", "postprocessing", "settings"):
        del about[key]
    write_json(tmp_path / ABOUT, about | {"version": 1})
    found = read_bundle(tmp_path)
    assert found == replace(bundle, task="classify", outputs=("logits",), postprocessing=CLASSES)


def test_a_bundle_of_several_labels_gives_each_its_own_probability(tmp_path: Path) -> None:
    from nearsight.data.transforms import Preprocessing

    torch.manual_seed(0)
    built = Built(nearsight.create_model("deit_nano", num_classes=3).eval(), "deit_nano", None, Preprocessing((32, 32)))
    with torch.no_grad():
        built.model.get_classifier().weight.normal_()
    thresholds = {"thresholds": [0.2, 0.5, 0.8]}
    save_trained(built, "multilabel", ("a", "b", "c"), tmp_path / "model.safetensors", thresholds)
    found = nearsight.export(tmp_path, format="pt2")
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    (mine,), (theirs,) = (nearsight.load(path).predict(image) for path in (found.folder, tmp_path))
    assert_rounded(mine.probabilities, theirs.probabilities, built.model)
    assert mine.thresholds == theirs.thresholds == (0.2, 0.5, 0.8)
