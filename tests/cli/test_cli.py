"""The command: answers, sentences, exit codes; in a process of its own where that is the point, or is quick."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch

from nearsight import __version__, create_model
from nearsight.cli.shell import leaving_on_signals
from tests.rounding import assert_rounded

COMMAND = str(Path(sys.executable).with_name("nearsight"))


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR")} | environment
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False, env=env)


def sentence(outcome: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr of a command that was refused."""
    assert outcome.returncode == 1, outcome.stderr
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    (line,) = outcome.stderr.splitlines()
    return line


@pytest.fixture
def refused(type_in: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs a command that is refused, in this process, since it needs torch; gives its one line on stderr."""

    def refuse(*words: str) -> str:
        return sentence(subprocess.CompletedProcess(words, *type_in(*words)))

    return refuse


def test_help_names_the_commands() -> None:
    outcome = run("--help")
    assert outcome.returncode == 0
    assert all(command in outcome.stdout for command in ("models", "convert", "reproduce"))


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["models"], ["models", "--json"], ["convert", "--help"]]
)
def test_torch_is_not_loaded_for_what_does_not_need_it(arguments: list[str]) -> None:
    """It takes seconds to load; without it these answer in half a second."""
    code = (
        "import sys\nfrom nearsight.cli.shell import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "sys.exit('torch' in sys.modules)"
    )
    outcome = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr


def test_version() -> None:
    assert run("--version").stdout == f"nearsight {__version__}\n"


def test_a_shell_completes_commands_and_options() -> None:
    words = {"_NEARSIGHT_COMPLETE": "complete_bash", "COMP_WORDS": "nearsight wei", "COMP_CWORD": "1"}
    assert run(**words).stdout.split() == ["weights"]
    assert run(**words | {"COMP_WORDS": "nearsight train --bud", "COMP_CWORD": "2"}).stdout.split() == ["--budget"]


def test_models_as_a_table() -> None:
    outcome = run("models", "lit_s*")
    assert outcome.returncode == 0
    assert "lit_small" in outcome.stdout
    assert "28.0 M" in outcome.stdout
    assert "lit_tiny" not in outcome.stdout


def test_models_as_json() -> None:
    (row,) = json.loads(run("models", "deit_tiny_life", "--json").stdout)
    assert row["qkv"] == "Life 1·3·5"
    assert row["strides"] == [16]
    assert row["parameters"] == 5_791_144  # LIFE Table 1: 5.8 M
    assert row["released"] is False  # LIFE released its code without weights


def test_a_reader_that_goes_away_is_no_error() -> None:
    outcome = subprocess.run(f"{COMMAND} models | head -1", shell=True, capture_output=True, text=True, check=False)
    assert outcome.stderr == ""


def test_a_closed_output_is_told_in_a_sentence() -> None:
    outcome = subprocess.run(f"{COMMAND} models >&-", shell=True, capture_output=True, text=True, check=False)
    assert outcome.returncode == 1
    assert sentence(outcome) == "nearsight: Standard output is closed; send it to a file or to /dev/null."


def test_a_terminal_without_unicode_shows_what_it_can() -> None:
    plain = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)}
    outcome = subprocess.run(f"{COMMAND} models nano", shell=True, capture_output=True, env=plain, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert b"localvit_nano" in outcome.stdout and outcome.stdout.isascii()


def test_an_unknown_model_gets_a_sentence_with_the_nearest() -> None:
    said = sentence(run("models", "lightvt_tiny"))
    assert said.startswith("nearsight: No model matches 'lightvt_tiny'; did you mean 'lightvit_tiny'?")


def test_an_unknown_command_and_option_are_refused() -> None:
    for arguments, answer in ((["model"], "No such command 'model'"), (["models", "--jsn"], "No such option: --jsn")):
        outcome = run(*arguments)
        assert outcome.returncode == 2
        assert answer in outcome.stderr
        assert "Traceback" not in outcome.stderr


def test_convert_says_what_is_wrong_with_a_file(tmp_path: Path, refused: Callable[..., str]) -> None:
    target = str(tmp_path / "out.safetensors")
    assert "absent.pth is not a file" in refused("convert", str(tmp_path / "absent.pth"), target)
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"not a checkpoint")
    assert "broken.pth" in refused("convert", str(broken), target)
    assert not Path(target).exists()


def test_convert_refuses_an_unknown_behaviour(tmp_path: Path, refused: Callable[..., str]) -> None:
    files = str(tmp_path / "in.pth"), str(tmp_path / "out.safetensors")
    said = refused("convert", *files, "--behaviour", "papers")
    assert said == "nearsight: behaviour='papers' is not known; use released or paper."


def test_a_bug_keeps_its_traceback() -> None:
    code = (
        "import nearsight.catalogue as c\n"
        "c.RECORD = type('Record', (), {'read_text': lambda self, encoding: '{'})()\n"
        "import sys; sys.argv = ['nearsight', 'models']\n"
        "from nearsight.cli.shell import main; main()"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert outcome.returncode == 1
    assert "Traceback" in outcome.stderr


def test_convert_writes_what_create_model_opens(tmp_path: Path, type_in: Callable[..., tuple[int, str, str]]) -> None:
    released = tmp_path / "deit.pth"
    theirs = timm.create_model("deit_tiny_patch16_224", depth=2, num_classes=3).eval()
    torch.save({"model": theirs.state_dict()}, released)
    code, out, err = type_in("convert", str(released), str(tmp_path / "ours.safetensors"))
    assert code == 0, err
    assert "Wrote" in out
    images = torch.randn(1, 3, 224, 224)
    ours = create_model(weights=tmp_path / "ours.safetensors")
    assert_rounded(ours(images), theirs(images), ours)


def test_reproduce_refuses_an_unknown_paper(refused: Callable[..., str]) -> None:
    said = refused("reproduce", "lift")
    assert "There is no paper 'lift' here; choose one of localvit, lightvit, lit, dwconv, life" in said


def test_a_refusal_in_a_process_of_its_own(tmp_path: Path) -> None:
    said = sentence(run("reproduce", "--markdown", str(tmp_path / "absent" / "page.md")))
    assert "there is no folder" in said


@pytest.mark.slow
def test_reproduce_gives_every_row_a_verdict() -> None:
    outcome = run("reproduce", "life", "--json")
    assert outcome.returncode == 0, outcome.stderr
    answer = json.loads(outcome.stdout)
    assert {row["paper"] for row in answer["rows"]} == {"life"}
    first = next(row for row in answer["rows"] if row["row"] == "DeiT-T-LIFE")
    assert first["status"] == "match"
    assert first["figures"]["params_m"]["printed"] == "5.62"
    used = {figure["explanation"] for row in answer["rows"] for figure in row["figures"].values()} - {None}
    assert used == {entry["number"] for entry in answer["explanations"]}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_behind_the_output_is_told_in_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        outcome = subprocess.run([COMMAND, "models", "nano"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("nearsight: ") and outcome.stderr.endswith("No space left on device.\n")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_as_an_exception_does(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    before, tidied = signal.getsignal(number), False
    signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as end, leaving_on_signals():
            try:
                signal.raise_signal(number)
            finally:
                tidied = True
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert end.value.code == 128 + number and tidied
    assert capsys.readouterr().err == f"nearsight: ended by {signal.Signals(number).name}.\n"


def test_a_signal_that_is_to_be_ignored_is() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with leaving_on_signals():
            signal.raise_signal(signal.SIGHUP)
            went_on = True
    finally:
        signal.signal(signal.SIGHUP, before)
    assert went_on
