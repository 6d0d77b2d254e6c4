"""Check data before a night is spent on training with them."""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ..console import percent
from .annotations import EXAMPLES, AnnotationIssues, DenseSplit, FileDenseSplit, InstanceSplit, spell_size
from .duplicates import Groups, same_bytes, same_picture
from .file_system import join
from .image import is_image_name
from .issues import IMBALANCED, TINY, CheckReport, Copies, Found, Imbalance, Issue, OddSize, Spread, Unreadable, plural
from .samples import Data
from .sizes import choose_side, choose_size, measure_sizes
from .sources.masks import MaskPixels, MaskSplit
from .survey import Place, Survey, survey_images

if TYPE_CHECKING:
    from .survey import Survey


FAR = 4.0  # times the median: from there on a size is odd
LONG = 4.0  # aspect ratio of a panorama, of which a square crop shows little


def check_data(data: Data, workers: int | None = None) -> CheckReport:
    """Read all images and report what would spoil a training run.

    Args:
        data: What `open_data` opened.
        workers: Processes that read images; 0 reads in this one. As many as there are cores if None.

    Example:
        >>> from nearsight.data import open_data
        >>> report = check_data(open_data("digits"))
        >>> report.problems, report.heights.median, report.img_size
        ([], 8.0, 32)
    """
    splits = data.splits()
    survey = survey_images(splits, workers)
    report = CheckReport(
        source=data.source,
        kind=data.kind,
        images={name: len(split) for name, split in splits.items()},
        counts=count_classes(data, survey) if data.task == "classify" else {},
        task=data.task,
    )
    report.unreadable = [Unreadable(*identify(data, place), reason) for place, reason in survey.unreadable.items()]
    report.blank = [Found(*identify(data, survey.places[index])) for index in np.flatnonzero(survey.blank)]
    judge_sizes(report, data, survey)
    if data.task != "classify":
        judge_annotations(report, data, survey)
    judge_classes(report)
    if data.kind == "folder":
        judge_folders(report, data)
    report.copies = find_copies(data, survey)
    report.modes = dict(Counter(mode for mode in survey.modes if mode).most_common())
    report.rotated = int(survey.rotated.sum())
    return report


def identify(data: Data, place: Place) -> tuple[str, str, str]:
    """Split, name and class of an image."""
    name, index = place
    split = data.splits()[name]
    # An image with objects or regions has several classes: its label, by which it is split, is none of its own.
    return name, split.name(index), data.classes[split.labels[index]] if data.task == "classify" else ""


def count_classes(data: Data, survey: Survey) -> dict[str, dict[str, int]]:
    """Readable images of each class in each split."""
    counts = {title: dict.fromkeys(data.splits(), 0) for title in data.classes}
    for (split, _), label in zip(survey.places, survey.labels, strict=True):
        counts[data.classes[label]][split] += 1
    return counts


def judge_classes(report: CheckReport) -> None:
    """Find classes that are empty, missing in a split, tiny, or much smaller than others."""
    report.empty_classes = [title for title, count in report.counts.items() if not sum(count.values())]
    present = {title: count for title, count in report.counts.items() if sum(count.values())}
    missing = {split: [title for title in present if not present[title][split]] for split in report.images}
    report.missing_classes = {split: titles for split, titles in missing.items() if titles}
    learnt = {title: count.get("train", sum(count.values())) for title, count in present.items()}
    learnt = {title: count for title, count in learnt.items() if count}
    report.tiny_classes = {title: count for title, count in learnt.items() if count < TINY}
    if len(learnt) > 1:
        largest, smallest = max(learnt, key=learnt.__getitem__), min(learnt, key=learnt.__getitem__)
        report.imbalance = Imbalance(largest, learnt[largest], smallest, learnt[smallest])


def judge_folders(report: CheckReport, data: Data) -> None:
    """Find folders that are passed over, and folders that may be no classes."""
    if data.left_out:
        lines = tuple(f"{name}: {count:,}" for name, count in data.left_out.items())
        advice = "put them into class folders inside train, val or test, or move them elsewhere"
        report.issues.append(Issue("image passed over", sum(data.left_out.values()), lines, advice))
    inside: dict[str, set[str]] = {}
    for split in data.splits().values():
        for index, label in enumerate(split.labels.tolist()):
            title = data.classes[label]
            folder, _, _ = f"/{split.name(index)}".partition(f"/{title}/")[2].rpartition("/")
            inside.setdefault(title, set()).add(folder.split("/")[0])
    first = next(iter(inside.values()))
    if len(inside) > 1 and len(first) > 1 and "" not in first and all(names == first for names in inside.values()):
        report.issues.append(
            Issue(
                "class with the same folders inside",
                len(inside),
                tuple(sorted(first)),
                f"if these are the classes, give one of the folders that they are in, such as {next(iter(inside))}",
            )
        )


def find_copies(data: Data, survey: Survey) -> list[Copies]:
    """Pictures that occur several times, those in several splits first, then those with several labels."""
    exact = same_bytes(survey.digests)
    distinct = ~survey.blank  # nothing tells blank images apart
    for group in exact:
        distinct[group[1:]] = False
    numbers = np.flatnonzero(distinct)
    near = numbers[same_picture(survey.thumbnails[numbers], survey.labels[numbers])]
    groups = Groups(len(survey.places))
    groups.join([*exact, *near.tolist()])
    copies = [
        Copies(
            exact=len({survey.digests[index] for index in group}) == 1,
            images=tuple(Found(*identify(data, survey.places[index])) for index in group),
        )
        for group in groups.several()
    ]
    return sorted(copies, key=lambda found: (not found.leaks, not found.disagree, not found.exact))


def judge_sizes(report: CheckReport, data: Data, survey: Survey) -> None:
    """Measure heights, widths and aspects, find odd ones, and suggest the size to train with."""
    if not len(survey.sizes):
        return
    heights, widths = survey.sizes.T
    report.heights, report.widths, report.aspects = spread(heights), spread(widths), spread(widths / heights)
    report.img_size = choose_size(float(np.median(np.minimum(heights, widths))))
    shorter, longer = survey.sizes.min(axis=1), survey.sizes.max(axis=1)
    reasons = {
        "small": shorter * FAR < np.median(shorter),
        "large": longer > FAR * np.median(longer),
        "long": longer >= LONG * shorter,
    }
    for index in np.flatnonzero(np.any(list(reasons.values()), axis=0)):
        why = ", ".join(why for why, odd in reasons.items() if odd[index])
        found = identify(data, survey.places[index])
        report.odd_sizes.append(OddSize(*found, int(heights[index]), int(widths[index]), why))


def spread(values: NDArray[np.number]) -> Spread:
    """Smallest, middle and largest of some numbers."""
    return Spread(float(np.min(values)), float(np.median(values)), float(np.max(values)))


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


def judge_annotations(report: CheckReport, data: Data, survey: "Survey") -> None:
    """Add to a report what is wrong with annotations, and count their classes."""
    splits = {name: split for name, split in data.splits().items() if isinstance(split, DenseSplit)}
    report.counts = {title: dict.fromkeys(splits, 0) for title in data.classes}
    source = data.train if data.train is not None else next(iter(splits.values()))
    if len(survey.places):
        report.img_size = choose_side(data.task, measure_sizes(source))
    strange = StrangeCodes(Counter(), Counter())
    for name, split in splits.items():
        report.notes += [note for note in split.issues.notes if note not in report.notes]
        places = [place for place, (where, _) in enumerate(survey.places) if where == name]
        numbers = np.array([survey.places[place][1] for place in places], dtype=np.int64)
        if isinstance(split, InstanceSplit):
            judge_instances(report, name, split, numbers, survey.sizes[places], data.classes)
        elif isinstance(split, MaskSplit):
            notes = [survey.notes[place] for place in places]
            judge_masks(report, name, split, numbers, survey.sizes[places], notes, strange)
        else:
            count_made(report, name, split, data.classes)
    report.issues += strange.issues(next(iter(splits.values())))
    files = [split for split in splits.values() if isinstance(split, FileDenseSplit)]
    report.issues = [*noted_issues(split.issues for split in files), *report.issues, *unnamed_images(files)]
    report.issues = merge(report.issues)


def noted_issues(every: Iterable[AnnotationIssues]) -> list[Issue]:
    """What was noted while annotations were read."""
    return [
        Issue(what, count, tuple(issues.examples[what]), ADVICE[what])
        for issues in every
        for what, count in issues.counts.items()
    ]


def merge(issues: Sequence[Issue]) -> list[Issue]:
    """The issues of all splits, each sort once."""
    merged: dict[str, Issue] = {}
    for issue in issues:
        before = merged.get(issue.what)
        if before is None:
            merged[issue.what] = issue
        else:
            examples = (*before.examples, *issue.examples)[:EXAMPLES]
            merged[issue.what] = Issue(issue.what, before.count + issue.count, examples, issue.advice)
    return list(merged.values())


def unnamed_images(splits: Sequence[FileDenseSplit]) -> list[Issue]:
    """Images that lie beside annotated ones, but that no annotation names."""
    objects = [split for split in splits if isinstance(split, InstanceSplit) and not split.relative]
    if not objects:
        return []  # masks and YOLO's labels are found from the images
    fs = objects[0].pictures.fs
    named = {path for split in objects for path in split.pictures.paths}
    folders = {path.rpartition("/")[0] for path in named}
    beside = (join(folder, name) for folder in sorted(folders) for name in fs.files(folder) if is_image_name(name))
    left = [path for path in beside if path not in named]
    if not left:
        return []
    return [Issue("image that no annotation names", len(left), tuple(left[:EXAMPLES]), "not used")]


@dataclass
class StrangeCodes:
    """Values or colours of masks that mean nothing: how many pixels and masks have them."""

    pixels: Counter[int]
    masks: Counter[int]

    def issues(self, split: DenseSplit) -> list[Issue]:
        """What there is to say of them, the most frequent first."""
        if not self.pixels or not isinstance(split, MaskSplit):
            return []
        lines = [
            f"{split.label_map.spell(code)}: {count:,} pixels in {self.masks[code]:,} masks"
            for code, count in self.pixels.most_common(EXAMPLES)
        ]
        what = (
            "colour value without a meaning in masks" if split.label_map.colours else "value without a meaning in masks"
        )
        return [Issue(what, len(self.pixels), tuple(lines), "these pixels are not counted")]


def judge_masks(
    report: CheckReport,
    name: str,
    split: MaskSplit,
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
        if not isinstance(note, MaskPixels):
            unreadable.append(f"{image}: {note}")
            report.spoiled.append(image)
            continue
        if list(note.size) != size:
            other_size.append(f"{image}: {spell_size(size)}, its mask {spell_size(note.size)}")
            report.spoiled.append(image)
            continue
        codes = np.array(list(note.codes))
        classes = split.label_map.apply(codes)
        known = np.isin(codes, split.label_map.codes)
        for code, kind, is_known in zip(codes.tolist(), classes.tolist(), known.tolist(), strict=True):
            if not is_known:
                strange.pixels[code] += note.codes[code]
                strange.masks[code] += 1
            pixels[kind] += note.codes[code]
        for kind in set(classes.tolist()) & set(range(len(split.label_map.classes))):
            report.counts[split.label_map.classes[kind]][name] += 1
    report.issues += list_issue("mask that can't be read", unreadable, "their images are left out")
    report.issues += list_issue("mask of another size than the image", other_size, "their images are left out")
    if name == "train" or not report.shares:
        note_pixels(report, split, pixels)


def note_pixels(report: CheckReport, split: MaskSplit, pixels: Counter[int]) -> None:
    """Note the share of each class, and of what is not counted."""
    total = sum(pixels.values())
    if not total:
        return
    counted = sum(pixels[kind] for kind in range(len(split.label_map.classes)))
    report.shares = {
        title: pixels[kind] / counted if counted else 0.0 for kind, title in enumerate(split.label_map.classes)
    }
    if counted < total:
        report.notes.append(f"not counted: {percent(1 - counted / total)} of the pixels")


def count_made(report: CheckReport, name: str, split: DenseSplit, classes: Sequence[str]) -> None:
    """Count the classes of drawn scenes: objects, or images with regions of a class."""
    from .instances import Instances

    for index in range(len(split)):
        found = split.annotation(index)
        if isinstance(found, Instances):
            kinds = found.labels.tolist()
        else:
            kinds = [kind for kind in np.unique(found).tolist() if kind < len(classes)]
        for kind in kinds:
            report.counts[classes[kind]][name] += 1


def list_issue(what: str, examples: Sequence[str], advice: str) -> list[Issue]:
    """A issue if there are any."""
    return [Issue(what, len(examples), tuple(examples[:EXAMPLES]), advice)] if examples else []


SLACK = 1.0  # pixels by which a box may stick out: tools round in either direction
LEAST = 4  # pixels of an object's shorter side below which no model here sees it
MANY = 100  # objects of an image, beyond which some are never counted as found
WORTH_A_NOTE = 0.01  # share of tiny objects from which they are worth a word


def judge_instances(
    report: CheckReport,
    name: str,
    split: InstanceSplit,
    numbers: NDArray[np.int64],
    sizes: NDArray[np.int64],
    classes: Sequence[str],
) -> None:
    """Find images of another size than annotated and boxes that are wrong; count the objects of each class.

    Args:
        report: Gets the issues.
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


def judge_annotated_sizes(report: CheckReport, split: InstanceSplit, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which images `[n]` can be read and have the size that their annotations say."""
    readable = np.any(sizes, axis=1)
    wrong = np.flatnonzero(readable & split.sizes.any(axis=1) & (split.sizes != sizes).any(axis=1))
    if len(wrong):
        report.spoiled += [split.name(int(index)) for index in wrong]
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


def judge_boxes(
    report: CheckReport,
    split: InstanceSplit,
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
        ("object annotated twice", again, "remove one of each: a model is punished for issue it once"),
    ):
        found = np.flatnonzero(which)
        if len(found):
            examples = tuple(box_line(split, boxes[row], int(image[row]), frame[row]) for row in found[:EXAMPLES])
            report.issues.append(Issue(what, len(found), examples, advice))


def box_line(split: InstanceSplit, box: NDArray[np.float64], image: int, frame: NDArray[np.int64]) -> str:
    """A box for people."""
    left, top, right, bottom = (f"{value:.6g}" for value in box.tolist())
    return f"{split.name(image)} ({spell_size(frame[::-1].tolist())}): x {left} to {right}, y {top} to {bottom}"


def judge_tiny(
    report: CheckReport,
    split: InstanceSplit,
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
    report.issues.append(Issue("tiny object", len(tiny), lines, advice))


def note_images(report: CheckReport, name: str, split: InstanceSplit) -> None:
    """Note images without objects or with very many, crowds, and masks that only some objects have."""
    counts = np.diff(split.starts)
    notes = [f"{name}: {len(split.kinds):,} objects in {len(split):,} images"]
    if (counts == 0).any():
        notes.append(f"{int((counts == 0).sum()):,} images without objects")
    if (counts > MANY).any():
        notes.append(f"{int((counts > MANY).sum()):,} with more than {MANY}, of which {MANY} can be found")
    if split.crowd.any():
        notes.append(f"{int(split.crowd.sum()):,} crowds or difficult objects, which are not counted")
    there = split.packed.there | split.crowd
    if there.any() and not split.packed.there.all() and not there.all():
        notes.append(f"{int((~there).sum()):,} objects without a mask, so that boxes alone are learnt")
    report.notes.append(", ".join(notes))


SHOWN = 10  # lines of a section
MODES = {
    "1": "black and white",
    "L": "grey",
    "LA": "grey with alpha",
    "P": "palette",
    "PA": "palette with alpha",
    "RGBA": "alpha",
    "CMYK": "CMYK",
    "I": "32-bit grey",
    "F": "floating-point grey",
}

Section = tuple[str, list[str]]  # title and lines


def render_report(report: CheckReport, patches: Mapping[str, int | None]) -> RenderableType:
    """The report for people: the verdict, then what there is to say, then how to train.

    Args:
        report: What the check found.
        patches: Patch sizes of some models at the suggested image size.
    """
    parts: list[RenderableType] = [
        Text(printable(verdict(report)), style="bold red" if report.problems else "bold green")
    ]
    sections = [
        *bad_image_sections(report),
        *annotation_sections(report),
        *class_sections(report),
        *copy_sections(report),
        *size_sections(report),
    ]
    for title, lines in sections:
        parts += [Text(), Text(printable(title), style="bold")]
        parts += [Padding(Text(printable(line), overflow="fold"), (0, 0, 0, 2), expand=False) for line in lines]
    if report.img_size:
        parts += [Text(), Text("To train with these images", style="bold")]
        advice = size_advice(report, patches)
        parts.append(Padding(Text(advice), (0, 0, 0, 2), expand=False))
        # In one line however long, so that it can be copied.
        parts.append(Text(f"  {printable(train_command(report))}", no_wrap=True, overflow="ignore"))
    return Group(*parts)


def verdict(report: CheckReport) -> str:
    """One sentence: how much was looked at, and what is wrong with it."""
    total = sum(report.images.values())
    classes = len(report.counts)
    extent = f"{total:,} {plural(total, 'image')} of {classes:,} {plural(classes, 'class')}"
    problems = report.problems
    if not problems:
        return f"No problems found in {extent}."
    return f"{len(problems)} problem{'s' * (len(problems) > 1)} in {extent}: {', '.join(problems)}."


def bad_image_sections(report: CheckReport) -> Iterator[Section]:
    """Images that can't be read, or show nothing."""
    if report.unreadable:
        lines = [f"{image.name}: {image.reason}" for image in report.unreadable]
        yield f"Unreadable images ({len(lines):,})", first_lines(lines)
    if report.blank:
        yield (
            f"Blank images, of one colour only ({len(report.blank):,})",
            first_lines(image.name for image in report.blank),
        )


def size_advice(report: CheckReport, patches: Mapping[str, int | None]) -> str:
    """The image size to train with, and what follows from it."""
    if report.task != "classify":
        return f"Images with a shorter side of {report.img_size} pixels."
    chosen = ", ".join(f"{patch} for {name}" for name, patch in patches.items())
    return f"Images of {report.img_size} pixels; the patch size follows from it: {chosen}."


def annotation_sections(report: CheckReport) -> Iterator[Section]:
    """What is wrong with annotations of objects or regions, and what else is worth knowing of them."""
    for issue in report.issues:
        what = plural(issue.count, issue.what)
        title = f"{what[0].upper()}{what[1:]} ({issue.count:,}): {issue.advice}"
        more = issue.count - len(issue.examples)
        yield title, [*issue.examples[:SHOWN], *([f"... {more:,} more"] if more > 0 else [])]
    if report.notes:
        yield "Annotations", report.notes


def class_sections(report: CheckReport) -> Iterator[Section]:
    """Classes that are empty, missing, tiny, or of very different size."""
    lines = []
    if report.empty_classes:
        lacking = {"detect": "an object", "segment": "a pixel"}.get(report.task, "a readable image")
        lines.append(f"without {lacking}: {listed(report.empty_classes)}")
    lines += [f"missing in {split}: {listed(missing)}" for split, missing in report.missing_classes.items()]
    if report.tiny_classes:
        tiny = [f"{title} ({count})" for title, count in report.tiny_classes.items()]
        lines.append(f"fewer than {TINY} {report.things}: {listed(tiny)}")
    unequal = report.imbalance
    if unequal and unequal.ratio >= IMBALANCED:
        advice = "; train with --class-weights balanced" if report.task == "classify" else ""
        lines.append(
            f"very different size: {unequal.largest} has {unequal.most:,} {report.things}, {unequal.smallest} "
            f"{unequal.fewest:,} ({unequal.ratio:.3g} : 1){advice}"
        )
    if report.shares:
        ordered = sorted(report.shares, key=report.shares.__getitem__, reverse=True)
        lines.append("share of pixels: " + listed([f"{title} {percent(report.shares[title])}" for title in ordered]))
    if lines:
        yield "Classes", lines


def copy_sections(report: CheckReport) -> Iterator[Section]:
    """Pictures that occur several times."""
    repeated = "Pictures repeated in a split"
    if report.to_be_split:
        repeated = "Pictures repeated: a copy may be set aside for validation while another is trained with"
    kinds = {
        "Pictures in several splits: a model is tested on what it has learnt": report.leaks,
        "Pictures with different labels: at most one is right": report.disputed,
        repeated: report.repeated,
    }
    for title, copies in kinds.items():
        if copies:
            yield f"{title} ({len(copies):,})", first_lines(copies_line(found) for found in copies)


def copies_line(copies: Copies) -> str:
    """The names of copies, their labels where these differ, and how sure it is that they are copies."""
    if len({image.name for image in copies.images}) == 1:
        return f"{copies.images[0].name} is listed for {' and for '.join(image.split for image in copies.images)}"
    images = [f"{image.name} ({image.label})" if copies.disagree else image.name for image in copies.images]
    return f"{listed(images, ' = ')}; {'same bytes' if copies.exact else 'same picture by its looks'}"


def size_sections(report: CheckReport) -> Iterator[Section]:
    """How images are stored, and how large they are."""
    lines = ["splits: " + ", ".join(f"{split} {count:,}" for split, count in report.images.items())]
    if set(report.modes) - {"RGB"}:
        counted = ", ".join(f"{mode_name(mode)} {count:,}" for mode, count in report.modes.items())
        lines.append(f"modes: {counted}; all are read as RGB")
    if report.rotated:
        lines.append(f"turned upright by their EXIF data: {report.rotated:,}")
    if report.heights and report.widths and report.aspects:
        lines.append(f"height {range_text(report.heights)}; width {range_text(report.widths)}")
        if report.aspects.smallest != report.aspects.largest:
            lines.append(f"width / height {range_text(report.aspects)}")
    yield "Images", lines
    if report.odd_sizes:
        odd = [f"{image.name}: {image.height}×{image.width}, {image.why}" for image in report.odd_sizes]
        yield f"Images of odd size, height × width ({len(odd):,})", first_lines(odd)


def train_command(report: CheckReport) -> str:
    """The command that trains with these images."""
    unequal = report.task == "classify" and report.imbalance and report.imbalance.ratio >= IMBALANCED
    weights = " --class-weights balanced" if unequal else ""
    task = "" if report.task == "classify" else f" --task {report.task}"
    return f"nearsight train {shlex.quote(report.source)}{task} --img-size {report.img_size}{weights}"


def mode_name(mode: str) -> str:
    """A mode for people who don't know Pillow's names."""
    return "16-bit grey" if mode.startswith("I;16") else MODES.get(mode, mode)


def range_text(values: Spread) -> str:
    """Smallest to largest with the median, or the one value there is."""
    if values.smallest == values.largest:
        return f"{values.smallest:.4g}"
    return f"{values.smallest:.4g} to {values.largest:.4g}, median {values.median:.4g}"


def first_lines(lines: Iterable[str]) -> list[str]:
    """The first lines, and how many more there are."""
    everything = list(lines)
    more = len(everything) - SHOWN
    return everything if more <= 0 else [*everything[:SHOWN], f"... and {more:,} more; --json lists all"]


def listed(values: Sequence[str], between: str = ", ") -> str:
    """The first names in a line, and how many more there are."""
    more = len(values) - SHOWN
    return between.join(values[:SHOWN]) + (f"{between}... ({more:,} more)" if more > 0 else "")


def printable(text: str) -> str:
    """The text with a question mark for what is no character, as in file names of another encoding."""
    return text.encode("utf-8", "replace").decode("utf-8")


def fix_list(report: CheckReport) -> bytes:
    """The content of a file with the names of the images to remove, one in a line."""
    return "".join(f"{name}\n" for name in report.to_remove).encode("utf-8", "surrogateescape")
