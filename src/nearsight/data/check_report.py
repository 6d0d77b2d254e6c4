"""A check's report as text: the verdict first, then only what there is to say."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ..console import percent
from .issues import IMBALANCED, TINY, CheckReport, Copies, Spread, plural

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
        yield f"Unreadable images ({len(lines):,})", first(lines)
    if report.blank:
        yield f"Blank images, of one colour only ({len(report.blank):,})", first(image.name for image in report.blank)


def size_advice(report: CheckReport, patches: Mapping[str, int | None]) -> str:
    """The image size to train with, and what follows from it."""
    if report.task != "classify":
        return f"Images with a shorter side of {report.img_size} pixels."
    chosen = ", ".join(f"{patch} for {name}" for name, patch in patches.items())
    return f"Images of {report.img_size} pixels; the patch size follows from it: {chosen}."


def annotation_sections(report: CheckReport) -> Iterator[Section]:
    """What is wrong with annotations of objects or regions, and what else is worth knowing of them."""
    for finding in report.findings:
        what = plural(finding.count, finding.what)
        title = f"{what[0].upper()}{what[1:]} ({finding.count:,}): {finding.advice}"
        more = finding.count - len(finding.examples)
        yield title, [*finding.examples[:SHOWN], *([f"... {more:,} more"] if more > 0 else [])]
    if report.notes:
        yield "Annotations", report.notes


def class_sections(report: CheckReport) -> Iterator[Section]:
    """Classes that are empty, missing, tiny, or of very different size."""
    lines = []
    if report.empty_classes:
        lacking = {"detect": "an object", "segment": "a pixel"}.get(report.task, "a readable image")
        lines.append(f"without {lacking}: {names(report.empty_classes)}")
    lines += [f"missing in {split}: {names(missing)}" for split, missing in report.missing_classes.items()]
    if report.tiny_classes:
        tiny = [f"{title} ({count})" for title, count in report.tiny_classes.items()]
        lines.append(f"fewer than {TINY} {report.things}: {names(tiny)}")
    unequal = report.imbalance
    if unequal and unequal.ratio >= IMBALANCED:
        advice = "; train with --class-weights balanced" if report.task == "classify" else ""
        lines.append(
            f"very different size: {unequal.largest} has {unequal.most:,} {report.things}, {unequal.smallest} "
            f"{unequal.fewest:,} ({unequal.ratio:.3g} : 1){advice}"
        )
    if report.shares:
        ordered = sorted(report.shares, key=report.shares.__getitem__, reverse=True)
        lines.append("share of pixels: " + names([f"{title} {percent(report.shares[title])}" for title in ordered]))
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
            yield f"{title} ({len(copies):,})", first(copies_line(found) for found in copies)


def copies_line(copies: Copies) -> str:
    """The names of copies, their labels where these differ, and how sure it is that they are copies."""
    if len({image.name for image in copies.images}) == 1:
        return f"{copies.images[0].name} is listed for {' and for '.join(image.split for image in copies.images)}"
    images = [f"{image.name} ({image.label})" if copies.disagree else image.name for image in copies.images]
    return f"{names(images, ' = ')}; {'same bytes' if copies.exact else 'same picture by its looks'}"


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
        yield f"Images of odd size, height × width ({len(odd):,})", first(odd)


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


def first(lines: Iterable[str]) -> list[str]:
    """The first lines, and how many more there are."""
    everything = list(lines)
    more = len(everything) - SHOWN
    return everything if more <= 0 else [*everything[:SHOWN], f"... and {more:,} more; --json lists all"]


def names(values: Sequence[str], between: str = ", ") -> str:
    """The first names in a line, and how many more there are."""
    more = len(values) - SHOWN
    return between.join(values[:SHOWN]) + (f"{between}... ({more:,} more)" if more > 0 else "")


def printable(text: str) -> str:
    """The text with a question mark for what is no character, as in file names of another encoding."""
    return text.encode("utf-8", "replace").decode("utf-8")


def fix_list(report: CheckReport) -> bytes:
    """The content of a file with the names of the images to remove, one in a line."""
    return "".join(f"{name}\n" for name in report.to_remove).encode("utf-8", "surrogateescape")
