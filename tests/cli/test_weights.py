"""`nearsight weights`, and what `nearsight train` makes of weights that are at hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from nearsight.checkpoints.pretrained import HOSTS, sha256_of
from nearsight.config.files import load_recipe, read_recipe
from nearsight.runs.run import Run
from nearsight.training.train import choose_start, takes_pretrained
from tests.checkpoints.weight_server import Hub

NAME = "test_vit.r160_in1k"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that `NEARSIGHT_WEIGHTS` names, with the weights of timm's smallest model."""
    place = tmp_path / "weights"
    place.mkdir()
    torch.manual_seed(0)
    save_file(timm.create_model("test_vit").state_dict(), place / f"{NAME}.safetensors")
    monkeypatch.setenv("NEARSIGHT_WEIGHTS", str(place))
    return place


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A training that takes a moment."""
    rng = np.random.default_rng(0)
    labels = np.arange(20) % 2
    images = rng.integers(0, 99, (20, 16, 16, 3)).astype(np.uint8) + 120 * labels[:, None, None, None].astype(np.uint8)
    np.savez(tmp_path / "d.npz", train_images=images, train_labels=labels)
    run = ["--epochs", "1", "--batch", "4", "--workers", "0", "--img-size", "32", "--out", str(tmp_path / "run")]
    return ["train", str(tmp_path / "d.npz"), *run]


def test_the_table_fits_into_80_columns(
    folder: Path, type_in: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "convnextv2_nano.safetensors").write_bytes(b"weights")
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = type_in("weights")
    rows = [line for line in out.splitlines() if "MB" in line]
    assert code == 0 and max(map(len, rows)) <= 80
    assert rows[0].split()[0] == "convnextv2_nano" and "cc-by-nc-4.0" in rows[0] and "only if named" in rows[0]
    assert rows[1].split() == [NAME, "1.5", "MB", "apache-2.0", "folder"]
    assert rows[2].split() == ["near_nano.clothing", "2.0", "MB", "CC0-1.0", "shipped,", "only", "if", "named"]
    assert [row.split()[0] for row in rows[3:]] == [host.name for host in HOSTS]
    assert all(row.rstrip().endswith("to get") for row in rows[3:])
    code, out, _ = type_in("weights", "--json")
    told = {one["name"]: (one["file"], one["automatic"]) for one in json.loads(out)}
    assert told[NAME] == (str(folder / f"{NAME}.safetensors"), True)
    assert told["convnextv2_nano"][1] is False and told["resnet18.a1_in1k"] == (None, False)


def test_weights_are_fetched_ahead(
    folder: Path, tmp_path: Path, type_in: Callable[..., Any], online: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub((folder / f"{NAME}.safetensors").read_bytes())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    with monkeypatch.context() as patched:
        patched.setenv("HF_HUB_OFFLINE", "1")
        code, _, err = type_in("weights", "get", "test_vit", "--folder", str(tmp_path / "new"))
    assert code == 1 and "--offline or HF_HUB_OFFLINE forbids to fetch test_vit.r160_in1k" in err and hub.asked == []
    code, out, _ = type_in("weights", "get", "test_vit", "--folder", str(tmp_path / "new"))
    assert code == 0 and f"Fetched {tmp_path / 'new' / NAME}.safetensors (1.5 MB, licence apache-2.0" in out
    assert "There already" in type_in("weights", "get", "test_vit", "--folder", str(tmp_path / "new"))[1]
    hub.close()
    code, _, err = type_in("weights", "get", "test_resnet")
    assert code == 1 and len(err.splitlines()) == 1 and "test_resnet.r160_in1k can't be downloaded" in err


def test_a_training_starts_from_what_is_at_hand_and_keeps_to_it(
    folder: Path, words: list[str], tmp_path: Path, type_in: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, run = folder / f"{NAME}.safetensors", tmp_path / "run"
    words = [*words, "--recipe", "fine-tune"]
    code, _, err = type_in(*words, "--model", "test_vit")
    said = err.splitlines()[0]
    assert code == 0 and all(part in said for part in (NAME, str(file), "apache-2.0", "--weights none"))
    recipe = read_recipe(run / "recipe.yaml")
    assert (recipe.name, recipe.model.name, recipe.model.weights) == ("fine-tune", "test_vit", str(file))
    noted = json.loads((run / "environment.json").read_text())["weights"]
    assert (noted["name"], noted["licence"], noted["sha256"]) == (NAME, "apache-2.0", sha256_of(file))

    (run / "outcome.json").unlink()
    monkeypatch.delenv("NEARSIGHT_WEIGHTS")
    code, _, err = type_in(*words, "--model", "test_vit")  # goes on from the file that it began with
    assert code == 0 and "scratch" not in err, err
    (run / "outcome.json").unlink()
    file.write_bytes(file.read_bytes() + b" ")
    for again in (["train", "--resume", str(run)], [*words, "--model", "test_vit"]):
        code, _, err = type_in(*again)
        assert code == 1 and f"starts from {file}, whose content has changed since" in err
        assert len(err.splitlines()) == 1, err
    file.unlink()
    code, _, err = type_in("train", "--resume", str(run))
    assert code == 1 and f"starts from {file}, where nothing is" in err


def test_weights_none_trains_from_scratch_without_a_word(
    folder: Path, words: list[str], tmp_path: Path, type_in: Callable[..., Any]
) -> None:
    code, _, err = type_in(*words, "--model", "test_vit", "--weights", "none")
    assert code == 0 and "weights" not in err
    recipe = read_recipe(tmp_path / "run" / "recipe.yaml")
    assert (recipe.name, recipe.model.weights) == ("small-data", None)
    assert "weights" not in json.loads((tmp_path / "run" / "environment.json").read_text())


def start(tmp_path: Path, recipe: str, **changes: Any) -> Any:
    given = load_recipe(recipe, {f"model.{key}": value for key, value in changes.items()})
    return choose_start(given, Run(tmp_path / "run"), offline=True)


def test_how_a_training_starts_follows_from_what_is_at_hand(folder: Path, tmp_path: Path) -> None:
    file = str(folder / f"{NAME}.safetensors")
    for changes, recipe, model, weights, note in (
        ({}, "fine-tune", "test_vit", file, "Starts from"),
        ({"name": "timm/test_vit"}, "fine-tune", "timm/test_vit", file, "Starts from"),
        ({"name": "test_vit", "localize": {"ffn": "localvit"}}, "retrofit", "test_vit", file, "Starts from"),
        ({"name": "test_vit", "patch_size": 8}, "small-data", "test_vit", None, "not with another patch size"),
        ({"name": "deit_tiny"}, "small-data", "deit_tiny", None, "`nearsight weights get deit_tiny_patch16_224.fb"),
        ({"name": "deit_nano"}, "small-data", "deit_nano", None, None),  # nobody has pretrained it
    ):
        found = start(tmp_path, "small-data", **changes)
        assert (found.recipe, found.model, found.weights) == (recipe, model, weights), changes
        assert (note in found.notes[0]) if note else found.notes == (), changes
    assert start(tmp_path, "small-multilabel").weights is None
    for task in ("small-detect", "small-segment"):
        assert (start(tmp_path, task).model, start(tmp_path, task).weights) == ("test_vit", file)
        assert "Starts from" in start(tmp_path, task).notes[0]
    for task in ("small-detect", "small-multilabel"):
        assert start(tmp_path, task, name="test_vit").weights == file
        assert start(tmp_path, task, name="test_vit").recipe == task
    with pytest.raises(ValueError, match="--weights pretrained won't do: there are no pretrained weights of deit_nano"):
        start(tmp_path, "small-data", name="deit_nano", weights="pretrained")


def test_a_recipe_for_training_from_scratch_is_not_given_weights() -> None:
    assert takes_pretrained(load_recipe("small-data"), is_open=True)
    assert takes_pretrained(load_recipe("fine-tune"), is_open=False)
    assert takes_pretrained(load_recipe("deit", {"model.weights": "auto"}), is_open=False)
    assert not takes_pretrained(load_recipe("deit"), is_open=False)
    assert not takes_pretrained(load_recipe("small-data", {"model.weights": "none"}), is_open=True)
    assert not takes_pretrained(load_recipe("small-data", {"model.weights": "file"}), is_open=True)


def test_a_training_downloads_if_it_is_told_to(
    folder: Path,
    words: list[str],
    tmp_path: Path,
    type_in: Callable[..., Any],
    online: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = Hub((folder / f"{NAME}.safetensors").read_bytes())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("NEARSIGHT_WEIGHTS", str(tmp_path / "new"))
    code, _, err = type_in(*words, "--model", "test_vit", "--download", "--offline")
    assert code == 1 and "--offline and --download contradict each other" in err and hub.asked == []
    code, _, err = type_in(*words, "--model", "test_vit", "--download")
    assert code == 0 and f"{NAME} (downloaded: {tmp_path / 'new' / NAME}.safetensors" in err
    hub.close()
