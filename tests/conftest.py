"""Settings of all tests, and the command line as a fixture."""

import logging
import sys
from collections.abc import Callable

import pytest
import torch

from nearsight.cli import shell as cli

# Tests work on tensors so small that threads only wait for each other, all the more in parallel workers.
torch.set_num_threads(1)

# PyTorch offers a record of every step of an export to whoever listens; pytest does, and an export takes twice as long.
trace = logging.getLogger(f"{torch.__name__}.__trace")
trace.handlers.clear()
trace.propagate = False


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line with these words; gives exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nearsight", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run
