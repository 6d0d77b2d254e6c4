"""What an explanation of a printed figure is, and the tests by which the numbers bear it out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..reproduce import conventions
from .dense import DenseRecipe, survey
from .figures import Figure, agrees, between, truncates
from .published import published_rows
from .recipe import Countable, Recipe, measure, recipe


@dataclass(frozen=True)
class Cover:
    """Which figures an entry may be used for.

    Attributes:
        paper: Paper.
        keys: Kinds of figures.
        names: Row labels; empty for all.
        tables: Tables; empty for all.
    """

    paper: str
    keys: tuple[str, ...]
    names: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()

    def holds(self, figure: Figure) -> bool:
        """Whether the figure is covered."""
        row = figure.row
        return (
            row.paper == self.paper
            and figure.key in self.keys
            and row.name in (self.names or (row.name,))
            and row.table in (self.tables or (row.table,))
        )


@dataclass(frozen=True)
class Explanation:
    """An entry of the register.

    Attributes:
        number: Its number.
        text: The finding.
        covers: What it may be used for.
        test: Whether the numbers bear it out.
        cause: Whether the text names the cause; otherwise it says what was tried.
    """

    number: int
    text: str
    covers: tuple[Cover, ...]
    test: Callable[[Figure], bool]
    cause: bool = True


def counted(other: Callable[[Any], int]) -> Callable[[Figure], bool]:
    """The figure comes out with another way to count."""

    def test(figure: Figure) -> bool:
        return isinstance(figure.plan, Recipe | DenseRecipe) and agrees(
            figure.printed, other(figure.plan) / figure.unit
        )

    return test


def printed_as(way: Callable[[str, float], bool]) -> Callable[[Figure], bool]:
    """The figure is our number, not rounded to the nearest."""
    return lambda figure: way(figure.printed, figure.ours)


def within(share: float) -> Callable[[Figure], bool]:
    """Ours is off by no more than a share of the printed figure."""
    return lambda figure: abs(figure.ours - float(figure.printed)) <= share * float(figure.printed)


def products(what: Countable) -> int:
    """The plain count of multiply-adds."""
    return measure(what).cost.macs


def elementwise_between(count: Callable[[Any], int] = products) -> Callable[[Figure], bool]:
    """The figure lies between a count of products and that count plus all element-wise work."""

    def test(figure: Figure) -> bool:
        assert isinstance(figure.plan, Recipe | DenseRecipe)
        low = count(figure.plan)
        return between(figure.printed, low / 1e9, (low + elementwise(figure.plan)) / 1e9)

    return test


def elementwise(what: Recipe | DenseRecipe) -> int:
    """Element-wise operations for one image."""
    return survey(what).elementwise if isinstance(what, DenseRecipe) else conventions.elementwise(what)


def formula(what: Countable) -> int:
    """LightViT's release formula."""
    return measure(what).formula or 0


def formula_with_one_token(what: Recipe) -> int:
    """The same with a single global token."""
    return formula(replace(what, options=(("aux", 1),)))


def padded_swin(what: Recipe) -> int:
    """Swin whose output projection also works on the padding, as in Swin's code."""
    return measure(PADDED_SWIN).cost.macs


def from_rounded_figures(figure: Figure) -> bool:
    """A percentage of the figures that Table 2 prints, cut after one digit."""
    size = figure.row.name[len("DW-Conv.-")]
    table = {row.name: row.printed for row in published_rows() if row.paper == "dwconv" and row.table == "Table 2"}
    key = "params_m" if figure.key == "params_reduction_pct" else "flops_g"
    small, large = float(table[f"DW-Conv.-{size}"][key]), float(table[f"Swin-{size}"][key])
    return truncates(figure.printed, 100 * (1 - small / large))


def cut_without_classifier(figure: Figure) -> bool:
    """The parameters without the last layer, cut."""
    assert isinstance(figure.plan, Recipe)
    return truncates(figure.printed, conventions.without_classifier(figure.plan) / 1e6)


def whole_number(figure: Figure) -> bool:
    """A whole number, printed with a zero behind the point."""
    return figure.printed.endswith(".0") and agrees(figure.printed[:-2], figure.ours)


PADDED_SWIN = recipe("swin_tiny_patch4_window7_224", 384, img_size=384, window_size=7)
