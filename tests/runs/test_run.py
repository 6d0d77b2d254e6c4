"""The folder of a run after a kill."""

from pathlib import Path

import pytest

from nearsight.runs.run import Run, processes


@pytest.mark.parametrize(
    ("name", "value"), [("WORLD_SIZE", "banana"), ("WORLD_SIZE", "-1"), ("RANK", "x"), ("RANK", "9" * 5000)]
)
def test_nonsense_of_a_launcher_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=rf"^{name}={value} in the environment is no number of processes; unset it\.$"):
        processes()


def test_a_line_that_a_kill_cut_off_goes_before_the_next_is_written(tmp_path: Path) -> None:
    run, file = Run(tmp_path), tmp_path / "metrics.jsonl"
    for left in ('{"step": 1, "epoch": 0}\n{"step": 2, "lo', '{"st', ""):
        file.write_text(left)
        with run.locked():
            run.record({"step": 3, "epoch": 0})
        assert [line["step"] for line in run.records()] == ([1, 3] if "\n" in left else [3])
