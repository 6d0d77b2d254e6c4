"""Models for others: through a folder and a hub on loopback, opened by Nearsight and by timm to the last bit."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file

import nearsight
from nearsight.checkpoints.hub import parse_repository
from nearsight.checkpoints.pretrained import identify
from nearsight.config.recipe import ModelChoice
from nearsight.console import percent
from nearsight.data.transforms import DensePreprocessing
from nearsight.heads import DenseModel, DenseSpec, SemanticFpn
from nearsight.interval import wilson
from nearsight.models import MODELS
from nearsight.runs.predictor import save_trained
from nearsight.runs.run import Outcome
from nearsight.sharing import results, score_interval, without_folders
from nearsight.tasks.base import Built
from nearsight.tasks.build import build

sys.path.insert(0, str(Path(__file__).parent))

from hub_server import ModelHub

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def trained(folder: Path, choice: ModelChoice) -> Path:
    torch.manual_seed(0)
    folder.mkdir()
    save_trained(build(choice, 3), "classify", ("ant", "bee", "cow"), folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on digits, with everything that a card is made from."""
    folder = tmp_path_factory.mktemp("shared") / "run"
    nearsight.train("digits", model="localvit_nano", epochs=1, limit=64, out=folder, quiet=True, weights="none")
    return folder


@pytest.mark.parametrize(
    "choice",
    [
        ModelChoice(name="localvit_nano"),
        ModelChoice(name="deit_nano", options={"qkv": "life", "ffn": "localvit"}, img_size=32, patch_size=8),
        ModelChoice(name="timm/test_resnet"),
    ],
    ids=["ours", "mixed", "timm"],
)
def test_timm_and_nearsight_open_a_shared_folder_to_the_last_bit(choice: ModelChoice, tmp_path: Path) -> None:
    source = nearsight.load(trained(tmp_path / "run", choice))
    shared = nearsight.push(source, folder=tmp_path / "shared", licence="mit")
    assert shared.timm and shared.url is None
    theirs = timm.create_model(f"local-dir:{tmp_path / 'shared'}", pretrained=True).eval()
    again = nearsight.load(tmp_path / "shared" / "model.safetensors")
    with torch.no_grad():
        wanted = source.model(IMAGES)
        assert torch.equal(theirs(IMAGES), wanted) and torch.equal(again.model(IMAGES), wanted)
    assert again.classes == source.classes and again.preprocessing == source.preprocessing
    shown = timm.data.resolve_model_data_config(theirs)
    assert tuple(shown["input_size"][1:]) == source.preprocessing.size
    assert tuple(shown["mean"]) == source.preprocessing.mean


def test_what_timm_does_not_know_is_shared_for_nearsight_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = DenseModel(DenseSpec(MODELS["lit_nano"], SemanticFpn(finest=4, channels=16, hidden=16)), 3).eval()
    built = Built(made, "lit_nano", None, DensePreprocessing(64, divisor=made.pyramid.multiple))
    (tmp_path / "run").mkdir()
    save_trained(built, "segment", ("sky", "road", "car"), tmp_path / "run" / "model.safetensors")
    shared = nearsight.push(tmp_path / "run", folder=tmp_path / "shared", licence="mit")
    assert not shared.timm and "config.json" not in shared.files
    assert nearsight.load(tmp_path / "shared" / "model.safetensors").task == "segment"
    assert "image-segmentation" in (tmp_path / "shared" / "README.md").read_text()


def test_a_card_says_what_the_run_knows_and_no_folder_of_the_machine(run: Path, tmp_path: Path) -> None:
    nearsight.push(run, folder=tmp_path / "shared", licence="cc0-1.0")
    text = (tmp_path / "shared" / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    about = yaml.safe_load(head)
    assert (about["license"], about["pipeline_tag"], about["library_name"]) == (
        "cc0-1.0",
        "image-classification",
        "timm",
    )
    outcome = json.loads((run / "outcome.json").read_text())
    assert f"accuracy on the test images | {100 * outcome['test_score']:.1f} % (95 % interval" in body
    assert "| began | from scratch |" in body and "| source | `digits` |" in body
    assert "| validation images | 143, drawn from the training images |" in body and "| test images | 359 |" in body
    assert f"| weights | {(run / 'model.safetensors').stat().st_size / 1e6:.1f} MB |" in body
    assert str(run.parent) not in text and str(tmp_path) not in text


def test_a_card_of_a_run_without_test_images_has_the_interval_of_its_validation_images(tmp_path: Path) -> None:
    file = tmp_path / "predictions.npz"
    np.savez(file, split="val", scores=np.arange(50) < 40)
    outcome = Outcome("near_nano", 1, 1, 1, 1, "classify", "accuracy", 0.8, None, None, 1.0, False, {})
    low, high = (percent(value) for value in wilson(40, 50)[1:])
    (row,) = results(outcome, file)
    assert row[0].startswith("accuracy on the validation") and row[1] == f"80.0 % (95 % interval {low} to {high})"


def test_a_weight_file_alone_is_shared_with_what_is_not_known(tmp_path: Path) -> None:
    source = trained(tmp_path / "run", ModelChoice(name="localvit_nano"))
    nearsight.push(source, folder=tmp_path / "shared", licence="mit")
    assert "was not recorded beside these weights" in (tmp_path / "shared" / "README.md").read_text()


def test_a_card_names_the_pretrained_weights_behind_a_run_that_went_on_from_another(run: Path, tmp_path: Path) -> None:
    """As the stages of `--budget` do: the frozen features of pretrained weights, then fine-tuning from there."""
    frozen, tuned = tmp_path / "frozen", tmp_path / "tuned"
    for folder in (frozen, tuned):
        shutil.copytree(run, folder)
    about = json.loads((run / "environment.json").read_text())
    weights = {"name": "test_vit.r160_in1k", "licence": "cc-by-nc-4.0", "file": "/home/x/vit", "sha256": 64 * "a"}
    (frozen / "environment.json").write_text(json.dumps(about | {"weights": weights}))
    (tuned / "environment.json").write_text(json.dumps(about | {"weights": identify(frozen / "model.safetensors")}))
    shutil.rmtree(frozen)  # what a run needs to know of the one before it, it wrote down
    nearsight.push(tuned, folder=tmp_path / "shared", licence="cc-by-nc-4.0")
    text = (tmp_path / "shared" / "README.md").read_text()
    assert "test_vit.r160_in1k (licence cc-by-nc-4.0, which may forbid commercial use; SHA-256 aaaa" in text
    assert "/home" not in text


def test_the_interval_of_a_card_is_wilsons_of_the_test_predictions(tmp_path: Path) -> None:
    file = tmp_path / "predictions.npz"
    np.savez(file, split="test", scores=np.arange(50) < 40)
    found = score_interval(file, "test")
    assert found is not None
    z = 1.959963984540054  # where (0.8 - p)^2 = z^2 p (1 - p) / 50
    ends = np.sort(np.roots([1 + z**2 / 50, -1.6 - z**2 / 50, 0.64]))
    np.testing.assert_allclose(found, (0.8, *ends), atol=1e-6)
    assert score_interval(file, "val") is None


SCRIPT = """
import json, sys
import torch, timm, nearsight
run, name, file = sys.argv[1:]
shared = nearsight.push(run, name, licence="apache-2.0")
opened = nearsight.load(f"hf:{name}")
theirs = timm.create_model(f"hf-hub:{name}", pretrained=True).eval()
images = torch.load(file, weights_only=True)
with torch.no_grad():
    same = [torch.equal(model(images), nearsight.load(run).model(images)) for model in (opened.model, theirs)]
print(json.dumps({"same": same, "classes": opened.classes, "task": opened.task, "shared": shared.to_dict()}))
"""


@pytest.fixture
def hub() -> Iterator[ModelHub]:
    server = ModelHub()
    yield server
    server.close()


def with_hub(hub: ModelHub, tmp_path: Path, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """A Python whose hub is the one on loopback."""
    variables = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": hub.token}
    variables |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", **changes}
    return subprocess.run([sys.executable, *words], env=variables, capture_output=True, text=True, check=False)


def test_a_run_goes_to_the_hub_and_comes_back_to_the_last_bit(run: Path, hub: ModelHub, tmp_path: Path) -> None:
    torch.save(IMAGES, tmp_path / "images.pt")
    done = with_hub(hub, tmp_path, "-c", SCRIPT, str(run), "anna/digits", str(tmp_path / "images.pt"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["same"] == [True, True] and found["task"] == "classify" and len(found["classes"]) == 10
    assert set(hub.files["anna/digits"]) == {"README.md", "config.json", "model.json", "model.safetensors"}
    assert hub.private["anna/digits"] and found["shared"]["repository"] == "anna/digits"
    (tmp_path / "back.safetensors").write_bytes(hub.files["anna/digits"]["model.safetensors"])
    mine, theirs = load_file(run / "model.safetensors"), load_file(tmp_path / "back.safetensors")
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.slow
def test_what_the_hub_refuses_gets_a_sentence(run: Path, hub: ModelHub, tmp_path: Path) -> None:
    words = ("-m", "nearsight", "push", str(run), "anna/digits", "--licence", "mit")
    done = with_hub(hub, tmp_path, *words, HF_TOKEN="hf_wrong")
    assert done.returncode == 1 and "does not let you write to anna/digits (HTTP 401)" in done.stderr
    done = with_hub(hub, tmp_path, "-m", "nearsight", "predict", "hf:anna/nothing", str(tmp_path))
    assert done.returncode == 1 and "The hub has no model anna/nothing" in done.stderr
    done = with_hub(hub, tmp_path, *words, HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and "HF_HUB_OFFLINE forbids to upload" in done.stderr
    done = with_hub(hub, tmp_path, *words, "--offline")
    assert done.returncode == 1 and "--offline or HF_HUB_OFFLINE forbids to upload" in done.stderr
    done = with_hub(hub, tmp_path, *words[:-2])
    assert done.returncode == 1 and "need a licence" in done.stderr
    assert hub.files == {}


def test_bad_targets_get_a_sentence(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        nearsight.push(run, folder=tmp_path, licence="mit")
    with pytest.raises(ValueError, match="folder of the model itself"):
        nearsight.push(run, folder=run, licence="mit")
    with pytest.raises(ValueError, match="Nothing says where to"):
        nearsight.push(run, licence="mit")
    for name in ("flowers", "a/b/c", "hf:", "a/b@v 1"):
        with pytest.raises(ValueError, match="names no repository"):
            parse_repository(name)


def test_commands_are_shown_without_folders() -> None:
    command = "nearsight train '/home/anna/my flowers' --out=/tmp/x --set model.name=deit_nano"
    assert without_folders(command) == "nearsight train 'my flowers' --out=x --set model.name=deit_nano"


def test_transformers_opens_a_shared_folder_to_the_last_bit(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = trained(tmp_path / "run", ModelChoice(name="localvit_nano"))
    nearsight.push(folder, folder=tmp_path / "shared", licence="apache-2.0")
    theirs = transformers.TimmWrapperForImageClassification.from_pretrained(tmp_path / "shared").eval()
    with torch.inference_mode():
        assert torch.equal(theirs(IMAGES).logits, nearsight.load(folder).model(IMAGES))
    assert theirs.config.id2label == {0: "ant", 1: "bee", 2: "cow"}
