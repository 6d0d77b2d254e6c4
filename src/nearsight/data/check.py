"""Check data before a night is spent on training with them."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ..console import percent
from .annotations import DenseSplit, unlisted_images
from .duplicates import Groups, near_duplicates, same_bytes
from .groups import guess_groups, shared_groups
from .issues import (
    EXAMPLES,
    IMBALANCED,
    TINY,
    CheckReport,
    Copies,
    ImageRef,
    Imbalance,
    Issue,
    OddSize,
    Seen,
    Spread,
    Unreadable,
    plural,
)
from .open import open_data
from .samples import Data
from .sizes import choose_side, choose_size, measure_sizes
from .split import complete_splits
from .survey import ImageKey, Survey, survey_images

FAR = 4.0  # times the median: from there on a size is odd
LONG = 4.0  # aspect ratio of a panorama, of which a square crop shows little


def check_data(
    data: Data | str | PathLike[str],
    task: str | None = None,
    *,
    groups: str | None = None,
    workers: int | None = None,
) -> CheckReport:
    """Read all images and report what would spoil a training run.

    Args:
        data: A source as for `open_data`, or what that opened.
        task: As for `open_data`, for a source.
        groups: Which images must stay together (`nearsight.data.groups.group_keys`); None looks whether their names
            suggest series.
        workers: Processes that read images; 0 reads in this one. As many as there are cores if None.

    Raises:
        ValueError: There are no such data, or they are not for this task.

    Example:
        >>> report = check_data("digits")
        >>> report.problems, report.heights.median, report.img_size
        ([], 8.0, 32)
    """
    return check_surveyed(data if isinstance(data, Data) else open_data(data, task), groups, workers)[0]


def check_surveyed(data: Data, groups: str | None, workers: int | None) -> tuple[CheckReport, Survey]:
    """What `check_data` gives, and what it has seen of each image."""
    splits = data.splits()
    survey = survey_images(splits, workers)
    report = CheckReport(
        source=data.source,
        kind=data.kind,
        images={name: len(split) for name, split in splits.items()},
        counts={title: dict.fromkeys(splits, 0) for title in data.classes},
        task=data.task,
        one_label=data.labels_are_classes,
        counted=next((split.counted for split in splits.values()), "image"),
    )
    report.unreadable = [Unreadable(*identify(data, entry), reason) for entry, reason in survey.unreadable.items()]
    report.blank = [ImageRef(*identify(data, survey.entries[index])) for index in np.flatnonzero(survey.blank)]
    judge_sizes(report, data, survey)
    judge_annotations(report, data, survey)
    judge_classes(report)
    if data.kind == "folder":
        judge_folders(report, data)
    judge_groups(report, data, groups)
    report.copies = find_copies(data, survey)
    report.modes = dict(Counter(mode for mode in survey.modes if mode).most_common())
    report.rotated = int(survey.rotated.sum())
    try:
        complete_splits(data, groups=groups)
    except ValueError as error:  # as training would say
        report.refusal = str(error)
    return report, survey


def identify(data: Data, entry: ImageKey) -> tuple[str, str, str]:
    """Split, name and label of an image."""
    name, index = entry
    split = data.splits()[name]
    return name, split.name(index), split.label_text(index, data.classes)


def judge_annotations(report: CheckReport, data: Data, survey: Survey) -> None:
    """Ask the splits what is wrong with their annotations, and count the classes."""
    found: list[Issue] = []
    unknown: Counter[str] = Counter()
    masks: Counter[str] = Counter()
    for name, split in data.splits().items():
        rows = [row for row, (where, _) in enumerate(survey.entries) if where == name]
        numbers = np.array([survey.entries[row][1] for row in rows], dtype=np.int64)
        seen = Seen(numbers, survey.sizes[rows], [survey.notes[row] for row in rows])
        checked = split.check(name, seen, data.classes, report.img_size or 0)
        for title, count in zip(data.classes, checked.counts.tolist(), strict=True):
            report.counts[title][name] = count
        found += checked.issues
        report.notes += [note for note in checked.notes if note not in report.notes]
        report.unusable += checked.unusable
        for value, (pixels, times) in checked.unknown_values.items():
            unknown[value] += pixels
            masks[value] += times
        if checked.pixels is not None and checked.pixels.any() and (name == "train" or not report.fractions):
            counted = max(1, int(checked.pixels[:-1].sum()))
            fractions = (checked.pixels[:-1] / counted).tolist()
            report.fractions = dict(zip(data.classes, fractions, strict=True))
            if checked.pixels[-1]:
                ignored = percent(checked.pixels[-1] / checked.pixels.sum())
                report.notes.append(f"not counted: {ignored} of the pixels")
    if unknown:
        lines = [
            f"{value}: {count:,} pixels in {masks[value]:,} masks" for value, count in unknown.most_common(EXAMPLES)
        ]
        what = f"{'colour ' * next(iter(unknown)).startswith('#')}value without a meaning in masks"
        found.append(Issue(what, len(unknown), tuple(lines), "these pixels are not counted"))
    report.issues += merge([*found, *unlisted_images(data.splits().values())])


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


def judge_groups(report: CheckReport, data: Data, rule: str | None) -> None:
    """Find images that belong together on two sides of a split, by what says so, or by what their names suggest."""
    told = rule is not None or any(split.group_names is not None for split in data.splits().values())
    if told:
        apart = [f"{key}: {' and '.join(splits)}" for key, splits in shared_groups(data, rule).items()]
        advice, what = "a model is tested on what it has learnt", "group of images in several splits"
    else:
        guess = guess_groups(data)
        if guess is None:
            return
        apart, what = list(guess.apart), "group of images, by their names, in several splits"
        advice = f"if they are of one patient, scene or video, divide them anew with --groups {shlex.quote(guess.rule)}"
        if report.to_be_split:
            report.notes.append(
                f"names suggest {guess.groups:,} groups of images; if these are patients, scenes or videos, train with "
                f"--groups {shlex.quote(guess.rule)}"
            )
    if apart:
        report.issues.append(Issue(what, len(apart), tuple(apart[:EXAMPLES]), advice))


def find_copies(data: Data, survey: Survey) -> list[Copies]:
    """Images that occur several times, those in several splits first, then those with several labels."""
    equal = same_bytes(survey.digests)
    distinct = ~survey.blank  # nothing tells blank images apart
    for group in equal:
        distinct[group[1:]] = False
    numbers = np.flatnonzero(distinct)
    near = numbers[near_duplicates(survey.thumbnails[numbers], survey.labels[numbers])]
    groups = Groups(len(survey.entries))
    groups.join([*equal, *near.tolist()])
    copies = [
        Copies(
            exact=len({survey.digests[index] for index in group}) == 1,
            images=tuple(ImageRef(*identify(data, survey.entries[index])) for index in group),
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
    source = data.train if data.train is not None else next(iter(data.splits().values()))
    report.dense = isinstance(source, DenseSplit)
    if report.dense:
        with suppress(ValueError):  # there is not one image that its annotation fits to
            report.img_size = choose_side(measure_sizes(source))
    shorter, longer = survey.sizes.min(axis=1), survey.sizes.max(axis=1)
    reasons = {
        "small": shorter * FAR < np.median(shorter),
        "large": longer > FAR * np.median(longer),
        "long": longer >= LONG * shorter,
    }
    for index in np.flatnonzero(np.any(list(reasons.values()), axis=0)):
        why = ", ".join(why for why, odd in reasons.items() if odd[index])
        found = identify(data, survey.entries[index])
        report.odd_sizes.append(OddSize(*found, int(heights[index]), int(widths[index]), why))


def spread(values: NDArray[np.number]) -> Spread:
    """Smallest, middle and largest of some numbers."""
    return Spread(float(np.min(values)), float(np.median(values)), float(np.max(values)))


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


SHOWN = 10  # lines of a section
MODES = {  # for people who don't know Pillow's names
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
        *label_sections(report),
        *copy_sections(report),
        *size_sections(report),
    ]
    for title, lines in sections:
        parts += [Text(), Text(printable(title), style="bold")]
        parts += [Padding(Text(printable(line), overflow="fold"), (0, 0, 0, 2), expand=False) for line in lines]
    if report.refusal:
        parts += [Text(), Text("These data can't be trained with yet", style="bold")]
        parts.append(Padding(Text(printable(report.refusal)), (0, 0, 0, 2), expand=False))
    elif report.img_size:
        parts += [Text(), Text("To train with these images", style="bold")]
        chosen = ", ".join(f"{patch} for {name}" for name, patch in patches.items())
        advice = f"Images of {report.img_size} pixels; the patch size follows from it: {chosen}."
        if not patches:
            advice = f"Images with a shorter side of {report.img_size} pixels."
        parts.append(Padding(Text(advice), (0, 0, 0, 2), expand=False))
        task = "" if report.one_label else f" --task {report.task}"
        unequal = report.one_label and report.imbalance and report.imbalance.ratio >= IMBALANCED
        weights = " --class-weights balanced" if unequal else ""
        command = f"nearsight train {shlex.quote(report.source)}{task} --img-size {report.img_size}{weights}"
        # In one line however long, so that it can be copied.
        parts.append(Text(f"  {printable(command)}", no_wrap=True, overflow="ignore"))
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


def annotation_sections(report: CheckReport) -> Iterator[Section]:
    """What is wrong with annotations of instances or pixels, and what else is good to know of them."""
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
        lacking = "a pixel" if report.fractions else "a readable image"
        if report.counted == "instance":
            lacking = "an instance"
        lines.append(f"without {lacking}: {listed(report.empty_classes)}")
    lines += [f"missing in {split}: {listed(missing)}" for split, missing in report.missing_classes.items()]
    if report.tiny_classes:
        tiny = [f"{title} ({count})" for title, count in report.tiny_classes.items()]
        lines.append(f"fewer than {TINY} {report.things}: {listed(tiny)}")
    unequal = report.imbalance
    if unequal and unequal.ratio >= IMBALANCED:
        advice = "; train with --class-weights balanced" if report.one_label else ""
        lines.append(
            f"very different size: {unequal.largest} has {unequal.most:,} {report.things}, {unequal.smallest} "
            f"{unequal.fewest:,} ({unequal.ratio:.3g} : 1){advice}"
        )
    if report.fractions:
        ordered = sorted(report.fractions, key=report.fractions.__getitem__, reverse=True)
        lines.append(
            "fraction of pixels: " + listed([f"{title} {percent(report.fractions[title])}" for title in ordered])
        )
    if lines:
        yield "Classes", lines


def label_sections(report: CheckReport) -> Iterator[Section]:
    """Labels that a model contradicts, look-alikes with different labels, and outliers."""
    if report.suspects:
        lines = [
            f"{one.name}: {one.label}, looks like {one.suggestion} (label {percent(one.score)})"
            for one in report.suspects
        ]
        yield f"Suspicious labels by {report.judged_by}, the least probable first ({len(lines):,})", first_lines(lines)
    if report.look_alikes:
        lines = [
            " and ".join(f"{image.name} ({image.label})" for image in one.images) + f", likeness {one.likeness:.3f}"
            for one in report.look_alikes
        ]
        yield f"Look-alikes with different labels ({len(lines):,})", first_lines(lines)
    if report.outliers:
        lines = [
            f"{one.name}: {f'{one.label}, ' * bool(one.label)}{one.distance:.1f} x the usual distance"
            for one in report.outliers
        ]
        yield f"Outliers, far from all other images ({len(lines):,})", first_lines(lines)


def copy_sections(report: CheckReport) -> Iterator[Section]:
    """Images that occur several times."""
    repeated = "Images repeated in a split"
    if report.to_be_split:
        repeated = "Images repeated: a copy may be set aside for validation while another is trained with"
    kinds = {
        "Images in several splits: a model is tested on what it has learnt": report.leaks,
        "Images with different labels: at most one is right": report.disputed,
        repeated: report.repeated,
    }
    for title, copies in kinds.items():
        lines = []
        for found in copies:
            names = [f"{image.name} ({image.label})" if found.disagree else image.name for image in found.images]
            line = f"{listed(names, ' = ')}; {'same bytes' if found.exact else 'the same by its looks'}"
            if len({image.name for image in found.images}) == 1:
                splits = " and for ".join(image.split for image in found.images)
                line = f"{found.images[0].name} is listed for {splits}"
            lines.append(line)
        if lines:
            yield f"{title} ({len(lines):,})", first_lines(lines)


def size_sections(report: CheckReport) -> Iterator[Section]:
    """How images are stored, and how large they are."""
    lines = ["splits: " + ", ".join(f"{split} {count:,}" for split, count in report.images.items())]
    if set(report.modes) - {"RGB"}:
        named = {mode: "16-bit grey" if mode.startswith("I;16") else MODES.get(mode, mode) for mode in report.modes}
        counted = ", ".join(f"{named[mode]} {count:,}" for mode, count in report.modes.items())
        as_rgb = not any(mode.endswith(" channels") for mode in report.modes)
        lines.append(f"modes: {counted}{'; all are read as RGB' * as_rgb}")
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
