"""What a check of data can find, as values that go into a report or a JSON file."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..result import Result

EXAMPLES = 20  # that are remembered of each kind of issue
UNLIKELY = 0.05  # probability below which a label is called suspicious
TINY = 10  # training images below which a class is hardly learnt
IMBALANCED = 5.0  # ratio of the largest to the smallest class from which weights are advised
PLURALS = {
    **{"image": "images", "class": "classes", "box": "boxes", "group": "groups"},
    **{"label": "labels", "pair": "pairs"},
    **{"annotation": "annotations", "mask": "masks", "value": "values", "line": "lines", "instance": "instances"},
}
PROTECTED = ("train", "val", "test")  # of an image in several splits, the copy in the last is the one to keep


@dataclass(frozen=True)
class ImageRef:
    """An image in the data: its split, name and class."""

    split: str
    name: str
    label: str


@dataclass(frozen=True)
class Unreadable(ImageRef):
    """An image that can't be read, and why."""

    reason: str


@dataclass(frozen=True)
class OddSize(ImageRef):
    """An image much smaller, larger or longer (`why`) than the others."""

    height: int
    width: int
    why: str


@dataclass(frozen=True)
class Copies:
    """Images that are copies of each other: byte by byte if `exact`, else saved, scaled, brightened or trimmed anew."""

    exact: bool
    images: tuple[ImageRef, ...]

    @property
    def leaks(self) -> bool:
        """Whether they are in different splits, so that a model is tested on what it has learnt."""
        return len({image.split for image in self.images}) > 1

    @property
    def disagree(self) -> bool:
        """Whether they have different labels, of which at most one is right."""
        return len({image.label for image in self.images}) > 1

    @property
    def surplus(self) -> tuple[ImageRef, ...]:
        """The copies to remove so that none leaks: all but those in the most protected split, or all but one.

        A file that a table lists for several splits is not among them: it has to stay, and a row has to go.
        """
        if not self.leaks:
            return self.images[1:]
        keep = max((image.split for image in self.images), key=PROTECTED.index)
        kept = {image.name for image in self.images if image.split == keep}
        return tuple(image for image in self.images if image.split != keep and image.name not in kept)


@dataclass(frozen=True)
class Suspect(ImageRef):
    """An annotation that a model contradicts.

    Attributes:
        suggestion: What the model says instead.
        score: How probable the annotation is by the model, from 0 to 1.
        index: Number of the image in its split.
        box: The instance that is meant (x1, y1, x2, y2), in pixels of the image; None for the whole image.
    """

    suggestion: str
    score: float
    index: int
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Outlier(ImageRef):
    """An image whose features are far from those of all others: so many times the median distance."""

    distance: float
    index: int


@dataclass(frozen=True)
class LookAlike:
    """Two images with different labels whose features are nearly the same.

    Attributes:
        images: Both.
        likeness: Cosine of their features.
        keys: Split and number of both.
    """

    images: tuple[ImageRef, ImageRef]
    likeness: float
    keys: tuple[tuple[str, int], tuple[str, int]]


@dataclass(frozen=True)
class Imbalance:
    """The largest and the smallest class, by name and training images."""

    largest: str
    most: int
    smallest: str
    fewest: int

    @property
    def ratio(self) -> float:
        """How often the largest holds the smallest."""
        return self.most / self.fewest


@dataclass(frozen=True)
class Issue:
    """Something about annotations that should be looked at.

    Attributes:
        what: What it is, of one of them.
        count: How many there are.
        examples: Some of them.
        advice: What follows from it, or what to do.
    """

    what: str
    count: int
    examples: tuple[str, ...]
    advice: str


class Seen(NamedTuple):
    """The readable images of a split.

    Attributes:
        numbers: Their numbers in it `[n]`.
        sizes: Height and width `[n, 2]`.
        notes: What `Split.inspect` gave for each.
    """

    numbers: NDArray[np.int64]
    sizes: NDArray[np.int64]
    notes: Sequence[object]


@dataclass
class AnnotationCheck:
    """What a split finds in its annotations.

    Attributes:
        counts: Images, or instances, of each class `[C]`.
        issues: What is wrong.
        notes: What else is good to know, a sentence each.
        unusable: Names of images whose annotations can't be used.
        pixels: Pixels of each class, and at last those that are not counted `[C + 1]`; None without masks.
        unknown_values: Values or colours of masks that are no class: how many pixels and masks have them.
    """

    counts: NDArray[np.int64]
    issues: list[Issue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    pixels: NDArray[np.int64] | None = None
    unknown_values: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, what: str, lines: Sequence[str], advice: str) -> None:
        """Note an issue, if there is any example of it."""
        if lines:
            self.issues.append(Issue(what, len(lines), tuple(lines[:EXAMPLES]), advice))


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of some numbers."""

    smallest: float
    median: float
    largest: float


@dataclass
class CheckReport(Result):
    """All that a check found.

    Attributes:
        source: What the user named.
        kind: Which sort of source it is.
        images: Images of each split.
        counts: Readable images of each class in each split.
        unreadable: Images that can't be read.
        blank: Images that show one colour only.
        empty_classes: Classes without a readable image.
        missing_classes: For each split, the classes that only others have.
        tiny_classes: Classes with few training images, and how many.
        imbalance: Largest and smallest class; None with fewer than two classes.
        copies: The same image several times.
        modes: Images of each mode, by Pillow's names; bare pixels have none.
        rotated: Images that their EXIF data turn.
        heights: Of readable images; None if there are none. Likewise `widths` and `aspects` (width / height).
        odd_sizes: Images much smaller, larger or longer than the others.
        img_size: The image size to train with.
        task: What the annotations are for.
        issues: What is wrong with annotations, and other issues.
        notes: What else is good to know of them, a sentence each.
        one_label: Whether each image has one class.
        dense: Whether instances or pixels are annotated; then `img_size` is the shorter side of images.
        counted: What classes are counted in: `image` or `instance`.
        fractions: Of masks, the fraction of pixels of each class.
        unusable: Names of images whose annotations can't be used.
        refusal: Why nothing can be trained with these data as they are; empty if it can.
        suspects: Annotations that a model contradicts, the least probable first.
        look_alikes: Images with different labels that a model can hardly tell apart, the most alike first.
        outliers: Images far from all others by a model's features, the farthest first.
        judged_by: What judged the labels; empty if nothing did.
    """

    source: str
    kind: str
    images: dict[str, int]
    counts: dict[str, dict[str, int]]
    unreadable: list[Unreadable] = field(default_factory=list)
    blank: list[ImageRef] = field(default_factory=list)
    empty_classes: list[str] = field(default_factory=list)
    missing_classes: dict[str, list[str]] = field(default_factory=dict)
    tiny_classes: dict[str, int] = field(default_factory=dict)
    imbalance: Imbalance | None = None
    copies: list[Copies] = field(default_factory=list)
    modes: dict[str, int] = field(default_factory=dict)
    rotated: int = 0
    heights: Spread | None = None
    widths: Spread | None = None
    aspects: Spread | None = None
    odd_sizes: list[OddSize] = field(default_factory=list)
    img_size: int | None = None
    task: str = "classify"
    issues: list[Issue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    one_label: bool = True
    dense: bool = False
    counted: str = "image"
    fractions: dict[str, float] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)
    refusal: str = ""
    suspects: list[Suspect] = field(default_factory=list)
    look_alikes: list[LookAlike] = field(default_factory=list)
    outliers: list[Outlier] = field(default_factory=list)
    judged_by: str = ""

    @property
    def likely_wrong(self) -> int:
        """How many annotations a model holds for less probable than 5 %."""
        return sum(suspect.score < UNLIKELY for suspect in self.suspects)

    @property
    def leaks(self) -> list[Copies]:
        """Images that are in several splits."""
        return [copies for copies in self.copies if copies.leaks]

    @property
    def disputed(self) -> list[Copies]:
        """Images with several labels."""
        return [copies for copies in self.copies if copies.disagree]

    @property
    def repeated(self) -> list[Copies]:
        """Images that are several times in one split, with one label."""
        return [copies for copies in self.copies if not copies.leaks and not copies.disagree]

    @property
    def problems(self) -> list[str]:
        """What should be looked at before training, a few words each."""
        found = [
            (len(self.unreadable), "unreadable image"),
            (len(self.blank), "blank image"),
            (len(self.empty_classes), "empty class"),
            (len({name for names in self.missing_classes.values() for name in names}), "class missing in a split"),
            (len(self.tiny_classes), f"class with fewer than {TINY} {self.things}"),
            (len(self.leaks), "image in several splits"),
            (len(self.disputed), "image with different labels"),
            (len(self.repeated), f"image repeated in {'images to be split' if self.to_be_split else 'a split'}"),
        ]
        found += [(issue.count, issue.what) for issue in self.issues]
        found += [
            (self.likely_wrong, "suspicious label"),
            (len(self.look_alikes), "pair of look-alikes, labelled apart"),
        ]
        sentences = [f"{count:,} {plural(count, words)}" for count, words in found if count]
        if self.imbalance and self.imbalance.ratio >= IMBALANCED:
            sentences.append(f"classes of very different size ({self.imbalance.ratio:.3g} : 1)")
        return [*sentences, *(["too few images to train with"] if self.refusal else [])]

    @property
    def to_be_split(self) -> bool:
        """Whether training will take its validation images out of the training images."""
        return "train" in self.images and "val" not in self.images

    @property
    def things(self) -> str:
        """What classes are counted in."""
        return f"training {plural(2, self.counted)}"

    @property
    def to_remove(self) -> list[str]:
        """Names of the images to remove: unreadable and unusable ones, and copies that are or will be on both sides."""
        apart = [*self.leaks, *(self.repeated if self.to_be_split else ())]
        surplus = [image for copies in apart for image in copies.surplus]
        return list(dict.fromkeys([*(image.name for image in [*self.unreadable, *surplus]), *self.unusable]))

    def __repr__(self) -> str:
        return f"CheckReport({self.source!r}, images={self.images}, problems={self.problems})"

    def to_dict(self) -> dict[str, Any]:
        """The report as values that JSON knows, with the verdict first."""
        rest = asdict(self)
        for copies, entry in zip(self.copies, rest["copies"], strict=True):
            entry.update(leaks=copies.leaks, disagree=copies.disagree)
        if self.imbalance:
            rest["imbalance"]["ratio"] = self.imbalance.ratio
        return {"problems": self.problems, **rest, "to_remove": self.to_remove}


def plural(count: int, words: str) -> str:
    """The words with their first noun in the plural unless there is one of it.

    Example:
        >>> plural(2, "empty class"), plural(2, "image in several splits"), plural(1, "blank image")
        ('empty classes', 'images in several splits', 'blank image')
    """
    if count == 1:
        return words
    parts = words.split(" ")
    for index, word in enumerate(parts):
        if word in PLURALS:
            return " ".join([*parts[:index], PLURALS[word], *parts[index + 1 :]])
    raise ValueError(f"No noun with a known plural in: {words}.")
