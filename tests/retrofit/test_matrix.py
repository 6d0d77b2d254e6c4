"""The matrix tells what was found, and the page in the docs is what it tells."""

import json
import re
from pathlib import Path

import pytest
import typer
from torch import nn
from typer.testing import CliRunner

from nearsight.cli.shell import app as commands
from tools import matrix as cells
from tools.hosts import Example
from tools.matrix import PARTS, Cell, Unfinished, letters, matrix, matrix_page, measure_cells

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"
ROW = re.compile(r"^\| (?P<family>[^|]+?) \| (?P<cells>[–·BPTEX |]+) \|$", re.MULTILINE)


def recorded() -> dict[str, list[str]]:
    """The letters of each host on the page."""
    return {row["family"]: row["cells"].split(" | ") for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))}


def test_cells_are_measured_and_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that moves the answers at the start, or that can't learn, loses its letters."""
    honest = next(measure_cells(["ViT"], ["localvit"], export=False))
    assert (honest.built, honest.preserved, honest.trains, honest.exact) == (True, True, True, True)
    monkeypatch.setattr(nn.init, "zeros_", lambda tensor: nn.init.normal_(tensor, std=0.1))  # also the new kernels
    spoiled = next(measure_cells(["ViT"], ["localvit"], export=False))
    assert spoiled.built and not spoiled.preserved


@pytest.mark.parametrize("family", ["DeiT III", "PVT v2"])
def test_the_page_says_what_is_found_without_exports(family: str) -> None:
    found = [letters(cell) for cell in measure_cells([family], export=False)]
    assert [text.replace("E", "·") if text[0] == "B" else text for text in recorded()[family]] == found


@pytest.mark.drill
def test_the_page_says_what_is_found() -> None:
    assert PAGE.read_text(encoding="utf-8") == matrix_page(list(measure_cells()))


def test_every_yes_of_the_page_is_of_a_cell_that_other_tests_cover() -> None:
    """`test_preserve` runs over the same hosts and parts."""
    from test_preserve import CELLS
    from test_preserve import PARTS as TESTED

    assert tuple(TESTED) == PARTS
    covered = {(example.family, part) for example, _, part in CELLS}
    parts = [part for _, part in PARTS]
    promised = {
        (f, part) for f, row in recorded().items() for part, cell in zip(parts, row, strict=True) if "P" in cell
    }
    assert promised == covered


def test_letters() -> None:
    assert letters(Cell("a", "ffn", "b", True, True, True, True, True)) == "BPTEX"
    assert letters(Cell("a", "ffn", "b", True, True, False, None, False)) == "BP–·–"
    assert letters(Cell("a", "ffn", "b", reason="x: y (layer 1).")) == "–––––"


def command() -> typer.Typer:
    """What `python -m tools.matrix` runs."""
    app = typer.Typer()
    app.command()(matrix)
    return app


def test_the_command_of_old_says_where_it_went() -> None:
    for words in (["matrix"], ["matrix", "--host", "ViT", "--out", "page.md"]):
        failed = CliRunner().invoke(commands, words)
        assert isinstance(failed.exception, ValueError) and "python -m tools.matrix" in str(failed.exception)


def test_the_command(tmp_path: Path) -> None:
    runner = CliRunner()
    app = command()
    words = ["--host", "ViT", "--part", "life", "--part", "deformable", "--no-export"]
    table = runner.invoke(app, words)
    assert table.exit_code == 0 and "BPT·X" in table.output and "–––––" in table.output
    cells = json.loads(runner.invoke(app, [*words, "--json"]).stdout)
    assert [cell["part"] for cell in cells] == ["life", "deformable"]
    assert "nothing merges" in cells[1]["reason"]
    runner.invoke(app, [*words, "--out", str(tmp_path / "page.md")])
    assert "| ViT | BPT·X | ––––– |" in (tmp_path / "page.md").read_text()
    for wrong in (["--host", "ResNet"], ["--part", "x"], ["--out", "matrix.txt"]):
        failed = runner.invoke(app, wrong)
        assert isinstance(failed.exception, ValueError)


def test_a_stopped_matrix_goes_on_after_its_last_whole_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, measure = [], cells.measure_cell

    def until_swin(example: Example, slot: str, part: str) -> Cell:
        if example.family == "Swin" and "Swin" not in measured:
            measured.append("Swin")
            raise KeyboardInterrupt
        measured.append(example.family)
        return measure(example, slot, part)

    monkeypatch.setattr(cells, "measure_cell", until_swin)
    runner, page = CliRunner(), tmp_path / "page.md"
    app = command()
    words = ["--host", "ViT", "--host", "Swin", "--part", "bigate", "--no-export", "--out", str(page)]
    assert runner.invoke(app, words).exit_code != 0 and not page.exists()
    again = runner.invoke(app, words)
    assert again.exit_code == 0 and "Found before: ViT; to try them again, delete" in again.stderr
    assert measured == ["ViT", "Swin", "Swin"]
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]
    assert page.read_text() == matrix_page(list(measure_cells(["ViT", "Swin"], ["bigate"], export=False)))


def test_cells_of_other_settings_are_not_taken_over(tmp_path: Path) -> None:
    made = Unfinished.beside(tmp_path / "page.md", ["life"], export=False)
    made.write([Cell("ViT", "qkv", "life", reason="not tried")])
    assert [cell.reason for cell in made.read()] == ["not tried"]
    assert Unfinished.beside(tmp_path / "page.md", ["life"], export=True).read() == []
    made.file.write_text("{")
    assert made.read() == []
