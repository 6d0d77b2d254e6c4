"""The Python blocks of README.md and the pages under docs/ run, and their links lead somewhere."""

import doctest
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?P<skip><!-- not run: .+ -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


class Block(NamedTuple):
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The runnable Python blocks of a page, with the line that the code starts at."""
    text = page.read_text(encoding="utf-8")
    found = [match for match in BLOCK.finditer(text) if not match["skip"]]
    return [Block(match["code"], text.count("\n", 0, match.start("code"))) for match in found]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run(block: Block, page: Path, names: dict[str, object]) -> int:
    """Run a block in a namespace, which keeps its names; returns how many examples give another answer than shown."""
    failed = 0
    if ">>>" in block.code:
        test = doctest.DocTestParser().get_doctest(block.code, names, name(page), str(page), block.line)
        outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(
            test, clear_globs=False
        )
        failed = outcome.failed
        names.update(test.globs)
    else:
        exec(compile("\n" * block.line + block.code, str(page), "exec"), names)
    return failed


@pytest.mark.parametrize("block", blocks(ROOT / "README.md"), ids=lambda block: f"line{block.line}")
def test_each_block_of_the_readme_runs_alone(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(block, ROOT / "README.md", {"__name__": "readme"}) == 0


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "README.md" and blocks(page)], ids=name)
def test_the_blocks_of_a_page_run_one_after_another(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        assert run(block, page, names) == 0, f"line {block.line}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_has_a_block_for_each_paper() -> None:
    code = "\n".join(block.code for block in blocks(ROOT / "README.md"))
    for model in ("localvit_tiny", "lightvit_tiny", "lit_small", "ddwnet_tiny", "deit_tiny_life"):
        assert f'create_model("{model}"' in code
