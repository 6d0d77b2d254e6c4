"""Released checkpoints: recognise, build, load; and write them in our own format."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from ...arguments import checked
from ...models.backbone import Backbone, FeaturePyramid
from ...models.registry import describe
from ..safe import WeightFileError, read_tensors
from .families import Choices, Reading, Released
from .isotropic import read_deit, read_t2t, read_tnt
from .lightvit import read_lightvit
from .pyramids import read_pvt
from .swinlike import Windows, read_swinlike


@checked
def load_official(
    path: str | Path,
    *,
    behaviour: str = "released",
    act: str = "hswish",
    channel_attention: str = "eca",
    heads: int | None = None,
    trained_window: int | None = None,
) -> nn.Module:
    """Build and load the model of a released checkpoint of LocalViT, LightViT, LIT, DWNet or LIFE.

    Which release, family and variant it is follows from the names and shapes of its tensors. Nothing in the file is
    executed. The backbone of a released detector or segmenter comes as a `FeaturePyramid`.

    Args:
        path: The file, `.pth` or `.safetensors`; wrapped in `model`, `state_dict`, `module.` or not.
        behaviour: Where code and paper differ, follow the `released` code (default) or the `paper`: LocalViT-T/S have
            4/8 heads in the release and 3/6 in the paper; LIFE's auxiliary key differs.
        act: LocalViT's activation, which a file can't tell: `hswish`, or `relu6` of the paper's first tables.
        channel_attention: LocalViT's ECA with a sigmoid (`eca`) or a hard one (`eca_hsigmoid`).
        heads: Attention heads of a model with one stage, where they are not the release's.
        trained_window: Side of the windows that a Swin v2 was trained with before it got larger ones; 12 for Swin v2 B
            with windows of 16 that were 12. Where the file or its shapes tell, it is not needed.

    Returns:
        The model, in evaluation mode.

    Raises:
        WeightFileError: The file is no checkpoint, asks for a class, or is of another model.

    Example:
        >>> import tempfile, timm, torch
        >>> file = Path(tempfile.mkdtemp()) / "released.pth"
        >>> deit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=10)
        >>> torch.save({"model": deit.state_dict()}, file)
        >>> load_official(file)(torch.randn(2, 3, 32, 48)).shape
        torch.Size([2, 10])
    """
    return open_official(path, Choices(behaviour, act, channel_attention, heads, trained_window))[0]


def open_official(path: str | Path, choices: Choices) -> tuple[nn.Module, Reading]:
    """The model of a released checkpoint, and what was read of it; see `load_official`."""
    try:
        reading = recognise(read_tensors(path), choices)
        return build(reading), reading
    except WeightFileError as error:
        if str(path) in str(error):
            raise
        raise WeightFileError(f"{path}: {error}") from None


def recognise(tensors: Mapping[str, Tensor], choices: Choices | None = None) -> Reading:
    """Which model these tensors are the weights of, and the tensors under our names."""
    choices = choices or Choices()
    released = Released.of(tensors)
    if "attn2conv" in " ".join(tensors) or "layers.0.blocks.0" in released:
        return read_swinlike(released, choices, Windows.of(tensors))
    if "tokens_to_token" in released:
        return read_t2t(released, choices)
    if "pixel_embed" in released:
        return read_tnt(released, choices)
    if "patch_embed1" in released:
        return read_pvt(released, choices)
    if "stages.0.0.attn" in released:
        return read_lightvit(released, choices)
    if "blocks.0.attn" in released and "patch_embed.proj" in released:
        return read_deit(released, choices)
    first = ", ".join(list(tensors)[:3])
    raise WeightFileError(
        f"These {len(tensors)} tensors ({first}, ...) are of none of the releases that Nearsight knows: "
        "LocalViT, LightViT, LIT, DWNet (DemystifyLocalViT), LIFE and their baselines."
    )


def build(reading: Reading) -> nn.Module:
    """The recognised model with its weights."""
    backbone = Backbone(reading.spec, in_chans=reading.in_chans, num_classes=reading.num_classes)
    backbone.pretrained_cfg = backbone.default_cfg = describe(reading.spec, in_chans=reading.in_chans) | {
        "num_classes": reading.num_classes
    }
    model: nn.Module = backbone
    tensors = reading.tensors
    if reading.output_norms is not None:
        model = FeaturePyramid(backbone, reading.output_norms)
        norms = {name: tensor for name, tensor in tensors.items() if name.startswith("norms.")}
        tensors = norms | {f"backbone.{name}": t for name, t in tensors.items() if name not in norms}
    load_strictly(model, tensors)
    return model.eval()


def load_strictly(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load every tensor, 1x1 convolutions as linear layers; refuse missing, surplus and misshapen ones by name."""
    own = model.state_dict()
    fitting: dict[str, Tensor] = {}
    missing = [name for name in own if name not in tensors and not name.endswith("num_batches_tracked")]
    if missing:
        raise WeightFileError(f"{len(missing)} tensors are missing for this model, first of all our {missing[0]}.")
    for name, tensor in tensors.items():
        if name not in own:
            raise WeightFileError(f"The tensor that would be our {name} has no place in the recognised model.")
        if tensor.shape == (*own[name].shape, 1, 1):
            tensor = tensor.flatten(1)
        if tensor.shape != own[name].shape:
            raise WeightFileError(
                f"The tensor that would be our {name} has the shape {tuple(tensor.shape)}, "
                f"but the recognised model needs {tuple(own[name].shape)}."
            )
        fitting[name] = tensor
    model.load_state_dict(fitting, strict=False)
