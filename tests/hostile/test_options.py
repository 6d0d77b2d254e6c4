"""Options with absurd values: refused before any work."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command

from nearsight.cli.shell import app
from nearsight.searching.search import DECIDED

Try = Callable[..., tuple[int, str, str]]

TRAIN = ("train", "digits", "--out", "out", "--epochs", "1", "--limit", "32", "-q")
LINES: list[tuple[str, ...]] = [
    ("train", ""),
    *((*TRAIN, option, value) for option in ("--epochs", "--batch", "--img-size", "--limit") for value in ("0", "-1")),
    *((*TRAIN, option, value) for option in ("--epochs", "--batch", "--threads") for value in ("x", "1e99", "9" * 30)),
    (*TRAIN, "--model", ""),
    (*TRAIN, "--model", "../../etc/passwd"),
    (*TRAIN, "--head", "\udcff"),
    (*TRAIN, "--weights", "/dev/null"),
    (*TRAIN, "--recipe", "/dev/null"),
    (*TRAIN, "--recipe", ""),
    (*TRAIN, "--threads", "100000"),
    (*TRAIN, "--workers", "100000"),
    *(
        (*TRAIN, "--set", change)
        for change in (
            "",
            "=",
            "optimizer.lr=1e308",
            "optimizer.lr=nan",
            "optimizer.lr=-1",
            "optimizer.lr=",
            "augment.rand_augment=rand-m99999999",
            "model.options={kernel: 99999}",
            "model.options={gamma: -1}",
            "schedule.warmup_epochs=1e308",
            "epochs=99999999999",
            "data.val_fraction=7",
            "model.patch_size=-4",
            "seed=-1",
            "seed=1e400",
            "nothing.at.all=1",
            "ema=2",
            "model.localize={ffn: x}",
        )
    ),
    *(("search", "digits", "--macs", "2M", "--out", "out", "--set", f"{key}=1") for key in DECIDED),
    ("distill", "", "digits", "-o", "out"),
    ("distill", "/dev/null", "digits", "-o", "out"),
    ("distill", "no_such_run", "digits", "-o", "out"),
    ("distill", "resnet18", "", "-o", "out"),
    *(
        ("distill", "resnet18", "digits", "-o", "out", option, value)
        for option, value in (
            ("--temperature", "0"),
            ("--temperature", "nan"),
            ("--weight", "2"),
            ("--features", "-1"),
            ("--views", "-1"),
            ("--views", "9" * 30),
            ("--kind", "x"),
            ("--task", "x"),
            ("--unlabelled", "/dev/null"),
            ("--unlabelled", ""),
            ("--into", ""),
        )
    ),
    ("compare", "digits", "--models", "", "--epochs", "1", "-o", "out"),
    ("compare", "digits", "--models", "deit_nano", "--seeds", "5,5", "--epochs", "1", "-o", "out"),
    ("compare", "digits", "--models", "deit_nano", "--seeds", "-1", "--epochs", "1", "-o", "out"),
    ("compare", "digits", "--models", "deit_nano,deit_nano", "--epochs", "1", "-o", "out"),
    ("compare", "digits", "--models", "deit_nano", "--budget", "-5m", "-o", "out"),
    ("compare", "digits", "--models", "deit_nano:kernel=x", "--epochs", "1", "-o", "out"),
    ("bench", ""),
    ("bench", "no_such_model"),
    ("bench", "deit_nano", "--batch", "0"),
    ("bench", "deit_nano", "--size", "99999999"),
    ("bench", "deit_nano", "--runtimes", "banana"),
    ("bench", "deit_base", "--batch", "4096", "--size", "2048", "--runtimes", "eager", "--rounds", "1"),
    ("export", "no_such_model", "out"),
    ("export", "deit_nano", "out", "--size", "0"),
    ("export", "deit_nano", "out", "--size", "999999x999999"),
    ("export", "deit_nano", "--out", "out", "--size", "99999x99999"),
    ("eval", "RUN", "--labels", "/dev/zero"),
    ("push", "RUN", "--licence", "mit", "--folder", "/dev/null"),
    ("explain", "deit_nano", "/dev/null"),
    ("explain", "deit_nano", ""),
    ("predict", "/dev/null", "/dev/null"),
    ("predict", "", ""),
    ("eval", "/dev/null"),
    ("eval", "."),
    ("probe", "no_such_layer"),
    ("probe", "depthwise", "--seed", "9" * 30),
    ("explain", "deit_nano", "/dev/null", "--seed", "9" * 30),
    ("bench", "deit_nano", "--rounds", "9" * 30),
    (*TRAIN[:2], "--out", "\udcff"),
    ("distill", "resnet18", "digits", "--out", "\udcff"),
    ("search", "digits", "--macs", "2M", "--out", "\udcff"),
    ("compare", "digits", "--models", "deit_nano", "--epochs", "1", "--out", "\udcff"),
    ("push", "no_such_run", "--licence", "\udcff", "--folder", "out"),
    ("convert", "/dev/null", "out/x.safetensors"),
    ("convert", "/dev/zero", "out/x.safetensors"),
    ("models", "[[["),
    ("reproduce", ""),
    ("data", "check", ""),
    ("data", "check", "/dev/zero"),
    ("data", "check", "train-{000..999999999}.tar"),
    ("data", "check", "digits?label=x"),
    ("data", "check", "shapes?images=99999999999999999999"),
    ("data", "make", "shapes", "out/shapes", "--images", "100000000000000000000"),
    ("data", "make", "shapes", "/dev/null"),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line)[:60].replace("/", "|"))
def test_absurd_options_are_refused(attempt: Try, place: Path, line: tuple[str, ...]) -> None:
    code, _, err = attempt(*(str(place / "run") if word == "RUN" else word for word in line))
    assert code in (1, 2), (code, err)


@pytest.mark.parametrize(
    "words",
    [
        "predict x y --out",
        "eval x --out",
        "explain x y -o",
        "probe window --draw",
        "export x --out",
        "train digits -o",
        "compare digits -o",
        "bench deit_nano --json",
    ],
)
@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_word_is_not_this_folder(attempt: Try, words: str, empty: str) -> None:
    option = words.split()[-1]
    lines = [(*words.split(), empty)]
    if option.startswith("--"):
        lines.append((*words.split()[:-1], f"{option}={empty}"))
    for line in lines:
        code, _, err = attempt(*line)
        assert code == 1 and err.startswith(f"nearsight: {option} is empty") and not list(Path.cwd().iterdir())


@pytest.mark.parametrize("number", ["257", "100000", "9" * 30])
def test_more_workers_than_a_machine_has_are_never_started(attempt: Try, place: Path, number: str) -> None:
    run, image = str(place / "run"), str(place / "image.png")
    for line in (("predict", run, image), ("eval", run), ("data", "check", str(place / "table" / "labels.csv"))):
        code, _, err = attempt(*line, "--workers", number)
        assert code == 1 and f"{number} workers won't do" in err


VALUES = (
    *("", " ", "0", "-1", "1e99", "nan", "x", "9" * 30, "1.5", "/dev/null", "/dev/full", "no/such/place", "\udcff"),
    *("[[[", "{}", "null", "1,2,,3", "=", "a=b=c", "../..", "~nobody", "\N{SNOWMAN}" * 300, "y" * 100_000),
)


def lines(place: Path) -> dict[str, tuple[str, ...]]:
    """Each command with what it needs, so that it would work but for the option that is tried."""
    run, image = str(place / "run"), str(place / "image.png")
    short = ("--epochs", "1", "--limit", "32", "-q", "--cpu", "--out", "out")
    return {
        "train": ("train", "digits", "--model", "deit_nano", *short),
        "distill": ("distill", run, "digits", "--into", "deit_nano", *short),
        "eval": ("eval", run),
        "calibrate": ("calibrate", run),
        "predict": ("predict", run, image),
        "embed": ("embed", str(place / "table" / "labels.csv"), "--model", run, "--out", "out/a.npz", "--cache", "out"),
        "doctor": ("doctor",),
        "explain": ("explain", run, image, "--out", "out"),
        "probe": ("probe", "depthwise"),
        "app": ("app", "no_such_model"),
        "serve": ("serve", "no_such_model"),
        "export": ("export", run, "--out", "out"),
        "push": ("push", run, "--licence", "mit", "--folder", "out"),
        "compare": ("compare", "digits", "-m", "deit_nano", "--limit", "32", "--epochs", "1", "-q", "--out", "out"),
        "search": ("search", "digits", "--macs", "2M", *short),
        "bench": ("bench", "deit_nano", "--runtimes", "eager", "--rounds", "1", "--batch", "1"),
        "models": ("models", "nano"),
        "weights get": ("weights", "get", "deit_tiny"),
        "convert": ("convert", str(place / "weights.pth"), "out/x.safetensors"),
        "reproduce": ("reproduce", "no_such_paper"),
        "data check": ("data", "check", str(place / "table" / "labels.csv")),
        "data make shapes": ("data", "make", "shapes", "out", "--images", "4"),
    }


# Where a command has taken all of its options and begins to work for long; it stops there.
WORK = {
    "eval": ("nearsight.evaluation.Evaluation.save",),
    "explain": ("nearsight.explanation.methods.Explanation.save",),
    "bench": ("nearsight.benchmarking.measure.measure",),
    "export": ("nearsight.deployment.export.write_model",),
    "compare": ("nearsight.comparison.compare.run_here", "nearsight.comparison.compare.epochs_within"),
    "search": ("nearsight.searching.search.Searcher.run",),
}


def test_no_command_is_forgotten() -> None:
    def names(group: object, before: str) -> list[str]:
        found = getattr(group, "commands", None)
        if found is None:
            return [before.strip()]
        own = [before.strip()] if getattr(group, "invoke_without_command", False) else []
        shown = {key: one for key, one in found.items() if not one.hidden}
        return own + [name for key, one in shown.items() for name in names(one, f"{before} {key}")]

    assert set(names(get_command(app), "")) - {"weights", ""} == set(lines(Path()))


def options_of(name: str) -> list[str]:
    """The options of a command that take a value."""
    command = get_command(app)
    for word in name.split():
        command = command.commands[word]  # type: ignore[attr-defined]
    taken = [one for one in command.params if one.param_type_name == "option" and not one.is_flag]  # type: ignore[attr-defined]
    return [one.opts[0] for one in taken]


# One test an option, so that a slice can be run: `-k "predict and score"`.
OPTIONS = [(name, option) for name in lines(Path()) for option in options_of(name)]


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=map(" ".join, OPTIONS))
def test_every_option_of_every_command_with_every_absurd_value(
    attempt: Try, place: Path, name: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enough(*_: object, **__: object) -> None:
        raise OSError("All options were taken.")

    for target in WORK.get(name, ()):
        monkeypatch.setattr(target, enough)
    faults, slow = [], 0.0
    for value in VALUES:
        began = time.process_time()
        try:
            attempt(*lines(place)[name], option, value, may_write=(value,))
        except AssertionError as fault:
            faults.append(f"{value[:40]!r}: {str(fault)[:600]}")
        slow = max(slow, time.process_time() - began)
        for left in Path.cwd().iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    print(f"{len(VALUES)} cases of {name} {option}, {len(faults)} faults, the slowest took {slow:.1f} s")
    assert not faults, "\n".join(faults)
