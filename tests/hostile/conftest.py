"""One rule for everything that is tried here: a sentence, soon, in little memory, and nothing is written elsewhere."""

import os
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nearsight import train

sys.path.insert(0, str(Path(__file__).parent))

from generator import picture, table

SECONDS, GIGABYTES = 20, 2
# What Python says of its own accord; no user can do anything with it.
PYTHONS_WORDS = re.compile(
    r"Traceback|indices must be|NoneType|object is not|could not convert|unhashable|KeyError|invalid literal|"
    r"Expecting |\(char \d|argument \d+ is (longer|shorter)|DefaultCPUAllocator|has no attribute|unexpected keyword|"
    r"positional argument|out of range for|not supported between"
)

Try = Callable[..., tuple[int, str, str]]


TRIED: Counter[str] = Counter()  # commands, by the file of the test


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many commands were tried."""
    if TRIED:
        each = ", ".join(f"{count:,} in {name}" for name, count in sorted(TRIED.items()))
        terminalreporter.write_line(f"{TRIED.total():,} hostile commands were tried: {each}.")


@pytest.fixture
def attempt(type_in: Try, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Try:
    """Runs the command line in an empty folder and holds the outcome to the rule.

    `may_write` names what else than `out` may be written in that folder.
    """
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def run(*words: str, may_write: tuple[str, ...] = ()) -> tuple[int, str, str]:
        before = {path for path in tmp_path.rglob("*") if path.is_file()}
        TRIED[request.path.name] += 1
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
        allowed = [os.path.normpath(here / name) for name in ("out", *may_write)]
        assert all(any(path.is_relative_to(one) for one in allowed) for path in new), (new, words)
        return code, out, err

    return run


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, an image, a table and weights that are none."""
    folder = tmp_path_factory.mktemp("place")
    train("digits", model="deit_nano", epochs=1, limit=40, batch=20, out=folder / "run", quiet=True)
    (folder / "image.png").write_bytes(picture(0))
    (folder / "weights.pth").write_bytes(b"none")
    table(folder / "table")
    return folder
