"""The ImageNet accuracy that the papers print for a model."""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from textwrap import wrap

from rich.text import Text

from ..comparison.report import figure
from ..interval import Interval
from ..reproduce.papers import plan
from ..reproduce.published import Row, published_rows
from ..reproduce.recipes import Recipe
from .results import Bench, Growth, Key, growths

# timm's names of models that are hosts here.
HOSTS = {
    **{f"deit_{size}_patch16_224": f"deit_{size}" for size in ("tiny", "small", "base")},
    **{f"deit_{size}_distilled_patch16_224": f"deit_{size}_distilled" for size in ("tiny", "small", "base")},
    **{f"swin_{size}_patch4_window7_224": f"swin_{size}" for size in ("tiny", "small", "base")},
    "swinv2_tiny_window8_256": "swinv2_tiny",
    "tnt_s_legacy_patch16_224": "tnt_small",
}


def printed_top1(name: str) -> float | None:
    """Top-1 accuracy in percent on ImageNet-1K's validation images, trained on ImageNet-1K alone.

    Where several papers print one, that of the model's own paper is taken, else the first of them.

    Args:
        name: Of a model of ours or of timm.

    Example:
        >>> printed_top1("localvit_tiny"), printed_top1("deit_tiny_patch16_224"), printed_top1("deit_nano")
        (74.8, 72.2, None)
    """
    return all_printed().get(HOSTS.get(name, name))


@cache
def all_printed() -> dict[str, float]:
    """By name."""
    found: dict[str, float] = {}
    for row in sorted(published_rows(), key=lambda row: not row.own):
        top1 = accuracy_of(row)
        what = plan(row) if top1 is not None else None
        if top1 is not None and isinstance(what, Recipe) and is_unchanged(what):
            found.setdefault(what.model, top1)
    return found


def accuracy_of(row: Row) -> float | None:
    """What a row prints for ImageNet-1K at 224 pixels (256 for Swin v2), if it does."""
    if row.dense or row.setting.get("init", "random") != "random" or row.setting.get("image_size", 224) != 224:
        return None
    if "ImageNet-1K" not in str(row.setting.get("dataset", row.setting.get("datasets", ""))):
        return None
    printed = row.printed.get("top1_im1k", row.printed.get("top1", "-"))
    return float(printed) if printed.replace(".", "").isdigit() else None


def is_unchanged(what: Recipe) -> bool:
    """Whether a row is about a model as its name stands for it, apart from the number of classes."""
    options = {key for key, _ in what.options} - {"num_classes"}
    return not options and what.change is None and what.spec is None


COLUMNS = {"batch": 5, "latency, ms": 17, "images/s": 8, "memory": 8, "of peak": 7, "time ratio": 17}
INDENT = 10  # columns of the runtime's name


def bench_table(found: Bench, width: int = 80) -> Text:
    """A block of lines for each model: one for each runtime and batch size."""
    titles = [title for title in COLUMNS if found.setting.memory or title != "memory"]
    text = Text("\n")
    text.append(line("", titles, titles) + "\n", style="bold")
    for subject in found.subjects:
        head = f"{figure(subject.parameters)} parameters, {figure(subject.macs)} multiply-adds at {sides(subject.size)}"
        text.append(f"\n{subject.label}", style="bold cyan").append(f"  {head}\n", style="dim")
        for key in found.seconds:
            if (key.label, key.size) == (subject.label, subject.size):
                text.append(line(f"  {key.runtime}", titles, [cells(found, key)[title] for title in titles]) + "\n")
        text.append(reasons(found, subject.label, width))
    refused = {missing.label for missing in found.missing} - {subject.label for subject in found.subjects}
    for label in sorted(refused):
        text.append(f"\n{label}\n", style="bold cyan").append(reasons(found, label, width))
    return text.append("\n").append(caption(found, width), style="dim italic").append(warning(found, width))


def line(name: str, titles: Sequence[str], texts: Iterable[str]) -> str:
    """A line of the table."""
    shown = [f"{text:>{COLUMNS[title]}}" for title, text in zip(titles, texts, strict=True)]
    return f"{name:<{INDENT}}" + " ".join(shown)


def cells(found: Bench, key: Key) -> dict[str, str]:
    """The figures of one measurement."""
    ratio = found.ratio(key)
    bytes_ = found.memory.get(key)
    return {
        "batch": str(key.batch),
        "latency, ms": spread(found.milliseconds(key)),
        "images/s": short(found.images_per_second(key).value),
        "memory": megabytes(bytes_) if bytes_ is not None else "–",
        "of peak": f"{found.fraction(key).value:.2f}",
        "time ratio": "1" if found.reference_of(key) == key else spread(ratio, 2) if ratio else "–",
    }


def spread(value: Interval, digits: int | None = None) -> str:
    """A median with its interval.

    Example:
        >>> spread(Interval(12.345, 12.1, 13.02)), spread(Interval(1.05, 1.0, 1.1), 2)
        ('12.3 (12.1–13.0)', '1.05 (1.00–1.10)')
    """
    texts = [short(number) if digits is None else f"{number:.{digits}f}" for number in value]
    return f"{texts[0]} ({texts[1]}–{texts[2]})"


def short(value: float) -> str:
    """A number with three digits, or all those before the point.

    Example:
        >>> short(0.12345), short(12.345), short(1234.5)
        ('0.123', '12.3', '1234')
    """
    digits = next((places for limit, places in ((1, 3), (10, 2), (100, 1)) if abs(value) < limit), 0)
    return f"{value:.{digits}f}"


def megabytes(count: float) -> str:
    """Bytes in short.

    Example:
        >>> megabytes(12_345_678), megabytes(1_500)
        ('12.3 MB', '0.002 MB')
    """
    return f"{short(count / 1e6)} MB" if count < 1e10 else f"{short(count / 1e9)} GB"


def sides(size: tuple[int, int]) -> str:
    """Height and width in pixels."""
    return f"{size[0]} pixels" if size[0] == size[1] else f"{size[0]} × {size[1]} pixels"


def reasons(found: Bench, label: str, width: int) -> Text:
    """What of a model could not be measured, and why; each reason once."""
    grouped: dict[str, list[str]] = {}
    for missing in found.missing:
        if missing.label == label:
            what = missing.runtime + (f" at batch {missing.batch}" if missing.batch else "")
            grouped.setdefault(missing.reason, []).append(what)
    text = Text()
    for reason, runtimes in grouped.items():
        lines = wrap(f"{', '.join(runtimes)}: {reason}", max(40, width - 2))
        text.append("".join(f"  {part}\n" for part in lines), style="yellow")
    return text


def caption(found: Bench, width: int) -> str:
    """How to read the table."""
    setting, peak = found.setting, found.peak_flops.value / 1e9
    first = next(runtime for runtime in setting.runtimes)
    threads = f"{setting.threads} thread{'s' * (setting.threads != 1)}"
    rounds = len(found.peak)
    interval = "its 95 % interval" if rounds >= 6 else "smallest and largest"  # fewer don't reach 95 %
    memory = "memory: the most that one call holds beside weights and images. " if setting.memory else ""
    making = [found.making[key] for key in found.seconds if key.runtime == "compiled"]
    compiling = f"Compiling took {sum(making):.0f} s for {len(making)} shapes of models. " if making else ""
    cut = f"Interrupted after {rounds} of {setting.rounds} rounds. " if found.interrupted else ""
    words = (
        f"{cut}Median of {rounds} rounds on {setting.device} with {threads}; in brackets {interval}. {memory}"
        f"of peak: share of a matrix product's speed in the same rounds ({peak:.0f} GFLOP/s). time ratio: to "
        f"{found.reference} ({first}) with the same batch, within rounds; less is faster. {compiling}"
    )
    return "\n".join(wrap(words, width)) + "\n"


def scaling_table(found: Bench, width: int = 80) -> Text:
    """A line for each model, runtime and size, and the exponents below."""
    titles = {"pixels": 12, "latency, ms": 18, "memory": 9, "of peak": 8}
    text = Text("\n")
    text.append(f"{'':<{INDENT}}" + " ".join(f"{title:>{size}}" for title, size in titles.items()) + "\n", style="bold")
    for growth in growths(found):
        text.append(f"\n{growth.label}", style="bold cyan").append(f"  {growth.runtime}\n", style="dim")
        for key in growth.keys:
            bytes_ = found.memory.get(key)
            row = (
                " × ".join(map(str, key.size)),
                spread(found.milliseconds(key)),
                megabytes(bytes_) if bytes_ is not None else "–",
                f"{found.fraction(key).value:.2f}",
            )
            shown = [f"{cell:>{size}}" for cell, size in zip(row, titles.values(), strict=True)]
            text.append(f"{'':<{INDENT}}" + " ".join(shown) + "\n")
        text.append(f"  {exponents(growth)}\n")
        text.append(refused_sizes(found, growth, width))
    measured = {growth.label for growth in growths(found)}
    for label in sorted({missing.label for missing in found.missing} - measured):
        text.append(f"\n{label}\n", style="bold cyan").append(reasons(found, label, width))
    words = (
        f"Batch {found.setting.batches[0]}. exponent: latency grows like the number of pixels to this power (least "
        "squares over the medians, logarithms on both sides; in brackets its 95 % interval). 1: in proportion to the "
        "pixels; 2: as attention between all places does in the end."
    )
    cut = f"Interrupted after {len(found.peak)} of {found.setting.rounds} rounds. " if found.interrupted else ""
    text.append("\n").append("\n".join(wrap(cut + words, width)) + "\n", style="dim italic")
    return text.append(warning(found, width))


def warning(found: Bench, width: int) -> Text:
    """What to know about a machine that was not quiet."""
    return Text("".join(f"{part}\n" for part in wrap(found.restless or "", width)), style="bold yellow")


def exponents(growth: Growth) -> str:
    """The fitted powers in words."""
    if growth.latency is None:
        return "exponent: needs two sizes or more"
    memory = f", of memory {power(growth.memory)}" if growth.memory else ""
    return f"exponent of latency {power(growth.latency)}{memory}"


def power(value: Interval) -> str:
    """An exponent; two sizes give no interval."""
    return spread(value, 2) if math.isfinite(value.low) else f"{value.value:.2f}"


def refused_sizes(found: Bench, growth: Growth, width: int) -> Text:
    """Sizes that a model does not take."""
    text = Text()
    for missing in found.missing:
        if (missing.label, missing.runtime) == (growth.label, growth.runtime):
            lines = wrap(f"{sides(missing.size)}: {missing.reason}", max(40, width - 2))
            text.append("".join(f"  {part}\n" for part in lines), style="yellow")
    return text
