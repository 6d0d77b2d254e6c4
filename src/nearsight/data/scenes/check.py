"""Check annotations of objects and regions, beside what is checked of every image."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...tables import percent
from ..findings import CheckReport, Finding
from ..image import is_image_name
from ..samples import Data
from .check_objects import judge_objects
from .detection import ObjectScenes
from .regions import MaskLook, MaskScenes
from .scenes import EXAMPLES, FileScenes, Flaws, Scenes, spell
from .sizes import choose_side, measure_sizes
from .tree import join

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
    from .objects import Objects

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
