"""How many wrong labels a check finds: some are changed on purpose, and counted among the first of its list.

    python benchmarks/label_noise.py --data DIR --out benchmarks/results/label_noise.json clothing cifar10 bccd

DIR has clothing.zip, cifar10_subset.npz, bccd_trainval.zip and camvid_trainval.zip. Of n annotations that are changed
at random, with a seed, those count as found that are among the first n reported. `boxes=RUN` and `masks=RUN` judge the
boxes of bccd and the masks of camvid by a run, which was trained with their training images: only the others are
judged. Features are kept in the cache, so that another seed takes seconds.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearsight.atomic import write_whole
from nearsight.data import open_data
from nearsight.data.check import check_surveyed
from nearsight.data.instances import Instances
from nearsight.data.samples import Data, Split, Subset
from nearsight.interval import wilson
from nearsight.label_issues import judge_by_features, judge_by_model

FRACTION = 0.03  # of the annotations
FILES = {"clothing": "clothing.zip", "cifar10": "cifar10_subset.npz", "bccd": "bccd_trainval.zip"}
FILES |= {"boxes": "bccd_trainval.zip", "masks": "camvid_trainval.zip"}


class Changed(Subset):
    """A split some of whose annotations are changed."""

    def __init__(self, whole: Split, labels: Any = None, annotations: dict[int, Any] | None = None):
        super().__init__(whole, np.arange(len(whole)))
        self.labels = whole.labels if labels is None else labels
        self.annotations = annotations or {}

    def target(self, index: int) -> Any:
        return int(self.labels[index]) if self.labels_are_classes else super().target(index)

    def annotation(self, index: int, size: tuple[int, int] | None = None) -> Any:
        return self.annotations[index] if index in self.annotations else super().annotation(index, size)


def others(random: np.random.Generator, labels: Any, classes: int) -> Any:
    """Another class for each, drawn evenly."""
    return (labels + random.integers(1, classes, len(labels))) % classes


def change_labels(data: Data, seed: int) -> tuple[Data, set[Any]]:
    """Another class for a fraction of all images; and which they are."""
    random = np.random.default_rng(seed)
    keys = [(name, index) for name, split in data.splits().items() for index in range(len(split))]
    chosen = [keys[n] for n in random.choice(len(keys), round(FRACTION * len(keys)), replace=False)]
    splits = {}
    for name, split in data.splits().items():
        labels, mine = split.labels.copy(), [index for part, index in chosen if part == name]
        labels[mine] = others(random, labels[mine], len(data.classes))
        splits[name] = Changed(split, labels)
    return data.with_splits(**splits), set(chosen)


def change_boxes(data: Data, seed: int, ways: tuple[str, ...]) -> tuple[Data, set[Any]]:
    """Boxes of another class, moved by half of their sides, or left out; and which they are."""
    random, splits, chosen = np.random.default_rng(seed), {}, set()
    for name, split in data.splits().items():
        changed = {}
        for index in range(len(split)):
            held = split.annotation(index)
            assert isinstance(held, Instances)
            picked = np.flatnonzero(random.random(len(held)) < FRACTION)
            boxes, labels, keep = held.boxes.copy(), held.labels.copy(), np.ones(len(held), dtype=bool)
            for row in picked.tolist():
                way = ways[random.integers(len(ways))]
                if way == "class":
                    labels[row] = others(random, labels[row : row + 1], len(data.classes))[0]
                elif way == "moved":
                    across = random.choice([-0.5, 0.5], 2) * (boxes[row, 2:] - boxes[row, :2])
                    boxes[row] += np.tile(across, 2).astype(boxes.dtype)
                else:
                    keep[row] = False
                chosen.add((name, index, way, *boxes[row].tolist()))
            if len(picked):
                changed[index] = replace(held, boxes=boxes, labels=labels).keep(keep)
        splits[name] = Changed(split, None, changed)
    return data.with_splits(**splits), chosen


def change_masks(data: Data, seed: int) -> tuple[Data, set[Any]]:
    """In a tenth of the images all pixels of one class, which has at least 2 % of them, become those of another."""
    random, splits, chosen = np.random.default_rng(seed), {}, set()
    for name, split in data.splits().items():
        changed = {}
        for index in random.choice(len(split), max(1, len(split) // 10), replace=False).tolist():
            classes = np.array(split.annotation(index))
            counts = np.bincount(classes.ravel(), minlength=256)[: len(data.classes)]
            large = np.flatnonzero(counts >= 0.02 * classes.size)
            kind = random.choice(large, 1)
            changed[index] = np.where(classes == kind[0], others(random, kind, len(data.classes))[0], classes)
            changed[index] = changed[index].astype(np.uint8)
            chosen.add((name, index))
        splits[name] = Changed(split, None, changed)
    return data.with_splits(**splits), chosen


def found_boxes(chosen: set[Any], suspects: list[Any]) -> set[Any]:
    """The changed boxes that a suspect overlaps, with an IoU of 0.3 at least."""
    found = set()
    for one in suspects:
        for name, index, way, *box in chosen:
            if (name, index) == (one.split, one.index) and one.box is not None:
                both = np.array([box, one.box])
                inner = np.maximum(0, both[:, 2:].min(0) - both[:, :2].max(0)).prod()
                if inner / ((both[:, 2:] - both[:, :2]).prod(1).sum() - inner) >= 0.3:
                    found.add((name, index, way, *box))
    return found


def measure(kind: str, data: Data, seed: int, run: str | None) -> dict[str, Any]:
    """Change some annotations, check, and count."""
    began = time.perf_counter()
    if kind in ("clothing", "cifar10"):
        changed, chosen = change_labels(data, seed)
    elif kind == "masks":
        changed, chosen = change_masks(data, seed)
    else:
        changed, chosen = change_boxes(data, seed, ("class",) if kind == "bccd" else ("class", "moved", "missing"))
    report, survey = check_surveyed(changed, None, 0)
    if run is None:
        judge_by_features(report, changed, survey, None, 0, torch.device("cpu"))
    else:
        judge_by_model(report, changed, survey, run, 0, torch.device("cpu"), iter)
    first = report.suspects[: len(chosen)]
    if kind in ("clothing", "cifar10", "masks"):
        found = chosen & {(one.split, one.index) for one in first}
    else:
        found = found_boxes(chosen, first)
    ways = {key[2] for key in chosen} if kind == "boxes" else set()
    more = {way: [sum(key[2] == way for key in part) for part in (found, chosen)] for way in sorted(ways)}
    rate = wilson(len(found), len(chosen))
    seconds = round(time.perf_counter() - began, 1)
    result = {"kind": kind, "seed": seed, "changed": len(chosen), "found": len(found), "rate": rate, "by_way": more}
    print(
        f"{kind} seed {seed}: {len(found)} of {len(chosen)} ({rate.value:.1%}) {more} in {seconds} s", file=sys.stderr
    )
    return result | {"suspects": len(report.suspects), "judged_by": report.judged_by, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("kinds", nargs="+", help="clothing, cifar10, bccd, boxes=RUN, masks=RUN")
    given = parser.parse_args()
    rows = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    for kind, _, run in (text.partition("=") for text in given.kinds):
        data = open_data(given.data / FILES[kind], "segment" if kind == "masks" else None)
        if run:  # a run knows the images that it was trained with
            data = data.with_splits(train=None)
        rows = [row for row in rows if row["kind"] != kind]
        for seed in range(given.seeds):
            rows.append(measure(kind, data, seed, run or None))
            write_whole(given.out, (json.dumps({"fraction": FRACTION, "rows": rows}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
