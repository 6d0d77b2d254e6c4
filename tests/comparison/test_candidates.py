"""What may be written after `--models`."""

import pytest

from nearsight.config.candidates import Candidate, parse_candidates, with_baseline
from nearsight.config.files import parse_changes


def test_names_options_and_labels() -> None:
    candidates = parse_candidates(
        "deit_nano, timm/resnet18, deit_nano:qkv=life:ffn=localvit, low=localvit_nano:local_layers=1-2"
    )
    assert candidates == [
        Candidate("deit_nano", "deit_nano"),
        Candidate("resnet18", "resnet18"),
        Candidate("deit_nano:qkv=life:ffn=localvit", "deit_nano", {"qkv": "life", "ffn": "localvit"}),
        Candidate("low", "localvit_nano", {"local_layers": "1-2"}),
    ]
    assert candidates[2].slug == "deit_nano-qkv-life-ffn-localvit"


def test_options_become_settings_of_the_recipe() -> None:
    (candidate,) = parse_candidates("one=deit_nano:qkv=life:kernels=[1,3]:drop_path=0.1")
    assert parse_changes(candidate.settings()) == {
        "model.options.qkv": "life",
        "model.options.kernels": [1, 3],
        "model.drop_path": 0.1,
    }
    ours, theirs = parse_candidates("deit_nano:patch_size=2,vit_tiny_patch16_224:patch_size=8")
    assert ours.settings() == ["model.patch_size=2"]
    assert theirs.settings() == ["model.options.patch_size=8"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("deit_nano,deit_nano", "Two models are called 'deit_nano'; give one of them another name: LABEL=deit_nano"),
        ("", "No model was named; give --models"),
        ("deit_nano,,swin_nano", "'' is not a model; write NAME"),
        ("../x=deit_nano", "'../x=deit_nano' is not a model; write NAME"),
        ("deit_nano:life", "'life' in 'deit_nano:life' is not an option; write KEY=VALUE once"),
        ("deit_nano:qkv=life:qkv=linear", "'qkv=linear' in .* is not an option; write KEY=VALUE once"),
    ],
)
def test_what_is_not_a_list_of_models_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_candidates(text)


def test_a_baseline_that_is_not_among_the_models_is_added() -> None:
    candidates, label = with_baseline(parse_candidates("deit_nano"), "timm/resnet18")
    assert [candidate.name for candidate in candidates] == ["deit_nano", "resnet18"]
    assert label == "resnet18"
    assert with_baseline(candidates, "timm/resnet18") == (candidates, "resnet18")
    assert with_baseline(candidates, None) == (candidates, None)
