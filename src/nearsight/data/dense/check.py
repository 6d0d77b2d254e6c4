"""Check annotations of objects and regions, beside what is checked of every image."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...console import percent
from ..file_system import join
from ..image import is_image_name
from ..issues import CheckReport, Finding
from ..samples import Data
from ..sources.masks import MaskLook, MaskScenes
from .samples import EXAMPLES, FileScenes, Flaws, ObjectScenes, Scenes, spell
from .sizes import choose_side, measure_sizes

if TYPE_CHECKING:
    from ..survey import Survey


ADVICE = {
    "annotation without an image": "left out; their images are not listed",
    "annotation of an unknown category": "left out; no category has that number",
    "box without four numbers": "left out",
    "mask that can't be read": "the object counts without it",
    "image listed more than once": "the objects of all entries are put together",
    "image with the id of another": "left out",
    "object without a name": "left out",
    "line that can't be read": "left out; a line has a class and four numbers, or a class and points",
    "image without a file of labels": "taken as images without objects",
    "image without a mask": "left out",
    "mask without an image": "left out",
}


def judge_scenes(report: CheckReport, data: Data, survey: "Survey") -> None:
    """Add to a report what is wrong with annotations, and count their classes."""
    splits = {name: split for name, split in data.splits().items() if isinstance(split, Scenes)}
    report.counts = {title: dict.fromkeys(splits, 0) for title in data.classes}
    source = data.train if data.train is not None else next(iter(splits.values()))
    if len(survey.places):
        report.img_size = choose_side(data.task, measure_sizes(source))
    strange = StrangeCodes(Counter(), Counter())
    for name, split in splits.items():
        report.notes += [note for note in split.flaws.notes if note not in report.notes]
        places = [place for place, (where, _) in enumerate(survey.places) if where == name]
        numbers = np.array([survey.places[place][1] for place in places], dtype=np.int64)
        if isinstance(split, ObjectScenes):
            judge_objects(report, name, split, numbers, survey.sizes[places], data.classes)
        elif isinstance(split, MaskScenes):
            notes = [survey.notes[place] for place in places]
            judge_masks(report, name, split, numbers, survey.sizes[places], notes, strange)
        else:
            count_made(report, name, split, data.classes)
    report.findings += strange.findings(next(iter(splits.values())))
    files = [split for split in splits.values() if isinstance(split, FileScenes)]
    report.findings = [*flaw_findings(split.flaws for split in files), *report.findings, *unnamed_images(files)]
    report.findings = merge(report.findings)


def flaw_findings(every: Iterable[Flaws]) -> list[Finding]:
    """What was noted while annotations were read."""
    return [
        Finding(what, count, tuple(flaws.examples[what]), ADVICE[what])
        for flaws in every
        for what, count in flaws.counts.items()
    ]


def merge(findings: Sequence[Finding]) -> list[Finding]:
    """The findings of all splits, each sort once."""
    merged: dict[str, Finding] = {}
    for finding in findings:
        before = merged.get(finding.what)
        if before is None:
            merged[finding.what] = finding
        else:
            examples = (*before.examples, *finding.examples)[:EXAMPLES]
            merged[finding.what] = Finding(finding.what, before.count + finding.count, examples, finding.advice)
    return list(merged.values())


def unnamed_images(splits: Sequence[FileScenes]) -> list[Finding]:
    """Images that lie beside annotated ones, but that no annotation names."""
    objects = [split for split in splits if isinstance(split, ObjectScenes) and not split.relative]
    if not objects:
        return []  # masks and YOLO's labels are found from the images
    tree = objects[0].pictures.tree
    named = {path for split in objects for path in split.pictures.paths}
    folders = {path.rpartition("/")[0] for path in named}
    beside = (join(folder, name) for folder in sorted(folders) for name in tree.files(folder) if is_image_name(name))
    left = [path for path in beside if path not in named]
    if not left:
        return []
    return [Finding("image that no annotation names", len(left), tuple(left[:EXAMPLES]), "not used")]


@dataclass
class StrangeCodes:
    """Values or colours of masks that mean nothing: how many pixels and masks have them."""

    pixels: Counter[int]
    masks: Counter[int]

    def findings(self, split: Scenes) -> list[Finding]:
        """What there is to say of them, the most frequent first."""
        if not self.pixels or not isinstance(split, MaskScenes):
            return []
        lines = [
            f"{split.coding.spell(code)}: {count:,} pixels in {self.masks[code]:,} masks"
            for code, count in self.pixels.most_common(EXAMPLES)
        ]
        what = "colour value without a meaning in masks" if split.coding.colours else "value without a meaning in masks"
        return [Finding(what, len(self.pixels), tuple(lines), "these pixels are not counted")]


def judge_masks(
    report: CheckReport,
    name: str,
    split: MaskScenes,
    numbers: NDArray[np.int64],
    sizes: NDArray[np.int64],
    notes: Sequence[object],
    strange: "StrangeCodes",
) -> None:
    """Find masks that can't be read or don't fit, and values that mean nothing; count classes and pixels."""
    unreadable, other_size = [], []
    pixels: Counter[int] = Counter()
    for number, size, note in zip(numbers.tolist(), sizes.tolist(), notes, strict=True):
        image = split.name(number)
        if not isinstance(note, MaskLook):
            unreadable.append(f"{image}: {note}")
            report.spoiled.append(image)
            continue
        if list(note.size) != size:
            other_size.append(f"{image}: {spell(size)}, its mask {spell(note.size)}")
            report.spoiled.append(image)
            continue
        codes = np.array(list(note.codes))
        classes = split.coding.apply(codes)
        known = np.isin(codes, split.coding.codes)
        for code, kind, is_known in zip(codes.tolist(), classes.tolist(), known.tolist(), strict=True):
            if not is_known:
                strange.pixels[code] += note.codes[code]
                strange.masks[code] += 1
            pixels[kind] += note.codes[code]
        for kind in set(classes.tolist()) & set(range(len(split.coding.classes))):
            report.counts[split.coding.classes[kind]][name] += 1
    report.findings += list_findings("mask that can't be read", unreadable, "their images are left out")
    report.findings += list_findings("mask of another size than the image", other_size, "their images are left out")
    if name == "train" or not report.shares:
        note_pixels(report, split, pixels)


def note_pixels(report: CheckReport, split: MaskScenes, pixels: Counter[int]) -> None:
    """Note the share of each class, and of what is not counted."""
    total = sum(pixels.values())
    if not total:
        return
    counted = sum(pixels[kind] for kind in range(len(split.coding.classes)))
    report.shares = {
        title: pixels[kind] / counted if counted else 0.0 for kind, title in enumerate(split.coding.classes)
    }
    if counted < total:
        report.notes.append(f"not counted: {percent(1 - counted / total)} of the pixels")


def count_made(report: CheckReport, name: str, split: Scenes, classes: Sequence[str]) -> None:
    """Count the classes of drawn scenes: objects, or images with regions of a class."""
    from .instances import Objects

    for index in range(len(split)):
        found = split.annotation(index)
        if isinstance(found, Objects):
            kinds = found.labels.tolist()
        else:
            kinds = [kind for kind in np.unique(found).tolist() if kind < len(classes)]
        for kind in kinds:
            report.counts[classes[kind]][name] += 1


def list_findings(what: str, examples: Sequence[str], advice: str) -> list[Finding]:
    """A finding if there are any."""
    return [Finding(what, len(examples), tuple(examples[:EXAMPLES]), advice)] if examples else []


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
