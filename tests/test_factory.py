"""The front door: models by name."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import nearsight
from nearsight import create_model, list_models
from nearsight.checkpoints import save_model
from nearsight.models import MODELS


def test_the_library_is_imported_without_torch() -> None:
    code = "import sys, nearsight; dir(nearsight); nearsight.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_is_there() -> None:
    for name in nearsight.__all__:
        assert getattr(nearsight, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'creat_model'"):
        nearsight.creat_model  # noqa: B018


def test_all_models_are_listed() -> None:
    assert list_models() == sorted(MODELS)
    assert list_models("*_life") == [name for name in sorted(MODELS) if name.endswith("_life")]


def test_the_sizes_asked_for_are_the_sizes_built() -> None:
    model = create_model("deit_nano", img_size=(24, 40), patch_size=8, in_chans=1, num_classes=7)
    assert model(torch.zeros(1, 1, 24, 40)).shape == (1, 7)
    assert model.stages[0].position.table.shape[1] == 1 + 3 * 5


def test_defaults_are_those_of_imagenet() -> None:
    assert create_model("lit_nano")(torch.zeros(1, 3, 32, 32)).shape == (1, 1000)


def test_parts_of_two_papers_fill_one_model() -> None:
    model = create_model("deit_nano", qkv="life", ffn="localvit")
    layer = next(model.spec.stages[0].layers())
    assert (type(layer.qkv).__name__, type(layer.ffn).__name__) == ("Life", "LocalityFfn")


@pytest.mark.parametrize(
    ("kind", "sentence", "arguments"),
    [
        (ValueError, "There is no model 'lightvit_tinny'; did you mean 'lightvit_tiny'?", {"name": "lightvit_tinny"}),
        (ValueError, "neither a name, a spec nor weights", {}),
        (TypeError, "deit_nano has no option 'gama'", {"name": "deit_nano", "gama": 4}),
        (ValueError, "ffn='localvt' is not known", {"name": "deit_nano", "ffn": "localvt"}),
    ],
)
def test_a_wrong_wish_gets_one_sentence(kind: type[Exception], sentence: str, arguments: dict[str, object]) -> None:
    with pytest.raises(kind) as caught:
        create_model(**arguments)  # type: ignore[arg-type]
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_know_their_model(tmp_path: Path) -> None:
    saved = create_model("lit_nano", num_classes=5).eval()
    path = save_model(saved, tmp_path / "lit.safetensors")
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(create_model(weights=path)(images), saved(images))
    assert create_model("lit_nano", weights=path, num_classes=3)(images).shape == (2, 3)
    with pytest.raises(ValueError, match="holds the weights of lit_nano, not of swin_nano; leave the name out"):
        create_model("swin_nano", weights=path)
