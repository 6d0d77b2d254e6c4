"""The model that comes with the package is trained, small, allowed, and opens by its name without a network."""

import json
import os
import zlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nearsight
from nearsight.checkpoints.pretrained import list_pretrained
from nearsight.cli.shell import app
from nearsight.shipped import shipped_models, shipped_photos

NAME = "near_nano.clothing"
SHOWN = {"Dress": "dress", "Hat": "hat", "Jacket": "outwear", "Sandals": "shoes"}
WITH_DATA = pytest.mark.skipif(
    not (Path(os.environ.get("NEARSIGHT_DATA", "")) / "clothing.zip").is_file(),
    reason="NEARSIGHT_DATA has no clothing.zip",
)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_it_is_small_and_says_where_it_comes_from() -> None:
    file = shipped_models()[NAME]
    about = json.loads(file.with_suffix(".json").read_text())
    assert len(zlib.compress(file.read_bytes())) <= 2_000_000  # as in the wheel
    assert about["origin"]["licence"] == "CC0-1.0" and about["origin"]["teacher"]["weights"]["licence"] == "apache-2.0"
    assert len(about["trained"]["classes"]) == 10


def test_it_knows_the_photos_beside_it() -> None:
    photos = shipped_photos()
    found = nearsight.predict(NAME, [photos[name] for name in SHOWN])
    assert [prediction.top(1)[0][0] for prediction in found] == list(SHOWN.values())


def test_no_training_starts_from_it_unasked_and_one_that_names_it_does(tmp_path: Path) -> None:
    (listed,) = (one for one in list_pretrained() if one.name == NAME)
    assert listed.path == shipped_models()[NAME] and not listed.automatic
    settings = {"limit": 40, "epochs": 1, "batch": 20, "quiet": True, "cpu": True, "recipe": "fine-tune"}
    outcome = nearsight.train("digits", weights=NAME, out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    begun = json.loads((tmp_path / "run" / "environment.json").read_text())["weights"]
    assert outcome.model == "near_nano" and Path(begun["file"]) == shipped_models()[NAME]


@pytest.mark.parametrize("command", ["predict", "explain", "export"])
def test_commands_take_it_by_name(command: str, tmp_path: Path) -> None:
    photo = [] if command == "export" else [str(shipped_photos()["Hat"])]
    target = ["--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [command, NAME, *photo, *target])
    assert result.exit_code == 0, result.output
    assert any((tmp_path / "out").iterdir())


def test_a_layer_of_it_is_probed_by_name() -> None:
    found = nearsight.probe(f"{NAME}.stages.0.blocks.0")
    with pytest.raises(ValueError, match="did you mean stages"):
        nearsight.probe(f"{NAME}.stage.0")
    assert found.name == f"{NAME}.stages.0.blocks.0" and not found.dynamic


@WITH_DATA
def test_its_recorded_accuracy_comes_out_again() -> None:
    told = json.loads(shipped_models()[NAME].with_suffix(".json").read_text())["origin"]["test"]
    judged = nearsight.evaluate(NAME, Path(os.environ["NEARSIGHT_DATA"]) / "clothing.zip", split="test", device="cpu")
    assert judged.score == pytest.approx(told, abs=1.5 / 372)  # half precision may turn an image
