"""What benchmarks share that train for hours, and then write a page: their command line, and a table of models."""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nearsight.comparison.report import percent, signed
from nearsight.comparison.results import Comparison, ModelResult


def train_or_page(about: str | None, train: Callable[[Path, Path], None], page: Callable[[Path], None]) -> None:
    """Do what the command line says.

    Args:
        about: What the benchmark is for.
        train: Called for `train` with the folders of the data and of the runs.
        page: Called for `page` with the folder of the runs.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "page"))
    parser.add_argument("--data", type=Path, default=os.environ.get("NEARSIGHT_DATA"))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.what == "page":
        page(arguments.out)
    elif arguments.data is None:
        parser.error("give --data, or set NEARSIGHT_DATA")
    elif not Path(arguments.data).is_dir():
        parser.error(f"{arguments.data} is no folder; give the one that holds the data sets")
    else:
        train(Path(arguments.data), arguments.out)


def model_table(results: Comparison, labels: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a table with the models of a comparison, or with those of some labels, the best first."""
    beside = f"difference to {results.baseline}"
    yield f"| model | seeds | test accuracy | {beside} | parameters | multiply-adds | training |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    yield from (model_row(model) for model in results.ranked if not labels or model.label in labels)


def model_row(model: ModelResult) -> str:
    """A model in the table."""
    apart, gap = "–", model.difference
    if gap is not None:
        apart = f"{signed(gap.mean)} ({signed(gap.low)} to {signed(gap.high)}), {gap.verdict}"
    size, cost = f"{model.parameters / 1e6:.2f} M", f"{model.macs / 1e6:.1f} M"
    seeds = sum(run.score is not None for run in model.runs)
    minutes = f"{(model.seconds or 0) / 60:.1f} min"
    return f"| `{model.label}` | {seeds} | {percent(model.score)} | {apart} | {size} | {cost} | {minutes} |"
