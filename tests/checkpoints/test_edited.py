"""An edited or damaged description is refused in a sentence, at once, whatever it claims."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import nearsight


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = nearsight.create_model("deit_nano", num_classes=3)
    return nearsight.save(model, tmp_path_factory.mktemp("edited") / "model.safetensors")


def with_value(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda about: about | values


def with_stage(**values: Any) -> Callable[[dict[str, Any]], Any]:
    def edit(about: dict[str, Any]) -> Any:
        about["spec"]["stages"][0] |= values
        return about

    return edit


def trained(**values: Any) -> Callable[[dict[str, Any]], Any]:
    whole = {"task": "classify", "classes": ["a", "b", "c"], "input": {"size": [32, 32]}}
    return with_value(trained={key: value for key, value in (whole | values).items() if value is not None})


EDITS = {
    "spec null": (with_value(spec=None), "says spec: null"),
    "spec empty": (with_value(spec={}), "names the type None"),
    "two kinds": (with_value(timm={}), "one of spec, timm, dense describes"),
    "-3 classes": (with_value(num_classes=-3), "num_classes: -3"),
    "x classes": (with_value(num_classes="x"), 'num_classes: "x"'),
    "1.5 classes": (with_value(num_classes=1.5), "num_classes: 1.5"),
    "1e10 classes": (with_value(num_classes=10**10), "10000000000 classes, more than model.safetensors has"),
    "no channels": (with_value(in_chans=0), "in_chans: 0"),
    "huge images": (with_value(img_size=[10**6, 10**6]), "sides go up to 16384"),
    "flat images": (with_value(img_size=[0, 32]), "a height and a width in pixels"),
    "text for images": (with_value(img_size="x"), "a height and a width in pixels"),
    "later version": (with_value(version=99), "version: 99, but this Nearsight reads version 1"),
    "wide": (with_stage(dim=10**9), "dim: 1e\\+09, more than model.safetensors has"),
    "negative width": (with_stage(dim=-4), "."),
    "deep": (with_stage(depth=10**8), "depth: 1e\\+08, more than"),
    "text for depth": (with_stage(depth="x"), "depth='x' does not suit Stage"),
    "wide inside": (with_stage(ffn={"type": "Mlp", "ratio": 1e9, "act": "gelu"}), "."),
    "heads": (with_stage(mixer={"type": "Global", "heads": 10**9}), "heads"),
    "name": (with_value(name=5), "a name is a text"),
    "origin": (with_value(origin=[1]), "origin: \\[1\\], but it holds names and values"),
    "norms": (with_value(output_norms={"a": "b"}), "norms belong to numbers of stages"),
    "localized": (with_value(localized={"x": 1}), "."),
    "a list": (lambda about: [about], "does not describe a model of Nearsight"),
    "no classes": (trained(classes=None), "has no names of the classes"),
    "one class": (trained(classes=["a"]), "names 1 classes, but the model has 3"),
    "unknown task": (trained(task="fly"), "There is no task 'fly'"),
    "no input": (trained(input=None), "with which images"),
    "input of text": (trained(input={"size": "x"}), "size is 'x'"),
    "input of nothing": (trained(input={"size": [0, 0]}), "size is \\[0, 0\\]"),
    "unknown input": (trained(input={"size": [32, 32], "zoom": 2}), "zoom"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_description_is_refused_in_a_sentence(edit: str, saved: Path) -> None:
    file = saved.with_suffix(".json")
    whole = file.read_text()
    change, sentence = EDITS[edit]
    try:
        file.write_text(json.dumps(change(json.loads(whole))))
        begun = time.process_time()
        with pytest.raises(ValueError, match=sentence) as refused:
            nearsight.load(saved)
        assert time.process_time() - begun < 10
        assert "\n" not in str(refused.value)
    finally:
        file.write_text(whole)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"format": "nearsight-model", "version": 1, "spec": ' + "[" * 100_000 + "]" * 100_000 + "}", "too deeply"),
        ('{"format": "nearsight-mod', "is not whole JSON"),
        ("", "is not whole JSON"),
    ],
)
def test_a_damaged_description_is_refused(content: str, sentence: str, saved: Path) -> None:
    file = saved.with_suffix(".json")
    whole = file.read_text()
    try:
        file.write_text(content)
        with pytest.raises(ValueError, match=sentence):
            nearsight.load(saved)
    finally:
        file.write_text(whole)
    assert nearsight.load(saved).model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


def test_positions_of_timm_are_resized_as_timm_resizes_them(tmp_path: Path) -> None:
    import timm
    from timm.layers import resample_abs_pos_embed

    options = {"depth": 1, "embed_dim": 48, "num_heads": 3}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=2, img_size=64, **options).eval()
    path = nearsight.save(model, tmp_path / "model.safetensors", **options)
    larger = nearsight.load(path, img_size=96)
    assert larger.preprocessing.size == (96, 96)
    expected = resample_abs_pos_embed(model.pos_embed, [6, 6], [4, 4], num_prefix_tokens=1)
    torch.testing.assert_close(larger.model.pos_embed, expected, rtol=0, atol=0)


def test_files_of_others_are_not_written_over(tmp_path: Path) -> None:
    model = nearsight.create_model("deit_nano", num_classes=2)
    path = tmp_path / "model.safetensors"
    nearsight.save(model, path)
    nearsight.save(model, path)  # its own files
    for file, content in ((path, b"mine"), (path.with_suffix(".json"), b'{"mine": 1}')):
        kept = file.read_bytes()
        path.with_suffix(".json").unlink()
        file.write_bytes(content)
        with pytest.raises(ValueError, match="was not written by this command"):
            nearsight.save(model, path)
        assert file.read_bytes() == content
        file.write_bytes(kept)
        nearsight.save(model, path, force=True)
