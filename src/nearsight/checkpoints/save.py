"""One call that writes any model that Nearsight can open again."""

from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from ..models.backbone import Backbone, FeaturePyramid, pair
from ..retrofit import localized_of, rebuild_localized
from .format import save_model
from .timm import save_foreign


def save(model: nn.Module, path: str | Path, **options: Any) -> Path:
    """Write a model of ours or of timm, localized or not, as safetensors with a JSON file beside it.

    `nearsight.load` opens it again. Nothing is pickled.

    Args:
        model: The model.
        path: File to write, ending in `.safetensors`.
        **options: Of a model of timm: what `timm.create_model` was given beside its name, the number of classes and the
            image size.

    Returns:
        The path.

    Raises:
        ValueError: timm's model can't be built again from its name and the options.

    Example:
        >>> import nearsight, tempfile
        >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=4).eval()
        >>> local = nearsight.localize(model, ffn="localvit", layers="low")
        >>> file = save(local, Path(tempfile.mkdtemp()) / "local.safetensors")
        >>> images = torch.randn(1, 3, 32, 32)
        >>> torch.equal(nearsight.load(file).model(images), local(images))
        True
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} does not end in .safetensors; that is the format that save writes.")
    if isinstance(model, (Backbone, FeaturePyramid)):
        if options:
            raise ValueError(f"A model of ours knows its settings; leave {', '.join(options)} out.")
        return save_model(model, path)
    about: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    name = about.get("architecture", "")
    if not timm.is_model(name):
        raise ValueError(
            f"This {type(model).__name__} was not made by timm.create_model and can't be made again by name."
        )
    size = image_size(model)
    sized = options if "img_size" in options or size is None else {"img_size": list(size)} | options
    known = next((given for given in (sized, options) if rebuilds(model, name, given)), None)
    if known is None:
        raise ValueError(
            f"A {name} built with {options or 'no options'} has other weights than this model; give save() the options "
            "that timm.create_model was given, such as patch_size=8."
        )
    return save_foreign(model, path, name=name, options=known, img_size=pair(size or about["input_size"][1:]))


def image_size(model: nn.Module) -> tuple[int, int] | None:
    """The image size that a model of timm is made for at present, where it knows one."""
    for name in ("patch_embed", "pixel_embed"):
        size = getattr(getattr(model, name, None), "img_size", None)
        if size is not None:
            return pair(size)
    return None


def rebuilds(model: nn.Module, name: str, options: dict[str, Any]) -> bool:
    """Whether timm's maker with these options, localized in the same way, gives a model with the same weights."""
    wanted = {key: tensor.shape for key, tensor in model.state_dict().items()}
    for device in ("meta", "cpu"):  # older releases of timm read numbers while they build
        try:
            with torch.device(device):
                twin = timm.create_model(name, num_classes=model.num_classes, **options)
                if (done := localized_of(model)) is not None:
                    twin = rebuild_localized(twin, done.as_json())
        except (TypeError, ValueError, RuntimeError, AssertionError):  # its makers refuse options in many ways
            continue
        return wanted == {key: tensor.shape for key, tensor in twin.state_dict().items()}
    return False
