"""Splits with dense annotations: instances in each image, or a class for every pixel."""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..plots.overlays import IGNORE_INDEX
from .file_system import FileSystem, join
from .image import ORIENTATION, TURNED, decode, explain, is_image_name, readable_formats
from .instances import Instances, MaskList, PackedMasks, Shape
from .issues import EXAMPLES, AnnotationCheck, Issue, Seen
from .labels import rarest_labels
from .samples import BadImage, Names, Split, Target

ADVICE = {
    "annotation without an image": "left out; their images are not listed",
    "annotation of an unknown category": "left out; no category has that number",
    "box without four numbers": "left out",
    "annotation whose iscrowd is neither 0 nor 1": "taken as a single instance",
    "mask that can't be read": "the instance counts without it",
    "image listed more than once": "the instances of all entries are put together",
    "image with the id of another": "left out",
    "instance without a name": "left out",
    "line that can't be read": "left out; a line has a class and four numbers, or a class and points",
    "image without a file of labels": "taken as images without instances",
    "image without a mask": "left out",
    "mask without an image": "left out",
}


@dataclass
class AnnotationIssues:
    """What was found wrong while annotations were read.

    Attributes:
        counts: How often, by what it is.
        examples: Some of them, by what it is.
        notes: What is good to know, though not wrong, a sentence each.
    """

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, what: str, example: str, times: int = 1) -> None:
        """Remember an issue."""
        self.counts[what] = self.counts.get(what, 0) + times
        shown = self.examples.setdefault(what, [])
        if len(shown) < EXAMPLES:
            shown.append(example)

    def listed(self) -> list[Issue]:
        """As a check reports them."""
        return [Issue(what, count, tuple(self.examples[what]), ADVICE[what]) for what, count in self.counts.items()]


class MapValues(NamedTuple):
    """With which values instances are painted into a map of classes; see `Instances.paint`.

    Attributes:
        classes: The value of each class `[C]`.
        empty: The value of pixels without an instance.
    """

    classes: NDArray[np.uint8]
    empty: int

    @classmethod
    def of(cls, classes: int, background: bool) -> "MapValues":
        """Pixels without an instance are class 0 and the others count from 1; or these pixels do not count."""
        return cls((np.arange(classes) + background).astype(np.uint8), 0 if background else IGNORE_INDEX)

    @classmethod
    def for_task(cls, task: str, classes: int, background: bool) -> "MapValues | None":
        """The same where maps are what a task learns; None where the instances are."""
        return cls.of(classes, background) if task == "segment" else None


class DenseSplit(Split):
    """Images of one split with their instances, or with a class for every pixel.

    Attributes:
        labels: For each image `[n]` the rarest class in it, or 0; splits are made by it.
        issues: What was found wrong while the annotations were read.
        has_masks: Whether all instances have masks.
        values: Of maps, where these are what is learnt of instances; None where the instances are.
    """

    issues: AnnotationIssues
    labels_are_classes = False
    has_masks: bool = False
    values: MapValues | None = None

    def learn(self, values: MapValues | None) -> None:
        """Let the instances be what is learnt, or the maps with these values that they are painted into."""
        self.values, self.masks = values, self.has_masks and values is None
        self.task, self.counted = ("detect", "instance") if values is None else ("segment", "image")

    @abstractmethod
    def size(self, index: int) -> tuple[int, int]: ...

    @abstractmethod
    def annotation(self, index: int, size: tuple[int, int] | None = None) -> Instances | NDArray[np.uint8]: ...

    def label_text(self, index: int, classes: Sequence[str]) -> str:
        return ""  # an image has several classes

    def target(self, index: int) -> Target:
        """The annotation as tensors, in pixels of the upright image: see `nearsight.data.samples.Target`."""
        found = self.annotation(index)
        if isinstance(found, Instances):
            return found.target()
        import torch

        return torch.from_numpy(found)

    def check(self, name: str, seen: Seen, classes: Sequence[str], img_size: int) -> AnnotationCheck:
        """Counts the instances of each class, or the images that have pixels of it."""
        found = AnnotationCheck(np.zeros(len(classes), dtype=np.int64))
        for index in seen.numbers.tolist():
            annotation = self.annotation(index)
            if isinstance(annotation, Instances):
                kinds = annotation.labels
            else:
                kinds = np.unique(annotation[annotation < len(classes)]).astype(np.int64)
            np.add.at(found.counts, kinds, 1)
        return found


class FileDenseSplit(DenseSplit):
    """Dense annotations whose images are files of a file system.

    Args:
        fs: Where the images are.
        paths: Their paths from the root.
    """

    def __init__(self, fs: FileSystem, paths: Iterable[str]):
        self.fs = fs
        self.paths = Names(paths)

    def name(self, index: int) -> str:
        return self.paths[index]

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return decode(self.name(index), self.content(index), enough)

    def content(self, index: int) -> bytes:
        return self.fs.read(self.name(index))

    def size(self, index: int) -> tuple[int, int]:
        name = self.name(index)
        try:
            with self.fs.head(name) as file, Image.open(file, formats=readable_formats()) as image:
                width, height = image.size
                orientation = image.getexif().get(ORIENTATION, 1)
        except BadImage:
            raise
        except Exception as error:  # as in `decode`: a damaged file makes Pillow raise nearly anything
            raise BadImage(name, explain(error)) from None
        return (width, height) if orientation in TURNED else (height, width)


def spell_size(size: Sequence[int]) -> str:
    """Height and width for people."""
    return f"{size[0]}×{size[1]}"


@dataclass
class InstanceList:
    """Instances while they are read, in any order.

    Attributes:
        paths: Paths of the images.
        sizes: Height and width of each image as annotated, or 0, 0.
        relative: Whether boxes and polygons are fractions of the image's sides.
    """

    paths: list[str] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    relative: bool = False
    images: list[int] = field(default_factory=list)
    boxes: list[Sequence[float]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    area: list[float] = field(default_factory=list)
    packed: MaskList = field(default_factory=MaskList)
    issues: AnnotationIssues = field(default_factory=AnnotationIssues)

    def add(
        self, image: int, box: Sequence[float], name: str, crowd: bool, area: float, shape: Shape | None = None
    ) -> None:
        """Take an instance: the number of its image, its box x1, y1, x2, y2, its class, and its mask if it has one."""
        self.images.append(image)
        self.boxes.append(box)
        self.names.append(name)
        self.crowd.append(crowd)
        self.area.append(area)
        self.packed.add(shape)

    def split(self, fs: FileSystem, numbers: Mapping[str, int], values: MapValues | None) -> "InstanceSplit":
        """All of it as a split.

        Args:
            fs: Where the images are.
            numbers: The number of each class name.
            values: Of maps, if these are to be learnt; None for the instances.
        """
        image = np.array(self.images, dtype=np.int64)
        order = np.argsort(image, kind="stable")
        kinds = np.array([numbers[name] for name in self.names], dtype=np.int64)
        return InstanceSplit(
            fs,
            self.paths,
            starts=np.searchsorted(image[order], np.arange(len(self.paths) + 1)),
            boxes=np.array(self.boxes, dtype=np.float32).reshape(-1, 4)[order],
            kinds=kinds[order],
            crowd=np.array(self.crowd, dtype=bool)[order],
            area=np.array(self.area, dtype=np.float32)[order],
            packed=self.packed.pack(order),
            sizes=np.array(self.sizes, dtype=np.int32).reshape(-1, 2),
            relative=self.relative,
            classes=len(numbers),
            values=values,
            issues=self.issues,
        )


class InstanceSplit(FileDenseSplit):
    """Images with instances, all of them in a few arrays.

    Args:
        fs: Where the images are.
        paths: Their paths.
        starts: Where the instances of each image begin `[n + 1]`.
        boxes: Of all instances, as annotated `[m, 4]`.
        kinds: Class numbers `[m]`.
        crowd: Whether an instance is a group `[m]`.
        area: In pixels, as annotated; nan where it is not `[m]`.
        packed: Masks.
        sizes: Height and width of the images as annotated, or 0, 0 `[n, 2]`.
        relative: Whether boxes and polygons are fractions of the image's sides.
        classes: Number of classes of instances.
        values: Of maps, if these are to be learnt; None for the instances.
        issues: What was found wrong.
    """

    def __init__(
        self,
        fs: FileSystem,
        paths: Iterable[str],
        *,
        starts: NDArray[np.int64],
        boxes: NDArray[np.float32],
        kinds: NDArray[np.int64],
        crowd: NDArray[np.bool_],
        area: NDArray[np.float32],
        packed: PackedMasks,
        sizes: NDArray[np.int32],
        relative: bool,
        classes: int,
        values: MapValues | None,
        issues: AnnotationIssues,
    ):
        super().__init__(fs, paths)
        self.starts, self.boxes, self.kinds, self.crowd, self.area = starts, boxes, kinds, crowd, area
        self.packed, self.sizes, self.relative, self.issues = packed, sizes, relative, issues
        self.has_masks = bool(packed.there.any()) and bool((packed.there | crowd).all())  # groups may lack theirs
        self.labels = rarest_labels(starts, kinds, classes)
        self.learn(values)

    def instances(self, index: int, size: tuple[int, int]) -> Instances:
        """The instances of an image of a size, as they are annotated, in its pixels."""
        noted = tuple(self.sizes[index].tolist())
        if noted != (0, 0) and noted != size:
            raise BadImage(
                self.name(index),
                f"its annotations are for an image of {spell_size(noted)}, but it has {spell_size(size)} pixels",
            )
        rows = slice(self.starts[index], self.starts[index + 1])
        shapes = [self.packed.shape(number) for number in range(rows.start, rows.stop)]
        frame = (1, 1) if self.relative else size
        found = Instances(
            frame,
            self.boxes[rows],
            self.kinds[rows],
            self.crowd[rows],
            self.area[rows],
            shapes if self.has_masks else None,
        ).resized(size)
        sides = found.boxes[:, 2:] - found.boxes[:, :2]
        area = np.where(np.isnan(found.area), sides.clip(0).prod(axis=1), found.area).astype(np.float32)
        return Instances(size, found.boxes, found.labels.copy(), found.crowd.copy(), area, found.shapes)

    def annotation(self, index: int, size: tuple[int, int] | None = None) -> Instances | NDArray[np.uint8]:
        found = self.instances(index, size or self.size(index)).tidy()
        return found if self.values is None else found.paint(*self.values)

    def check(self, name: str, seen: Seen, classes: Sequence[str], img_size: int) -> AnnotationCheck:
        """Finds images of another size than annotated and boxes that are wrong; counts the instances of each class."""
        report = AnnotationCheck(np.zeros(len(classes), dtype=np.int64), notes=list(self.issues.notes))
        report.issues += self.issues.listed()
        whole = np.zeros((len(self), 2), dtype=np.int64)
        whole[seen.numbers] = seen.sizes
        fitting = judge_annotated_sizes(report, self, whole)
        image = np.repeat(np.arange(len(self)), np.diff(self.starts))
        usable = fitting[image]
        frame = whole[image][:, ::-1]  # width, height
        boxes = self.boxes.astype(np.float64) * (np.tile(frame, 2) if self.relative else 1)
        has_background = self.values is not None and self.values.empty == 0
        np.add.at(report.counts, self.kinds[usable] + has_background, 1)
        if has_background:
            report.counts[0] = int(fitting.sum())
        found = CheckedBoxes(self, boxes, image, frame, usable)
        judge_boxes(report, found)
        judge_tiny(report, found, img_size)
        note_images(report, name, self)
        return report

    def signature(self, index: int) -> str:
        rows = slice(self.starts[index], self.starts[index + 1])
        return hashlib.blake2b(self.boxes[rows].tobytes() + self.kinds[rows].tobytes(), digest_size=8).hexdigest()


SLACK = 1.0  # pixels by which a box may stick out: tools round in either direction
LEAST = 4  # pixels of an instance's shorter side below which no model here sees it
MANY = 100  # instances of an image, beyond which some are never counted as found
NOTED = 0.01  # fraction of tiny instances from which they are noted


class CheckedBoxes(NamedTuple):
    """The boxes of a split while they are checked.

    Attributes:
        split: The split.
        boxes: In pixels of the images `[m, 4]`.
        image: Number of each one's image `[m]`.
        frame: Width and height of that image `[m, 2]`.
        usable: Whether it can be read and its annotations fit `[m]`.
    """

    split: InstanceSplit
    boxes: NDArray[np.float64]
    image: NDArray[np.int64]
    frame: NDArray[np.int64]
    usable: NDArray[np.bool_]

    def examples(self, rows: NDArray[np.int64]) -> tuple[str, ...]:
        """The first boxes of some rows for people."""
        lines = []
        for row in rows[:EXAMPLES].tolist():
            left, top, right, bottom = (f"{value:.6g}" for value in self.boxes[row].tolist())
            size = spell_size(self.frame[row][::-1].tolist())
            name = self.split.name(int(self.image[row]))
            lines.append(f"{name} ({size}): x {left} to {right}, y {top} to {bottom}")
        return tuple(lines)


def judge_annotated_sizes(report: AnnotationCheck, split: InstanceSplit, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which images `[n]` can be read and have the size that their annotations say."""
    readable = np.any(sizes, axis=1)
    wrong = np.flatnonzero(readable & split.sizes.any(axis=1) & (split.sizes != sizes).any(axis=1))
    if len(wrong):
        report.unusable += [split.name(int(index)) for index in wrong]
        both = zip(wrong.tolist(), sizes[wrong].tolist(), split.sizes[wrong].tolist(), strict=True)
        lines = [
            f"{split.name(index)}: {spell_size(own)}, annotated as {spell_size(noted)}" for index, own, noted in both
        ]
        advice = "left out; turned or resized after they were annotated?"
        report.issues.append(
            Issue("image of another size than annotated, height × width", len(wrong), tuple(lines[:EXAMPLES]), advice)
        )
        readable = readable.copy()
        readable[wrong] = False
    return readable


def judge_boxes(report: AnnotationCheck, found: CheckedBoxes) -> None:
    """Find boxes without extent, outside the image or beyond its border, and instances that are there twice."""
    split, boxes, image, frame, usable = found
    sides = boxes[:, 2:] - boxes[:, :2]
    flat = usable & (sides <= 0).any(axis=1)
    outside = usable & ~flat & ((boxes[:, 2:] <= 0) | (boxes[:, :2] >= frame)).any(axis=1)
    beyond = usable & ~flat & ~outside & ((boxes[:, :2] < -SLACK) | (boxes[:, 2:] > frame + SLACK)).any(axis=1)
    told = np.column_stack([image, split.kinds, boxes.round(1)])
    _, first, inverse = np.unique(told, axis=0, return_index=True, return_inverse=True)
    again = usable & ~flat & (first[inverse.reshape(-1)] != np.arange(len(told)))
    for what, which, advice in (
        ("box without width or height", flat, "left out"),
        ("box wholly outside the image", outside, "left out"),
        ("box partly outside the image", beyond, "cut off at the border"),
        ("instance annotated twice", again, "remove one of each: a model is punished for finding it once"),
    ):
        rows = np.flatnonzero(which)
        if len(rows):
            report.issues.append(Issue(what, len(rows), found.examples(rows), advice))


def judge_tiny(report: AnnotationCheck, found: CheckedBoxes, img_size: int) -> None:
    """Find instances that have too few pixels at the image size to train with, and say which size they need."""
    sides = (found.boxes[:, 2:] - found.boxes[:, :2]).min(axis=1)
    counted = found.usable & ~found.split.crowd & (sides > 0)
    if not counted.any():
        return
    shorter = found.frame.min(axis=1)
    fractions = np.where(counted, sides / np.maximum(shorter, 1), np.inf)
    tiny = np.flatnonzero(fractions * img_size < LEAST)
    if len(tiny) < NOTED * counted.sum():
        return
    needed = math.ceil(LEAST / float(np.quantile(fractions[tiny], 0.1)) / 32) * 32
    own = int(np.median(shorter[tiny])) // 32 * 32
    if needed <= own:
        advice = f"at {img_size} pixels less than {LEAST} on a side are left of them; try --img-size {needed}"
    elif img_size < own:
        advice = f"less than {LEAST} pixels on a side at {img_size}; try --img-size {own}, or cut images in parts"
    else:
        advice = f"less than {LEAST} pixels on a side; they are hardly found"
    report.issues.append(Issue("tiny instance", len(tiny), found.examples(tiny), advice))


def note_images(report: AnnotationCheck, name: str, split: InstanceSplit) -> None:
    """Note images without instances or with very many, crowds, and masks that only some instances have."""
    counts = np.diff(split.starts)
    notes = [f"{name}: {len(split.kinds):,} instances in {len(split):,} images"]
    if (counts == 0).any():
        notes.append(f"{int((counts == 0).sum()):,} images without instances")
    if (counts > MANY).any():
        notes.append(f"{int((counts > MANY).sum()):,} with more than {MANY}, of which {MANY} can be found")
    if split.crowd.any():
        notes.append(f"{int(split.crowd.sum()):,} crowds or difficult instances, which are not counted")
    there = split.packed.there | split.crowd
    if there.any() and not split.packed.there.all() and not there.all():
        notes.append(f"{int((~there).sum()):,} instances without a mask, so that boxes alone are learnt")
    report.notes.append(", ".join(notes))


def unlisted_images(splits: Iterable[Split]) -> list[Issue]:
    """Images that lie beside annotated ones, but that no annotation names."""
    found = [split for split in splits if isinstance(split, InstanceSplit) and not split.relative]
    if not found:
        return []  # masks and YOLO's labels are found from the images
    fs = found[0].fs
    named = {path for split in found for path in split.paths}
    folders = {path.rpartition("/")[0] for path in named}
    beside = (join(folder, name) for folder in sorted(folders) for name in fs.files(folder) if is_image_name(name))
    left = [path for path in beside if path not in named]
    if not left:
        return []
    return [Issue("image that no annotation names", len(left), tuple(left[:EXAMPLES]), "not used")]
