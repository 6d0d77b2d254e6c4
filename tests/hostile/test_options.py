"""Options with absurd values: refused before any work."""

from collections.abc import Callable

import pytest

Try = Callable[..., tuple[int, str, str]]

TRAIN = ("train", "digits", "--out", "out", "--epochs", "1", "--limit", "32", "-q")
LINES: list[tuple[str, ...]] = [
    ("train", ""),
    *((*TRAIN, option, value) for option in ("--epochs", "--batch", "--img-size", "--limit") for value in ("0", "-1")),
    *((*TRAIN, option, value) for option in ("--epochs", "--batch", "--threads") for value in ("x", "1e99", "9" * 30)),
    (*TRAIN, "--model", ""),
    (*TRAIN, "--model", "../../etc/passwd"),
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
    ("explain", "deit_nano", "/dev/null"),
    ("explain", "deit_nano", ""),
    ("predict", "/dev/null", "/dev/null"),
    ("predict", "", ""),
    ("eval", "/dev/null"),
    ("eval", "."),
    ("probe", "no_such_layer"),
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
def test_absurd_options_are_refused(attempt: Try, line: tuple[str, ...]) -> None:
    code, _, err = attempt(*line)
    assert code in (1, 2), (code, err)
