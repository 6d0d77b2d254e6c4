"""Check labelled images before a night is spent on training with them."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from .duplicates import Groups, same_bytes, same_picture
from .issues import TINY, CheckReport, Copies, Finding, Found, Imbalance, OddSize, Spread, Unreadable
from .samples import Data
from .sizes import choose_size
from .survey import Place, Survey, survey_images

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
        from .dense.check import judge_scenes

        judge_scenes(report, data, survey)
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
        report.findings.append(Finding("image passed over", sum(data.left_out.values()), lines, advice))
    inside: dict[str, set[str]] = {}
    for split in data.splits().values():
        for index, label in enumerate(split.labels.tolist()):
            title = data.classes[label]
            folder, _, _ = f"/{split.name(index)}".partition(f"/{title}/")[2].rpartition("/")
            inside.setdefault(title, set()).add(folder.split("/")[0])
    first = next(iter(inside.values()))
    if len(inside) > 1 and len(first) > 1 and "" not in first and all(names == first for names in inside.values()):
        report.findings.append(
            Finding(
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
