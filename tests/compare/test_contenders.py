"""Before anything is trained, every model is built and weighed."""

import pytest
import timm

from nearsight import create_model
from nearsight.compare.contenders import Contender, check_contenders, choose_baseline, is_convnet, suggest_convnet
from nearsight.compare.entries import parse_entries
from nearsight.compare.plan import Shared

SHARED = Shared(data="digits", recipe="small-data", epochs=3, limit=200)


def weighed(text: str, shared: Shared = SHARED) -> list[Contender]:
    return check_contenders(parse_entries(text), shared)[0]


def test_models_get_the_same_recipe_and_their_own_cost() -> None:
    deit, life, resnet = weighed("deit_nano,life=deit_nano:qkv=life,resnet18")
    assert deit.parameters == sum(p.numel() for p in create_model("deit_nano", num_classes=10).parameters())
    assert life.parameters > deit.parameters
    assert (resnet.convnet, deit.convnet) == (True, False)
    same = [contender.recipe.model_dump(exclude={"model"}) for contender in (deit, life, resnet)]
    assert same[0] == same[1] == same[2]
    assert deit.recipe.epochs == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "deit_nano,deit_nan",
            "deit_nan can't be compared: Neither Nearsight nor timm has a model 'deit_nan'; did you",
        ),
        ("deit_nano:qkv=lif", "deit_nano:qkv=lif can't be compared: qkv='lif' is not known; use one of linear, life"),
        ("deit_nano:kernls=3", "can't be compared: deit_nano has no option 'kernls'"),
    ],
)
def test_a_model_that_does_not_build_is_refused_before_the_first_step(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        weighed(text)


@pytest.mark.parametrize("name", ["resnet18", "lcnet_050", "convnext_atto", "efficientnet_lite0", "regnety_002"])
def test_convnets_are_known_as_such(name: str) -> None:
    assert is_convnet(name, timm.create_model(name))


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mixer_s16_224"])
def test_others_are_not(name: str) -> None:
    assert not is_convnet(name, timm.create_model(name))


def test_a_convnet_of_like_size_is_suggested_where_none_is() -> None:
    contenders = weighed("deit_nano,localvit_nano")
    name = suggest_convnet(contenders)
    assert name is not None
    model = timm.create_model(name, num_classes=10)
    size = sum(p.numel() for p in model.parameters())
    assert is_convnet(name, model)
    assert 0.4 < size / contenders[0].parameters < 2.5
    assert suggest_convnet(weighed("deit_nano,resnet18")) is None


def test_the_baseline_is_the_convnet_else_the_first_unless_one_is_wanted() -> None:
    mixed, plain = weighed("deit_nano,resnet18"), weighed("deit_nano,lit_nano")
    assert choose_baseline(mixed, None) == "resnet18"
    assert choose_baseline(plain, None) == "deit_nano"
    assert choose_baseline(mixed, "deit_nano") == "deit_nano"
