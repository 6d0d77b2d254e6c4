"""Files of every format, spoilt: they are refused in a sentence, or what is left of them is read."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from generator import FORMATS, spoilt_files

Try = Callable[..., tuple[int, str, str]]
SEEDS = 18  # of each format in `make test`; `make drills` tries many more


@pytest.mark.parametrize("format", FORMATS)
def test_the_files_are_in_order_before_they_are_spoilt(attempt: Try, tmp_path: Path, format: str) -> None:
    code, out, err = attempt("data", "check", str(FORMATS[format](tmp_path / "data")), "--json")
    assert code == 0 and '"images"' in out, err


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("format", FORMATS)
def test_a_spoilt_file_gets_a_sentence(attempt: Try, tmp_path: Path, format: str, seed: int) -> None:
    source = FORMATS[format](tmp_path / "data")
    spoilt_files(tmp_path / "data", seed)
    code, out, err = attempt("data", "check", str(source), "--json", "--workers", "0")
    assert "nearsight: " in err if code == 1 else '"images"' in out, (code, out, err)


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("format", FORMATS)
def test_many_spoilt_files_get_a_sentence(attempt: Try, tmp_path: Path, format: str) -> None:
    for seed in range(SEEDS, SEEDS + 300):
        source = FORMATS[format](tmp_path / "data")
        spoilt_files(tmp_path / "data", seed)
        code, out, err = attempt("data", "check", str(source), "--json", "--workers", "0")
        assert "nearsight: " in err if code == 1 else '"images"' in out, (seed, code, out, err)
        shutil.rmtree(tmp_path / "data")
    print(f"300 cases of {format}")
