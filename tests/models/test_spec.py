import json
from dataclasses import replace

import pytest

from nearsight.models import MODELS, BackboneSpec, Stage
from nearsight.models.spec import alternate, from_json, to_json
from nearsight.parts import ConvMerge, Global, Life, LinearQkv, Mlp, Patchify, Window


def small(**changes):
    stages = (Stage(8, 2, Window(heads=2)), Stage(16, 1, Global(heads=2), merge=ConvMerge()))
    return replace(BackboneSpec(Patchify(patch=4), stages, "test", pool="mean"), **changes)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_is_the_same_after_a_way_through_a_json_file(name):
    spec = MODELS[name]
    spec.check()
    assert from_json(json.loads(json.dumps(to_json(spec)))) == spec


def test_a_json_description_names_types_and_fields():
    assert to_json(Stage(8, 2, None))["mixer"] is None
    assert to_json(Window(heads=2)) == {
        "type": "Window",
        "heads": 2,
        "window": 7,
        "shifted": False,
        "cosine": False,
        "relative": True,
        "trained_window": None,
        "temperature": False,
        "mask_self": False,
    }


@pytest.mark.parametrize("name", ["Backbone", "os.system", None, ["Mlp"]])
def test_a_type_that_is_no_part_is_refused(name):
    with pytest.raises(ValueError, match="which Nearsight does not have"):
        from_json({"type": name})


def test_an_unknown_field_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="gives Mlp the unknown field 'width'; it has act, ratio"):
        from_json({"type": "Mlp", "width": 3})


def test_a_field_that_must_be_there_is_asked_for():
    with pytest.raises(ValueError, match="leaves out the field 'depth' of Stage"):
        from_json({"type": "Stage", "dim": 8, "mixer": None})


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (small(eps="tiny"), "eps='tiny' does not suit BackboneSpec, which takes float above 0 up to 1 there"),
        (
            small(img_size=(32,)),
            r"img_size=\(32,\) does not suit BackboneSpec, which takes int from 1 to 16,384 or a tuple of int from",
        ),
        (
            small(pool="max"),
            "pool='max' does not suit BackboneSpec, which takes 'token' or 'mean' or 'all' or 'sequence' there",
        ),
        (small(stages=(Stage(8, 1, Mlp()),)), "does not suit Stage, which takes Mixer or a tuple of"),  # type: ignore[arg-type]
        (
            small(stages=(Stage(8, 1, Global(heads=True)),)),
            "heads=True does not suit Global, which takes int from",
        ),
        (small(stages=(Stage(8, 1, Global(1), qkv=Life(kernels=3)),)), "kernels=3 does not suit Life"),  # type: ignore[arg-type]
        (small(stages=(Stage(8, 3, (Global(1),) * 2),)), "Stage 1 has 3 layers but 2 parts in its mixer slot"),
        (small(stages=(Stage(8, 1, Global(1), merge=ConvMerge()),)), "Stage 1 must not have a merge part"),
        (small(stages=(Stage(8, 1, None), Stage(8, 1, None))), "Stage 2 must have a merge part"),
        (small(pool="token"), "The head reads an auxiliary token but the model has none; use pool='mean'"),
        (small(stages=(Stage(8, 1, None, qkv=Life()),)), "Life has no place in stage 1: there is no mixer"),
        (small(stages=(Stage(8, 1, Window(1), aux=1),)), "Window in stage 1 has no place for the 1 auxiliary token"),
    ],
)
def test_what_has_no_meaning_is_refused_with_a_sentence(spec, sentence):
    with pytest.raises(ValueError, match=sentence):
        spec.check()


def test_whole_numbers_may_stand_for_fractions():
    small(stages=(Stage(8, 1, None, Mlp(ratio=4)),)).check()


def test_a_slot_holds_one_part_for_all_layers_or_one_for_each():
    stage = Stage(8, 3, alternate(Window(heads=2), 3), qkv=LinearQkv(bias=False))
    layers = list(stage.layers())
    assert [layer.mixer.shifted for layer in layers] == [False, True, False]
    assert {layer.qkv for layer in layers} == {LinearQkv(bias=False)}


def test_strides_double_from_stage_to_stage():
    assert small().strides == (4, 8) and MODELS["swin_tiny"].strides == (4, 8, 16, 32)
