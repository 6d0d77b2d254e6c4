"""What may be written after `--models`."""

import pytest

from nearsight.config.candidates import Entry, as_changes, parse_entries, with_baseline


def test_names_options_and_labels() -> None:
    entries = parse_entries(
        "deit_nano, timm/resnet18, deit_nano:qkv=life:ffn=localvit, low=localvit_nano:local_layers=1-2"
    )
    assert entries == [
        Entry("deit_nano", "deit_nano"),
        Entry("resnet18", "resnet18"),
        Entry("deit_nano:qkv=life:ffn=localvit", "deit_nano", {"qkv": "life", "ffn": "localvit"}),
        Entry("low", "localvit_nano", {"local_layers": "1-2"}),
    ]
    assert entries[2].slug == "deit_nano-qkv-life-ffn-localvit"


def test_options_become_settings_of_the_recipe() -> None:
    (entry,) = parse_entries("one=deit_nano:qkv=life:kernels=[1,3]:drop_path=0.1")
    assert as_changes(entry.settings()) == {
        "model.options.qkv": "life",
        "model.options.kernels": [1, 3],
        "model.drop_path": 0.1,
    }
    ours, theirs = parse_entries("deit_nano:patch_size=2,vit_tiny_patch16_224:patch_size=8")
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
        parse_entries(text)


def test_a_baseline_that_is_not_among_the_models_is_added() -> None:
    entries, label = with_baseline(parse_entries("deit_nano"), "timm/resnet18")
    assert [entry.name for entry in entries] == ["deit_nano", "resnet18"]
    assert label == "resnet18"
    assert with_baseline(entries, "timm/resnet18") == (entries, "resnet18")
    assert with_baseline(entries, None) == (entries, None)
