"""Check the boxes of objects: where they lie, how large they are, and whether they are there twice."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..findings import CheckReport, Finding
from .detection import ObjectScenes
from .scenes import EXAMPLES, spell

SLACK = 1.0  # pixels by which a box may stick out: tools round in either direction
LEAST = 4  # pixels of an object's shorter side below which no model here sees it
MANY = 100  # objects of an image, beyond which some are never counted as found
WORTH_A_NOTE = 0.01  # share of tiny objects from which they are worth a word


def judge_objects(
    report: CheckReport,
    name: str,
    split: ObjectScenes,
    numbers: NDArray[np.int64],
    sizes: NDArray[np.int64],
    classes: Sequence[str],
) -> None:
    """Find images of another size than annotated and boxes that are wrong; count the objects of each class.

    Args:
        report: Gets the findings.
        name: Of the split.
        split: The scenes.
        numbers: Of the readable images `[n]`.
        sizes: Their heights and widths `[n, 2]`.
        classes: Names of all classes.
    """
    whole = np.zeros((len(split), 2), dtype=np.int64)
    whole[numbers] = sizes
    fitting = judge_annotated_sizes(report, split, whole)
    image = np.repeat(np.arange(len(split)), np.diff(split.starts))
    usable = fitting[image]
    frame = whole[image][:, ::-1]  # width, height
    boxes = split.boxes.astype(np.float64) * (np.tile(frame, 2) if split.relative else 1)
    first = 1 if split.task == "segment" and split.background else 0
    for kind, count in zip(*np.unique(split.kinds[usable], return_counts=True), strict=True):
        report.counts[classes[kind + first]][name] += int(count)
    if first:
        report.counts[classes[0]][name] = int(fitting.sum())
    judge_boxes(report, split, boxes, image, frame, usable)
    judge_tiny(report, split, boxes, image, frame, usable & ~split.crowd)
    note_images(report, name, split)


def judge_annotated_sizes(report: CheckReport, split: ObjectScenes, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which images `[n]` can be read and have the size that their annotations say."""
    readable = np.any(sizes, axis=1)
    wrong = np.flatnonzero(readable & split.sizes.any(axis=1) & (split.sizes != sizes).any(axis=1))
    if len(wrong):
        report.spoiled += [split.name(int(index)) for index in wrong]
        both = zip(wrong.tolist(), sizes[wrong].tolist(), split.sizes[wrong].tolist(), strict=True)
        lines = [f"{split.name(index)}: {spell(own)}, annotated as {spell(noted)}" for index, own, noted in both]
        advice = "left out; turned or resized after they were annotated?"
        report.findings.append(
            Finding("image of another size than annotated, height × width", len(wrong), tuple(lines[:EXAMPLES]), advice)
        )
        readable = readable.copy()
        readable[wrong] = False
    return readable


def judge_boxes(
    report: CheckReport,
    split: ObjectScenes,
    boxes: NDArray[np.float64],
    image: NDArray[np.int64],
    frame: NDArray[np.int64],
    usable: NDArray[np.bool_],
) -> None:
    """Find boxes without extent, outside the image or beyond its border, and objects that are there twice."""
    sides = boxes[:, 2:] - boxes[:, :2]
    flat = usable & (sides <= 0).any(axis=1)
    outside = usable & ~flat & ((boxes[:, 2:] <= 0) | (boxes[:, :2] >= frame)).any(axis=1)
    beyond = usable & ~flat & ~outside & ((boxes[:, :2] < -SLACK) | (boxes[:, 2:] > frame + SLACK)).any(axis=1)
    rows = np.column_stack([image, split.kinds, boxes.round(1)])
    _, place, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    again = usable & ~flat & (place[inverse.reshape(-1)] != np.arange(len(rows)))
    for what, which, advice in (
        ("box without width or height", flat, "left out"),
        ("box wholly outside the image", outside, "left out"),
        ("box partly outside the image", beyond, "cut off at the border"),
        ("object annotated twice", again, "remove one of each: a model is punished for finding it once"),
    ):
        found = np.flatnonzero(which)
        if len(found):
            examples = tuple(box_line(split, boxes[row], int(image[row]), frame[row]) for row in found[:EXAMPLES])
            report.findings.append(Finding(what, len(found), examples, advice))


def box_line(split: ObjectScenes, box: NDArray[np.float64], image: int, frame: NDArray[np.int64]) -> str:
    """A box for people."""
    left, top, right, bottom = (f"{value:.6g}" for value in box.tolist())
    return f"{split.name(image)} ({spell(frame[::-1].tolist())}): x {left} to {right}, y {top} to {bottom}"


def judge_tiny(
    report: CheckReport,
    split: ObjectScenes,
    boxes: NDArray[np.float64],
    image: NDArray[np.int64],
    frame: NDArray[np.int64],
    usable: NDArray[np.bool_],
) -> None:
    """Find objects that have too few pixels at the image size to train with, and say which size they need."""
    sides = (boxes[:, 2:] - boxes[:, :2]).min(axis=1)
    counted = usable & (sides > 0)
    if not counted.any() or report.img_size is None:
        return
    shorter = frame.min(axis=1)
    shares = np.where(counted, sides / np.maximum(shorter, 1), np.inf)
    tiny = np.flatnonzero(shares * report.img_size < LEAST)
    if len(tiny) < WORTH_A_NOTE * counted.sum():
        return
    needed = math.ceil(LEAST / float(np.quantile(shares[tiny], 0.1)) / 32) * 32
    own = int(np.median(shorter[tiny])) // 32 * 32
    if needed <= own:
        advice = f"at {report.img_size} pixels less than {LEAST} on a side are left of them; try --img-size {needed}"
    elif report.img_size < own:
        advice = (
            f"less than {LEAST} pixels on a side at {report.img_size}; try --img-size {own}, or cut images in parts"
        )
    else:
        advice = f"less than {LEAST} pixels on a side; they are hardly found"
    lines = tuple(box_line(split, boxes[row], int(image[row]), frame[row]) for row in tiny[:EXAMPLES])
    report.findings.append(Finding("tiny object", len(tiny), lines, advice))


def note_images(report: CheckReport, name: str, split: ObjectScenes) -> None:
    """Note images without objects or with very many, crowds, and masks that only some objects have."""
    counts = np.diff(split.starts)
    notes = [f"{name}: {len(split.kinds):,} objects in {len(split):,} images"]
    if (counts == 0).any():
        notes.append(f"{int((counts == 0).sum()):,} images without objects")
    if (counts > MANY).any():
        notes.append(f"{int((counts > MANY).sum()):,} with more than {MANY}, of which {MANY} can be found")
    if split.crowd.any():
        notes.append(f"{int(split.crowd.sum()):,} crowds or difficult objects, which are not counted")
    there = split.outlines.there | split.crowd
    if there.any() and not split.outlines.there.all() and not there.all():
        notes.append(f"{int((~there).sum()):,} objects without a mask, so that boxes alone are learnt")
    report.notes.append(", ".join(notes))
