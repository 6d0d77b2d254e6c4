"""A model of one's own is a file of its description: every verb takes it, and a bad one gets a sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import nearsight
from nearsight.config.files import load_recipe
from nearsight.models import MODELS, BackboneSpec
from nearsight.models.spec import LONGEST, read_spec, to_json, write_spec

SMALL = {"epochs": 1, "limit": 64, "batch": 32, "quiet": True}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    spec = nearsight.create_model("swin_nano", ffn="localvit", pool="sequence").spec
    write_spec(spec, tmp_path / "mine.json")
    return tmp_path / "mine.json"


def test_a_model_is_made_from_a_spec_or_its_file(mine: Path) -> None:
    spec = read_spec(mine)
    for given in (spec, mine, str(mine)):
        model = nearsight.create_model(spec=given, num_classes=3, img_size=48)
        assert model.spec == spec and model.img_size == (48, 48)
        assert model(torch.randn(1, 3, 40, 48)).shape == (1, 3)
    wider = nearsight.create_model(spec=mine, gamma=2)
    assert wider.spec.stages[0].ffn.gamma == 2


def test_a_trained_run_is_whole_without_the_file(mine: Path, tmp_path: Path) -> None:
    outcome = nearsight.train("digits", model=str(mine), out=tmp_path / "run", **SMALL)
    spec = read_spec(mine)
    mine.unlink()
    assert outcome.model == "mine"
    assert nearsight.load(tmp_path / "run").model.spec.stages == spec.stages
    recipe = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert recipe.model.name == "mine" and recipe.model.described() == spec
    assert nearsight.train(resume=tmp_path / "run", quiet=True) == outcome


@pytest.mark.slow
def test_a_comparison_takes_it_beside_models_by_name(mine: Path, tmp_path: Path) -> None:
    found = nearsight.compare(
        "digits",
        f"deit_nano,{mine},narrow={mine}:gamma=1",
        epochs=1,
        seeds=1,
        limit=64,
        changes={"batch": 32},
        scratch_only=True,
        out=tmp_path / "compared",
        jobs=1,
        quiet=True,
    )
    assert not found.failures
    assert [model.label for model in found.models] == ["deit_nano", "mine", "narrow"]
    assert found.models[1].parameters > found.models[2].parameters


def test_a_benchmark_and_a_segmenter_take_it(mine: Path) -> None:
    from nearsight.benchmarking.models import open_model
    from nearsight.tasks.dense import backbone_of

    assert open_model(str(mine), 32).label == "mine"  # type: ignore[union-attr]
    choice = load_recipe("small-segment", {"model.name": str(mine), "model.img_size": 64}).model
    spec, name = backbone_of(choice, None)
    assert isinstance(spec, BackboneSpec) and name == "mine" and spec.stages == read_spec(mine).stages


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    described = to_json(MODELS["swin_nano"])
    change(described)
    return json.dumps(described)


WRONG = {
    "not there": (None, "There is no file"),
    "no JSON": ("{", "is not JSON"),
    "nested": ("[" * 5000, "is not JSON"),
    "a list": ("[]", "where the spec of the model should be"),
    "a part": (json.dumps(to_json(MODELS["swin_nano"].embed)), "holds Patchify where the spec"),
    "code": (edited(lambda d: d.update(type="os.system")), "names the type 'os.system'"),
    "another field": (edited(lambda d: d.update(color=1)), "unknown field 'color'"),
    "out of range": (edited(lambda d: d["stages"][0].update(dim=10**9)), "dim=1000000000 does not suit Stage"),
    "no number": (edited(lambda d: d["stages"][0].update(depth=float("nan"))), "depth=nan does not suit Stage"),
    "giant": (" " * (LONGEST + 1), "far more than any description"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_gets_one_sentence(kind: str, tmp_path: Path, type_in: Callable[..., Any]) -> None:
    text, expected = WRONG[kind]
    path = tmp_path / "wrong.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=expected):
        nearsight.create_model(spec=path)
    code, _, err = type_in("train", "digits", "--model", str(path), "--out", str(tmp_path / "run"))
    assert code == 1 and expected in err and err.count("\n") == 1 and not err.endswith("..\n")
    assert not (tmp_path / "run").exists()


def test_a_name_and_a_spec_exclude_each_other(mine: Path) -> None:
    with pytest.raises(ValueError, match="leave one of them out"):
        nearsight.create_model("deit_nano", spec=mine)
