"""What views, averages and calibration bring, and whether promised error rates are kept.

    python benchmarks/better_predictions.py coverage clothing.zip --out benchmarks/results/better_predictions.json
    python benchmarks/better_predictions.py gains RUN[,RUN] --out benchmarks/results/better_predictions.json

`coverage` divides the images anew at random many times (70 % training, 15 % calibration, 15 % test), fits a logistic
regression to frozen features of pretrained weights, calibrates it as `nearsight calibrate` does, and counts how often
the true class is missing among the possible ones. `gains` evaluates a run with views and averaged with others, and a
calibrated copy of it.
"""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nearsight
from nearsight.atomic import write_whole
from nearsight.checkpoints.pretrained import find_pretrained
from nearsight.config.recipe import ModelChoice
from nearsight.data import open_data
from nearsight.data.check import check_surveyed
from nearsight.features import decorrelate, fit_head, pick, regress
from nearsight.label_issues import features_of
from nearsight.tasks import get_task
from nearsight.tasks.build import build
from nearsight.tasks.classification_metrics import measure
from nearsight.tasks.predictions import temper

PARTS = (0.7, 0.85)  # of the images: up to here training, from there on test


def coverage(source: str, times: int) -> dict[str, Any]:
    """Divide, fit, calibrate and count, so many times."""
    data = open_data(source)
    weights = find_pretrained(None)
    assert weights is not None, "coverage needs pretrained weights at hand"
    built = build(ModelChoice(name=weights.model, weights=str(weights.path)), len(data.classes))
    _, survey = check_surveyed(data, None, 0)
    entries, values = features_of(data, survey, built, 0, torch.device("cpu"))
    splits = data.splits()
    labels = np.array([int(splits[name].labels[index]) for name, index in entries])
    rows: list[dict[str, float]] = []
    strength, pooling = None, None
    for seed in range(times):
        order = np.random.default_rng(seed).permutation(len(labels))
        learn, held, test = np.split(order, [round(part * len(order)) for part in PARTS])
        if strength is None:  # as the first training images choose it, for all divisions
            head = fit_head(values[learn], labels[learn], len(data.classes))
            strength, pooling = head.strength, head.pooling
            known, variances, _ = decorrelate(pick(values, pooling))
        wanted = np.eye(len(data.classes))[labels[learn]]
        found = regress(known[learn], wanted, np.ones(len(learn)), strength, True, variances=variances)
        says = {}
        for name, part in (("held", held), ("test", test)):
            says[name] = torch.from_numpy(known[part] @ found[:-1] + found[-1]).softmax(1).numpy()
        settings = get_task("classify").calibrate(says["held"], labels[held])
        after, truth = temper(says["test"], settings["temperature"]), labels[test]
        right = after.argmax(1) == truth
        row = {"accuracy": float(right.mean()), "temperature": settings["temperature"]}
        for when, said in (("before", says["test"]), ("after", after)):
            row[f"calibration error {when}"] = measure(said, truth).calibration.error
        own = after[np.arange(len(truth)), truth]
        for rate, least in settings["conformal"].items():
            sizes = (after >= least).sum(1)
            row[f"missed {rate}"] = float((own < least).mean())
            row[f"classes {rate}"] = float(sizes.mean())
            row[f"one class {rate}"] = float((sizes == 1).mean())
            row[f"one wrong {rate}"] = float(((sizes == 1) & ~right).mean())
        rows.append(row)
        print(seed, {key: round(value, 4) for key, value in row.items() if "0.05" in key}, file=sys.stderr)
    means = {}
    for key in rows[0]:
        held_values = np.array([row[key] for row in rows if key in row])
        spread = 1.96 * held_values.std(ddof=1) / len(held_values) ** 0.5
        means[key] = [float(held_values.mean()), float(spread)]
    return {"divisions": times, "images": len(labels), "model": built.name, "means": means}


def gains(source: str) -> list[dict[str, Any]]:
    """What `nearsight eval` says of views, of an average, and of a calibration."""
    rows = []
    first = source.partition(",")[0]
    ways: list[tuple[str, str, str | None]] = [(first, "flip", "flip"), (first, "crops", "crops")]
    ways += [(source, "average", None)] if "," in source else []
    for run, what, tta in ways:
        found = nearsight.evaluate(run, tta=tta, workers=0)
        rows += [{"way": what, **asdict(gain)} for gain in found.gains]
        print(rows[-1], file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:  # the run itself stays as it is
        copy = Path(folder) / "run"
        shutil.copytree(first, copy, ignore=shutil.ignore_patterns("checkpoints", "frozen", "fine-tune", "features"))
        nearsight.calibrate(copy, workers=0)
        found = nearsight.evaluate(copy, workers=0)
        rows += [{"way": "calibrated", **asdict(gain)} for gain in found.gains]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("coverage", "gains"))
    parser.add_argument("source")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = coverage(given.source, given.times) if given.what == "coverage" else gains(given.source)
    held = json.loads(given.out.read_text()) if given.out.exists() else {}
    held[given.what] = found
    write_whole(given.out, (json.dumps(held, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
