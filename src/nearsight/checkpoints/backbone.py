"""Weights of a detector's or segmenter's backbone, taken from a classifier or another such model."""

from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from ..heads.model import DenseModel
from ..heads.pyramid import TimmBackbone, make_pyramid
from ..heads.spec import DenseSpec, from_json
from ..models.backbone import Backbone, FeaturePyramid
from ..models.resize import resize_state
from .format import load_model, read_description
from .pretrained import has_description
from .released.convert import load_official
from .safe import WeightFileError, read_safetensors
from .timm import load_into


def load_backbone(model: DenseModel, path: str | Path) -> str:
    """Take the backbone's weights from a file: a classifier's, a detector's or segmenter's, or a released one.

    Positions, relative tables and windows are resized to the model's image size. What has no place is left out, what
    the file does not have stays as it is, and the returned sentence says so.

    Args:
        model: Its pyramid is changed.
        path: Folder of a run, a `.safetensors` file that Nearsight wrote, or a released checkpoint.
    """
    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"There are no weights at {file}; give a weight file or the folder of a finished run.")
    own = model.pyramid.state_dict()
    theirs = pyramid_tensors(model, file)
    for name in theirs.keys() & own.keys():
        if name.endswith("position.table"):  # [1, aux + N, C], without the rows of tokens that our backbone lacks
            theirs[name] = theirs[name][:, max(theirs[name].shape[1] - own[name].shape[1], 0) :]
    counters = {name for name in own if name.endswith("num_batches_tracked")}
    missing = [name for name in own if name.startswith("backbone.") and name not in theirs and name not in counters]
    wrong = [name for name in own if name in theirs and theirs[name].shape != own[name].shape]
    if missing or wrong:
        name = (missing + wrong)[0]
        what = "are missing or have another shape, such as"
        raise WeightFileError(
            f"{file} does not fit this backbone: {len(missing) + len(wrong)} of its {len(own)} tensors {what} {name}."
        )
    taken = {name: tensor for name, tensor in theirs.items() if name in own}
    model.pyramid.load_state_dict(taken, strict=False)
    left = sorted({part_of(name) for name in theirs.keys() - own.keys()})
    fresh = sorted({part_of(name) for name in own.keys() - taken.keys() - counters})
    return (
        f"The backbone has {len(taken)} tensors from {file}; left out there: {', '.join(left) or 'nothing'}; new here: "
        f"{', '.join([*fresh, 'the head'])}."
    )


def part_of(name: str) -> str:
    """The part of a pyramid that a tensor is in: `backbone.head.weight` is in `head`."""
    return name.removeprefix("backbone.").split(".")[0]


def pyramid_tensors(model: DenseModel, file: Path) -> dict[str, Tensor]:
    """The tensors of a file under the names that they have in a pyramid."""
    backbone = model.spec.backbone
    described = read_description(file) if has_description(file) else {}
    if described.get("dense") is not None:
        return tensors_of_dense(model, file, from_json(described["dense"]))
    if isinstance(backbone, TimmBackbone):
        return tensors_of_timm(model, backbone, file, described)
    size = model.pyramid.backbone.img_size
    source = load_model(file, described, img_size=size) if described else load_official(file)
    if isinstance(source, FeaturePyramid):
        source.backbone.set_input_size(size)
        return dict(source.state_dict())
    if not isinstance(source, Backbone):
        raise WeightFileError(f"{file} holds a model of timm, but this backbone is one of Nearsight.")
    source.set_input_size(size)
    return {f"backbone.{name}": tensor for name, tensor in source.state_dict().items()}


def tensors_of_dense(model: DenseModel, file: Path, spec: DenseSpec) -> dict[str, Tensor]:
    """The pyramid of another detector or segmenter, resized to this one's image size."""
    with torch.device("meta"):
        old = make_pyramid(spec.backbone, spec.task, spec.head.strides, spec.layers)
    tensors = {
        name.removeprefix("pyramid."): tensor
        for name, tensor in read_safetensors(file).items()
        if name.startswith("pyramid.")
    }
    return resize_state(tensors, old, model.pyramid)


def tensors_of_timm(
    model: DenseModel, backbone: TimmBackbone, file: Path, described: dict[str, Any]
) -> dict[str, Tensor]:
    """The weights of a classifier of timm under the names that `features_only` gives them."""
    if described and described["name"] != backbone.name:
        raise WeightFileError(f"{file} holds the weights of {described['name']}, not of {backbone.name}.")
    if described:
        plain = load_model(file, described)
    else:
        plain = load_into(timm.create_model(backbone.name, **dict(backbone.options)), file)
    inner, prefix = (model.pyramid.backbone, "backbone.")
    if isinstance(getattr(inner, "model", None), nn.Module):
        inner, prefix = inner.model, "backbone.model."
    children = dict(inner.named_children())
    tensors = {}
    for name, tensor in plain.state_dict().items():
        first, _, rest = name.partition(".")
        second, _, tail = rest.partition(".")
        if first not in children and f"{first}_{second}" in children:  # `stages.0.conv` is `stages_0.conv` in a list
            name = f"{first}_{second}.{tail}"
        tensors[f"{prefix}{name}"] = tensor
    return tensors
