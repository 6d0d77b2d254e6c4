"""The page on speed, docs/results/speed.md, with its figures, from what the benchmarks of this folder measured.

python benchmarks/speed_page.py
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nearsight.atomic import write_whole
from nearsight.interval import wilson
from nearsight.plots.style import COLOURS, SMALL, figure, tidy, to_png, write
from nearsight.timing import median_interval

RESULTS = Path(__file__).parent / "results"
PAGES = Path(__file__).parent.parent / "docs" / "results"
NOTES = {
    "goals": "without AVX-512, against the first bars"
}  # of a file from before the machine's instructions were kept


def main() -> None:
    found = {file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("goals*.json"), reverse=True)}
    for name, results in found.items():
        write_whole(PAGES / f"speed-{name}.png", to_png(draw_goals(results)))
    growth = next(results for results in found.values() if "scaling" in results)
    write_whole(PAGES / "speed-growth.png", to_png(draw_growth(growth)))
    write_whole(PAGES / "speed.md", ("\n".join(lines(found)) + "\n").encode())


def rows_of(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All rows, in the order of the goals."""
    for part in results.values():
        yield from part["rows"]


def lines(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The page: a section for each kind of machine."""
    yield "# Speed: what was measured\n"
    yield (
        "Written by `benchmarks/speed_page.py` from what `benchmarks/goals.py` measured, a file for each kind of "
        "machine: 224 pixels, float32 but where a row says otherwise. Each figure is the median over rounds that take "
        "turns, with its 95 % interval. The machines were shared: where the same matrix product ran at very different "
        "speeds within a measurement, the row says so.\n"
    )
    for name, results in found.items():
        yield from section(name, results)
    for file, write_rows in OTHERS.items():
        if (RESULTS / f"{file}.json").is_file():
            yield from write_rows(json.loads((RESULTS / f"{file}.json").read_text()))
    yield "![Latency against the number of pixels](speed-growth.png)\n"
    yield "What was done for these numbers, and why some bars resist: [performance](../performance.md)."


def section(name: str, results: dict[str, Any]) -> Iterator[str]:
    """What one kind of machine gave."""
    machine, rows = next(iter(results.values()))["machine"], list(rows_of(results))
    kind = ", ".join(machine.get("instructions", [])) or NOTES[name]
    reached = sum(row["met"] for row in rows)
    yield f"## {machine['device']} ({kind})\n"
    loads = [part["machine"]["load"] for part in results.values() if "load" in part["machine"]]
    load = f", load before the rows {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    yield (
        f"{reached} of {len(rows)} goals are met. [{name}.json](../../benchmarks/results/{name}.json): "
        f"{machine['threads']} threads, PyTorch {machine['versions']['torch']}{load}.\n"
    )
    yield f"![How far each measurement lies from its bar](speed-{name}.png)\n"
    yield "| what | bar | measured | 95 % interval | rounds | met |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for part in results.values():
        restless = " (restless)" if part["warnings"] else ""
        for row in part["rows"]:
            sign, value = "≤" if row["at_most"] else "≥", row["measured"]
            met = "yes" if row["met"] else "no"
            yield (
                f"| {row['what']} | {sign} {row['bar']:g} | **{value['median']:.3f}** | "
                f"{value['low']:.3f} to {value['high']:.3f}{restless} | {row['rounds']} | {met} |"
            )
    yield ""


def machine_of(record: dict[str, Any], command: str) -> str:
    """A sentence on where it was measured."""
    machine = record["machine"]
    kind = ", ".join(machine.get("instructions", [])) or "instructions not recorded"
    versions = machine.get("versions", {})
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "onnxruntime", "openvino") if name in versions)
    load = f", load {machine['load']:.1f}" if "load" in machine else ""
    return f"`{command}`: {machine['device']} ({kind}), {named}{load}.\n"


def told(values: Sequence[float], unit: str = "") -> str:
    """A median with its interval."""
    found = median_interval(values)
    return f"{found.value:,.2f}{unit} ({found.low:,.2f} to {found.high:,.2f})"


def winners(record: dict[str, Any]) -> Iterator[str]:
    """Which runtime is fastest for which model."""
    yield "## Which runtime wins\n"
    yield machine_of(record, "benchmarks/runtimes.py speed")
    yield "| model | batch | fastest | its time by the folded model's |"
    yield "| --- | --- | --- | --- |"
    for row in record["winners"]:
        ratio = row["by_folded"]
        yield (
            f"| {row['model']} | {row['batch']} | {row['runtime']} | "
            f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f}) |"
        )
    yield ""


def agreement(record: dict[str, Any]) -> Iterator[str]:
    """What fewer bits and other runtimes cost."""
    yield "## What other runtimes and fewer bits change\n"
    yield "How often the first class of photographs is that of PyTorch in float32, with real weights.\n"
    yield machine_of(record, "benchmarks/runtimes.py agreement")
    yield "| model | runtime | clothing | photos30 | layers in float |"
    yield "| --- | --- | --- | --- | --- |"
    for row in record["agreement"]:
        same = [interval_of(row.get(part)) for part in ("clothing", "photos30")]
        yield f"| {row['model']} | {row['runtime']} | {' | '.join(same)} | {', '.join(row['kept_in_float'])} |"
    yield ""


def interval_of(found: dict[str, Any] | None) -> str:
    """A fraction with Wilson's interval, in percent."""
    if found is None:
        return ""
    value = wilson(round(found["same"] * found["images"]), found["images"])
    return f"{100 * value.value:.2f} % ({100 * value.low:.2f} to {100 * value.high:.2f}) of {found['images']:,}"


def training(record: dict[str, Any]) -> Iterator[str]:
    """Loops beside each other; ratios within rounds."""
    ours = record["rows"][0]["images_per_second"]
    yield "## `nearsight train` beside other loops\n"
    yield machine_of(record, "benchmarks/peers.py train")
    yield "| loop | images/s | nearsight by it | start | memory |"
    yield "| --- | --- | --- | --- | --- |"
    for row in record["rows"]:
        speed = row["images_per_second"]
        ratio = told([one / other for one, other in zip(ours, speed, strict=True)])
        start, memory = told(row["seconds_to_start"], " s"), f"{row['bytes'] / 1e6:,.0f} MB"
        yield f"| {row['way']} | {told(speed)} | {ratio} | {start} | {memory} |"
    yield ""


def beside(title: str, what: str, reference: str) -> Callable[[dict[str, Any]], Iterator[str]]:
    """A table of ways that take turns, each by the reference."""

    def rows(record: dict[str, Any]) -> Iterator[str]:
        of_reference = next(row["seconds"] for row in record["rows"] if row["way"] == reference)
        yield f"## {title}\n"
        yield machine_of(record, f"benchmarks/peers.py {what}")
        yield f"| way | seconds | its time by that of `{reference}` | memory |"
        yield "| --- | --- | --- | --- |"
        for row in record["rows"]:
            ratio = told([one / other for one, other in zip(row["seconds"], of_reference, strict=True)])
            yield f"| {row['way']} | {told(row['seconds'])} | {ratio} | {row['bytes'] / 1e6:,.0f} MB |"
        yield ""

    return rows


def bundles(record: dict[str, Any]) -> Iterator[str]:
    """Every head with and without PyTorch."""
    yield "## Every head as a bundle\n"
    yield "After a short training on real data; metrics on all validation images, without torch on the bundle's side.\n"
    yield machine_of(next(iter(record.values())), "benchmarks/bundles.py")
    yield "| model | data | metric | PyTorch | bundle | same predictions at three sizes |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, row in record.items():
        theirs, mine = row["metrics"]["pytorch"], row["metrics"]["bundle"]
        metric = next((one for one in MAIN if one in theirs), next(iter(theirs)))
        same = ", ".join(f"{100 * one['top1']:.1f} %" for one in row["verified"])
        found = f"{100 * theirs[metric]:.2f} % | {100 * mine[metric]:.2f} %"
        yield f"| {name} | {row['data']} | {metric} | {found} | {same} |"
    yield ""


MAIN = ("boxes.ap50", "regions.miou", "map", "top1.value")  # the first that there is is shown
OTHERS: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "runtimes-speed": winners,
    "runtimes-agreement": agreement,
    "peers-train": training,
    "peers-predict": beside("`nearsight predict` on a folder of JPEGs", "predict", "plain script"),
    "peers-start": beside("From a cold start to the first prediction", "start", "import torch, timm"),
    "peers-eval": beside("`nearsight eval`", "eval", "nearsight"),
    "bundles": bundles,
}


def draw_goals(results: dict[str, Any]) -> Any:
    """Each goal as a dot: left of the line it is met."""
    rows = list(rows_of(results))
    drawn = figure(11.5, 0.3 * len(rows) + 1.0)
    axes = drawn.subplots()
    tidy(axes, title="Measured, as a fraction of what the bar allows (left of 1: met)", x="")
    for index, row in enumerate(reversed(rows)):
        values = [row["measured"][name] / row["bar"] for name in ("median", "low", "high")]
        middle, low, high = values if row["at_most"] else [1 / value for value in values]
        colour = COLOURS[2] if row["met"] else COLOURS[1]
        axes.plot([low, high], [index, index], color=colour, linewidth=1.6, alpha=0.5)
        axes.plot([middle], [index], "o", color=colour, markersize=6)
    axes.axvline(1.0, color="#888888", linewidth=1)
    axes.set_yticks(range(len(rows)), [row["what"] for row in reversed(rows)])
    for text in axes.get_yticklabels():
        write(text, SMALL)
    axes.set_xlim(0.3, 1.7)
    return drawn


def draw_growth(results: dict[str, Any]) -> Any:
    """Latency against pixels, with lines in proportion."""
    drawn = figure(6.5, 3.8)
    axes = drawn.subplots()
    tidy(axes, title="Latency of one image, folded", x="side of the image in pixels")
    for colour, row in zip((COLOURS[0], COLOURS[2]), results["scaling"]["rows"], strict=True):
        times = {int(size): value for size, value in row["details"]["milliseconds"].items()}
        first = min(times)
        label = f"{row['what'].split()[0]} (exponent {row['measured']['median']:.2f})"
        axes.plot(list(times), list(times.values()), "o-", color=colour, label=label)
        axes.plot(list(times), [times[first] * (size / first) ** 2 for size in times], ":", color=colour, alpha=0.6)
    axes.plot([], [], ":", color="#666666", label="in proportion to the pixels")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(list(times), [str(size) for size in times])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} ms")
    for text in axes.legend(frameon=False).get_texts():
        write(text, SMALL)
    return drawn


if __name__ == "__main__":
    main()
