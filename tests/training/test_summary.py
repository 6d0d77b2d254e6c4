"""The page and the picture of a finished run say what its records say."""

import json
import math
from pathlib import Path

import pytest

from nearsight.config.files import load_recipe
from nearsight.plots.style import to_png
from nearsight.runs.run import Outcome, Run
from nearsight.training.summary import draw_curves, write_summary


def made_up_records(epochs: int) -> list[dict]:
    """The records of a run of three steps in an epoch, best in the middle."""
    records: list[dict] = []
    for epoch in range(epochs):
        for step in range(3 * epoch + 1, 3 * epoch + 4):
            records.append({"kind": "step", "epoch": epoch, "step": step, "loss": 2 / step, "lr": 1e-3 / step})
        figures = {"loss": 1 / (epoch + 1), "val_loss": 1.1 / (epoch + 1), "lr": 1e-3 / (epoch + 1)}
        accuracy = 0.9 - 0.5 * abs(epoch + 1 - math.ceil(epochs / 2)) / epochs
        records.append(
            {
                "kind": "epoch",
                "epoch": epoch + 1,
                "step": step,
                "val_accuracy": accuracy,
                "val_score": accuracy,
                **figures,
            }
        )
    return records


def made_up_run(folder: Path, **outcome: object) -> Path:
    run = Run(folder)
    recipe = load_recipe("small-data", {"model.name": "localvit_nano", "model.img_size": 32, "epochs": 5, "batch": 64})
    splits = {"train": {"count": 12_345}, "val": {"count": 143, "names": ["a"]}, "test": {"count": 359}}
    run.begin(recipe, {"source": "my photos", "kind": "folder", "classes": ["cat", "a|b"], "splits": splits})
    for record in made_up_records(5):
        run.record(record)
    values = {
        "test_score": 0.876,
        "test": {"accuracy": 0.876},
        "stopped_early": False,
        "bad_images": {"cat/9.jpg": "the file is cut off"},
    }
    known = {"model": "localvit_nano", "parameters": 731_074, "epoch": 3, "epochs": 5, "steps": 15}
    run.finish(Outcome(**known, task="classify", metric="accuracy", val_score=0.9, elapsed=425.0, **(values | outcome)))
    return folder


def test_page_starts_with_the_result(tmp_path) -> None:
    write_summary(made_up_run(tmp_path / "my run"))
    text = (tmp_path / "my run" / "summary.md").read_text(encoding="utf-8")
    title, _, result = text.splitlines()[:3]
    assert title == "# localvit_nano on my photos"
    assert result == (
        "**87.6 %** of the test images are classified correctly (90.0 % on the validation images), after epoch 3 of 5, "
        "the best on the validation images."
    )
    for line in (
        "| classes | 2: cat, a\\|b |",
        "| training images | 12,345 |",
        "| validation images | 143, set aside from the training images (seed 0) |",
        "| unreadable images | 1 passed over, such as `cat/9.jpg` |",
        "| parameters | 0.73 million |",
        "| training and validation | 7 min 05 s for 15 steps |",
    ):
        assert line in text.splitlines()
    assert f"nearsight eval '{tmp_path / 'my run'}'" in text
    assert f"nearsight predict '{tmp_path / 'my run'}' image.jpg" in text
    assert "`curves.png`" in text and "model.safetensors" not in text  # only files that are there


def test_without_test_images_the_page_says_how_the_epoch_was_chosen(tmp_path) -> None:
    write_summary(made_up_run(tmp_path, test_score=None, stopped_early=True))
    result = (tmp_path / "summary.md").read_text(encoding="utf-8").splitlines()[2]
    assert result.startswith("**90.0 %** of the validation images are classified correctly, after epoch 3 of 5")
    assert "Training stopped before the 5 epochs planned" in result
    assert result.endswith("expect slightly less on new ones.")


def test_unfinished_run_is_refused(tmp_path) -> None:
    made_up_run(tmp_path)
    (tmp_path / "outcome.json").unlink()
    with pytest.raises(ValueError, match=f"{tmp_path} is not finished; go on with `nearsight train --resume"):
        write_summary(tmp_path)


@pytest.mark.parametrize("epochs", [1, 2, 300])
def test_curves_show_every_epoch_and_the_best(epochs: int) -> None:
    records, best = made_up_records(epochs), math.ceil(epochs / 2)
    picture = draw_curves(records, best, "accuracy")
    loss, accuracy, rate = picture.axes
    ends = [record for record in records if record["kind"] == "epoch"]
    each, training, validation = loss.get_lines()
    assert training.get_ydata().tolist() == [record["loss"] for record in ends]
    assert validation.get_ydata().tolist() == [record["val_loss"] for record in ends]
    assert each.get_xdata()[-1] == epochs and len(each.get_xdata()) == 3 * epochs
    curve, mark = accuracy.get_lines()
    assert mark.get_xdata()[0] == best and mark.get_ydata()[0] == max(curve.get_ydata())
    assert rate.get_lines()[0].get_ydata()[0] == 1e-3
    assert to_png(picture).startswith(b"\x89PNG")


def test_records_without_steps_still_give_a_learning_rate() -> None:
    records = [record for record in made_up_records(4) if record["kind"] == "epoch"]
    assert len(draw_curves(records, 2, "accuracy").axes[2].get_lines()[0].get_ydata()) == 4


def test_outcome_and_page_agree_with_json(tmp_path) -> None:
    write_summary(made_up_run(tmp_path))
    settings = json.loads((tmp_path / "environment.json").read_text())
    assert settings["versions"]["torch"] in (tmp_path / "summary.md").read_text(encoding="utf-8")
