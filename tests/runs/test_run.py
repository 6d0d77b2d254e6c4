"""The folder of a run after a kill."""

from pathlib import Path

from nearsight.runs.run import Run


def test_a_line_that_a_kill_cut_off_goes_before_the_next_is_written(tmp_path: Path) -> None:
    run, file = Run(tmp_path), tmp_path / "metrics.jsonl"
    for left in ('{"step": 1}\n{"step": 2, "lo', '{"st', ""):
        file.write_text(left)
        with run.locked():
            run.record({"step": 3})
        assert [line["step"] for line in run.records()] == ([1, 3] if "\n" in left else [3])
