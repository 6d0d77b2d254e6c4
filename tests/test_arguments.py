"""A verb that is given something of another kind than it takes says so in a sentence, before any work."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import nearsight
from nearsight.training import load_recipe

VERBS = [name for name in nearsight.__all__ if inspect.isfunction(getattr(nearsight, name))]
SIGNATURES = {verb: inspect.signature(getattr(nearsight, verb)).parameters for verb in VERBS}
# Every argument with its annotation as it is written; some take anything: images in any form, options of a model.
ARGUMENTS = [
    pytest.param(verb, name, str(parameter.annotation), id=f"{verb}-{name}")
    for verb, parameters in SIGNATURES.items()
    for name, parameter in parameters.items()
    if parameter.annotation is not Any
]
NEEDED = {"model": nn.Identity(), "recipe": load_recipe("small-data")}  # others take a text


class Odd:
    """A kind of value that nothing takes."""


def call(verb: str, **given: Any) -> Any:
    """Call a verb with these arguments, and right ones for the others that it needs."""
    needed = [name for name, parameter in SIGNATURES[verb].items() if parameter.default is inspect.Parameter.empty]
    needed = [name for name in needed if SIGNATURES[verb][name].kind is not inspect.Parameter.VAR_KEYWORD]
    return getattr(nearsight, verb)(**{name: NEEDED.get(name, "x") for name in needed} | given)


@pytest.mark.parametrize(("verb", "argument", "annotation"), ARGUMENTS)
def test_an_argument_of_another_kind_gets_a_sentence(verb: str, argument: str, annotation: str) -> None:
    wrong = {
        "Odd": Odd(),
        "generator": (one for one in "ab"),
        "bytes": b"ab",
        "dict": {"a": 1},
        "ndarray": np.ones((1, 1, 1)),
    }
    if "Mapping" in annotation:
        del wrong["dict"]
    for kind, value in wrong.items():
        with pytest.raises(TypeError) as caught:
            call(verb, **{argument: value})
        sentence = str(caught.value)
        assert sentence.startswith(f"{verb}() takes ") and "\n" not in sentence
        assert f" as its {argument}, not {kind}" in sentence


@pytest.mark.parametrize(("verb", "argument", "annotation"), [case for case in ARGUMENTS if "Path" in case.values[2]])
def test_an_empty_path_is_not_the_present_folder(verb: str, argument: str, annotation: str) -> None:
    for text, reason in {"": "given an empty", "  ": "given an empty", "a\0b": "no file has a zero byte"}.items():
        for given in (text, [text]) if "Sequence" in annotation else (text,):
            if not annotation.startswith("collections.abc.Sequence") or given != text:
                with pytest.raises(ValueError, match=reason):
                    call(verb, **{argument: given})


@pytest.mark.parametrize("verb", [verb for verb in VERBS if SIGNATURES[verb] and "options" not in SIGNATURES[verb]])
def test_an_unknown_argument_gets_the_nearest_known(verb: str) -> None:
    *_, last = SIGNATURES[verb]
    with pytest.raises(TypeError) as caught:
        call(verb, **{f"{last}x": 1})
    assert f"{verb}() has no argument '{last}x'; did you mean '{last}'? It takes " in str(caught.value)
    with pytest.raises(TypeError, match=rf"^{verb}\(\): too many positional arguments; it takes "):
        getattr(nearsight, verb)(*[1] * 99)


@pytest.mark.parametrize(
    ("sentence", "work"),
    [
        (
            "create_model() takes int, (int, int) or None as its img_size, not list (int, int, int).",
            lambda: nearsight.create_model("deit_nano", img_size=[32, 32, 3]),  # type: ignore[arg-type]
        ),
        (
            "compare() takes str or a sequence of str as its models, not tuple (str, None).",
            lambda: nearsight.compare("shapes", ("deit_nano", None)),  # type: ignore[arg-type]
        ),
        (
            "train() takes float or None as its lr, not str.",
            lambda: nearsight.train("shapes", lr="0.1"),  # type: ignore[arg-type]
        ),
        (
            "explain() takes 'mean', 'max' or 'min' as its fusion, not float.",
            lambda: nearsight.explain("deit_nano", "a.png", fusion=0.5),  # type: ignore[arg-type]
        ),
        (
            "fold() takes torch.nn.Module as its model, not str.",
            lambda: nearsight.fold("deit_nano"),  # type: ignore[type-var]
        ),
        (
            "predict() takes int as its top, not None.",
            lambda: nearsight.load("deit_nano").predict("a.png", top=None),  # type: ignore[arg-type]
        ),
        (
            "predict(): missing a required argument: 'images'; it takes source, images, top, min_score, batch, "
            "workers, device, tta, error_rate and progress.",
            lambda: nearsight.predict("deit_nano"),  # type: ignore[call-arg]
        ),
    ],
)
def test_a_sentence_says_what_is_taken_and_what_came(sentence: str, work: Callable[[], Any]) -> None:
    with pytest.raises(TypeError) as caught:
        work()
    assert str(caught.value) == sentence


def test_numbers_of_numpy_are_numbers() -> None:
    model = nearsight.create_model("deit_nano", img_size=np.array([24, 40]), num_classes=np.int64(3))  # type: ignore[arg-type]
    assert (model.img_size, model.num_classes) == ((24, 40), 3)
    once = nearsight.load("deit_nano", seed=np.uint8(4), img_size=np.int32(32))  # type: ignore[arg-type]
    again = nearsight.load("deit_nano", seed=4, img_size=32)
    images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
    found = list(once.predict(images, top=np.int16(2), min_score=np.float32(0.5)))  # type: ignore[arg-type]
    wanted = list(again.predict(images, top=2, min_score=0.5))
    assert [one.to_dict() for one in found] == [one.to_dict() for one in wanted]
    local = nearsight.localize(again.model, ffn="localvit", layers=np.arange(1, 3), inplace=np.bool_(False))  # type: ignore[arg-type]
    assert local is not again.model


def test_kinds_are_told_without_torch() -> None:
    code = """
import sys, nearsight
for verb in ("describe_models", "evaluate", "load", "open_data", "predict", "serve"):
    for given in ({}, {"device": 0.5}):
        needed = {"images": "a.png"} if verb == "predict" else {}
        try:
            getattr(nearsight, verb)("nowhere" if given else 0.5, **needed, **given)
        except TypeError as error:
            print(error)
assert "torch" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    sentences = run.stdout.splitlines()
    for verb in ("evaluate", "load", "predict", "serve"):
        assert f"{verb}() takes torch.device, str or None as its device, not float." in sentences
    kinds = (
        "str or None as its pattern",
        "str or os.PathLike as its source",
        "str, os.PathLike or Predictor as its source",
    )
    for verb, kind in zip(("describe_models", "open_data", "predict"), kinds, strict=True):
        assert f"{verb}() takes {kind}, not float." in sentences


def test_trainings_take_numbers_of_numpy(tmp_path: Path) -> None:
    outcome = nearsight.train(
        "shapes?images=8&size=32",
        model="dwnet_nano",
        task="segment",
        out=tmp_path / "run",
        epochs=np.int64(1),  # type: ignore[arg-type]
        lr=np.float32(1e-3),  # type: ignore[arg-type]
        batch=np.int8(4),  # type: ignore[arg-type]
        quiet=np.bool_(True),  # type: ignore[arg-type]
    )
    assert "epochs: 1\n" in (tmp_path / "run" / "recipe.yaml").read_text() and outcome is not None
