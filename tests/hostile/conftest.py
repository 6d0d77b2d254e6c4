"""One rule for everything that is tried here: a sentence, soon, in little memory, and nothing is written elsewhere."""

import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

SECONDS, GIGABYTES = 20, 2
# What Python says of its own accord; no user can do anything with it.
PYTHONS_WORDS = re.compile(
    r"Traceback|indices must be|NoneType|object is not|could not convert|unhashable|KeyError|invalid literal|"
    r"has no attribute|unexpected keyword|positional argument|out of range for|not supported between"
)

Try = Callable[..., tuple[int, str, str]]


@pytest.fixture
def attempt(type_in: Try, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Try:
    """Runs the command line in an empty folder and holds the outcome to the rule."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def run(*words: str, may_write: tuple[str, ...] = ()) -> tuple[int, str, str]:
        before = {path for path in tmp_path.rglob("*") if path.is_file()}
        began, held = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        code, out, err = type_in(*words)
        took = time.process_time() - began  # waiting for ever is ended by pytest's own limit
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held
        assert took < SECONDS, f"{took:.0f} s: {words}"
        assert grown < GIGABYTES * 2**20, f"{grown / 2**20:.1f} GB: {words}"
        assert code in (0, 1, 2), (code, words)
        assert not PYTHONS_WORDS.search(err), (err, words)
        if code == 1:
            said = [line for line in err.splitlines() if line.startswith("nearsight: ")]
            assert said, (err, words)
            assert len(said[-1]) > 20 and said[-1].endswith((".", "`", ")", "?")), (err, words)
        new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
        assert not [path for path in new if not path.is_relative_to(here / "out")] or may_write, (new, words)
        return code, out, err

    return run
