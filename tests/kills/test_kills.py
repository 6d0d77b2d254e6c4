"""A hundred commands of every kind, killed and typed again, end with the same bits."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DRILLS = Path(__file__).with_name("drills.py")


@pytest.mark.drill
@pytest.mark.timeout(7200)
def test_a_hundred_killed_commands_end_with_the_same_bits(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(DRILLS), os.environ.get("NEARSIGHT_KILLS", "100")],
        capture_output=True,
        text=True,
    )
    with capsys.disabled():
        print("", *done.stdout.splitlines()[-13:], sep="\n")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(r"(\d+) of \1 drills ended with the same bits", done.stdout)
