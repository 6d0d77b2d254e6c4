"""The results as a table for the terminal, narrow enough for 80 columns."""

from rich import box
from rich.table import Table
from rich.text import Text

from ..train.display import duration
from .report import figure
from .results import Results
from .verdict import percent, signed

STYLES = {"better": "green", "worse": "red", "no difference shown": "dim"}


def results_table(results: Results) -> Table:
    """One line for each model, the best first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("model", overflow="fold")
    for title in (results.metric, "to baseline", "params", "MACs", "latency", "training"):
        table.add_column(title, justify="right", no_wrap=True)
    failed = [model for model in results.models if model.score is None]
    for model in [*results.ranked, *failed]:
        difference: str | Text = "baseline" if model.label == results.baseline else "–"
        if model.difference is not None:
            reach = f"{100 * model.difference.reach:.1f}"
            difference = Text(f"{signed(model.difference.mean)} ± {reach}", style=STYLES[model.difference.verdict])
        table.add_row(
            Text(model.label),
            percent(model.score) if model.score else "failed",
            difference,
            figure(model.parameters),
            figure(model.macs),
            f"{model.latency.milliseconds.mean:.2f} ms" if model.latency else "–",
            duration(model.seconds) if model.seconds else "–",
        )
    return table
