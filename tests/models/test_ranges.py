"""Every field knows its range, and one check serves options, JSON and Python: each absurd value gets one sentence."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nearsight
from nearsight.models import MODELS, Backbone, BackboneSpec, backbone
from nearsight.models.spec import from_json, iter_parts, spec_from_json, to_json
from nearsight.parts import Mlp
from nearsight.parts.ranges import Range, annotations, check_fields, fits, wording
from nearsight.parts.slots import REGISTERED, Part

ABSURD = [
    *(("deit_nano", "num_classes", value) for value in (-1, "x", 1.5, 10**10, True)),
    *(("deit_nano", "in_chans", value) for value in (-1, 0, "x", 10**6)),
    *(("deit_nano", "img_size", value) for value in (0, -8, "x", 1.5, 10**6, (32,), (32, 0), (1, 2, 3))),
    *(("deit_nano", "drop_rate", value) for value in (-0.1, 2.0, float("nan"), "x")),
    *(("deit_nano", "drop_path_rate", value) for value in (-1, 1.5)),
    *((name, "patch_size", v) for name in ("deit_nano", "lit_nano", "lightvit_nano") for v in (0, -4, 10**9)),
    *((name, "kernel", value) for name in ("dwnet_nano", "localvit_nano") for value in (-3, 0, 99999, "x", 2.5)),
    *((name, "window", v) for name in ("swin_nano", "lightvit_nano") for v in (0, -1, 10**9)),
    *(("localvit_nano", "gamma", value) for value in (0, -1, 1e-9, 1e300, float("inf"))),
    *(("deit_nano_life", "kernels", value) for value in ((0,), (-1, 3), (1, 99999), (1.5,), (), 3)),
    *(("deit_nano", "heads", value) for value in (0, -3, 10**9)),
    *(("ddwnet_nano", "reduction", value) for value in (0, -1, 1000)),
    *(("tnt_tiny", "pixel_stride", value) for value in (0, -4)),
    *(("pvt_tiny", "sr_ratio", value) for value in (0, -1)),
    ("lightvit_nano", "neck", 0),
    ("lightvit_nano", "aux", -1),
    ("deit_nano", "norm", "group"),
    ("deit_nano", "act", "tanh"),
]


@pytest.mark.parametrize(("name", "option", "value"), ABSURD)
def test_an_absurd_option_gets_one_sentence(name: str, option: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        nearsight.create_model(name, **{option: value})
    text = str(refused.value)
    assert len(text) < 250 and "\n" not in text and text.endswith(".")


@pytest.mark.parametrize("absurd", [-1, 0, 10**8, 1e9, "x", None, [], {}, True])
@pytest.mark.parametrize("field", ["dim", "depth"])
def test_json_and_python_give_the_same_sentence(field: str, absurd: Any) -> None:
    described = to_json(MODELS["deit_nano"])
    described["stages"][0][field] = absurd
    with pytest.raises(ValueError) as refused:
        spec_from_json(described)
    assert f"{field}=" in str(refused.value) or "names the type None" in str(refused.value)


def test_descriptions_that_are_no_model_are_refused() -> None:
    for value in (None, 3, "x", [], [1], {"type": "Mlp"}):
        with pytest.raises(ValueError, match=r"where the spec of the model should be|holds"):
            spec_from_json(value)
    nested: Any = {"type": "Mlp"}
    for _ in range(5000):
        nested = {"type": "PatchesOnly", "ffn": nested}
    described = copy.deepcopy(to_json(MODELS["deit_nano"]))
    described["stages"][0]["ffn"] = nested
    with pytest.raises(ValueError, match="parts inside parts, more than 32 deep"):
        from_json(described)
    described["stages"] = to_json(MODELS["deit_nano"])["stages"] * 1000
    with pytest.raises(ValueError, match="1 to 8 stages, not 1000"):
        spec_from_json(described)


def test_an_edited_file_is_refused_in_time(tmp_path: Path) -> None:
    file = nearsight.save(nearsight.create_model("deit_nano", num_classes=3), tmp_path / "model.safetensors")
    beside = file.with_suffix(".json")
    written = json.loads(beside.read_text())
    edits = [{"num_classes": value} for value in (-3, "x", 10**10)] + [{"img_size": [10**6, 10**6]}, {"spec": None}]
    for edit in edits:
        beside.write_text(json.dumps(written | edit))
        with pytest.raises(ValueError):
            nearsight.create_model(weights=file)
    beside.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        nearsight.create_model(weights=file)


def wide_spec(**changes: Any) -> BackboneSpec:
    spec = MODELS["deit_nano"]
    return replace(spec, stages=(replace(spec.stages[0], **changes),))


GIANTS: dict[str, Callable[[], Any]] = {
    "width and depth": lambda: Backbone(wide_spec(dim=3 * 8192, depth=64)),
    "width and tokens": lambda: nearsight.create_model("deit_nano", img_size=16384, patch_size=1),
    "width and ratio": lambda: Backbone(wide_spec(dim=3 * 4096, depth=2, ffn=Mlp(ratio=64.0))),
    "classes": lambda: Backbone(wide_spec(dim=3 * 8192, depth=1), num_classes=1_000_000),
}


@pytest.mark.linux
@pytest.mark.parametrize("case", GIANTS)
def test_products_of_numbers_in_range_are_refused_before_memory_is_taken(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource  # which Windows has not

    monkeypatch.setattr(backbone, "free_bytes", lambda device: 2 * 10**9)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"GB of memory; 2\.0 GB are free\. Make it smaller\."):
        GIANTS[case]()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < 2**19  # half a gigabyte


WRONG = {
    "no batch": (torch.zeros(3, 32, 32), r"images \[B, 3, H, W\].*shape \(3, 32, 32\); add a first axis"),
    "one channel": (torch.zeros(2, 1, 32, 32), r"not 1 channels \(shape \(2, 1, 32, 32\)\)"),
    "channels last": (torch.zeros(2, 32, 32, 3), r"its channels stand last: permute\(0, 3, 1, 2\)"),
    "no pixels": (torch.zeros(1, 3, 0, 32), "at least one pixel a side"),
    "five axes": (torch.zeros(1, 1, 3, 32, 32), r"not a tensor of the shape \(1, 1, 3, 32, 32\)"),
    "bytes": (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), r"not torch\.uint8; convert and normalise"),
    "no tensor": (np.zeros((1, 3, 32, 32)), "as a tensor, not ndarray"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("name", ["deit_nano", "lightvit_nano"])
def test_wrong_images_are_named_with_what_is_wanted(name: str, case: str) -> None:
    model = Backbone(MODELS[name], num_classes=2).eval()
    images, sentence = WRONG[case]
    for call in (model, model.forward_features, model.forward_intermediates):
        with pytest.raises((ValueError, TypeError), match=sentence):
            call(images)


def test_changing_a_model_is_checked_too() -> None:
    model: Any = nearsight.create_model("deit_nano", num_classes=2)
    for change in (
        lambda: model.reset_classifier(-1),
        lambda: model.set_input_size(0),
        lambda: model.set_input_size(patch_size=0),
    ):
        with pytest.raises(ValueError, match="does not suit"):
            change()
    assert model.num_classes == 2 and model.img_size == (32, 32)


def test_whole_numbers_of_numpy_are_taken() -> None:
    model = nearsight.create_model("deit_nano", num_classes=np.int64(3), img_size=np.int32(16))
    assert model.num_classes == 3 and model.img_size == (16, 16)


def test_every_number_of_every_part_has_a_range() -> None:
    """Only `bool`, choices by name and other parts go without."""

    def bare(hint: Any) -> bool:
        text = str(hint)
        return wording(hint) in ("int", "float") or "int | None" in text or "tuple[int" in text

    parts = [
        kind for kind in REGISTERED.values() if issubclass(kind, Part) and kind.__module__.startswith("nearsight.")
    ]
    assert len(parts) >= 25
    for kind in parts:
        for field in kind.__dataclass_fields__:
            assert not bare(annotations(kind)[field]), f"{kind.__name__}.{field}"
    for spec in MODELS.values():
        for part in iter_parts(spec):
            check_fields(part)


def test_words_of_ranges() -> None:
    assert str(Range(1, 255, odd=True)) == "(odd) from 1 to 255" and str(Range(0, 64, above=True)) == "above 0 up to 64"
    assert fits(3, int | None) and not fits(True, int) and not fits(1, bool)
