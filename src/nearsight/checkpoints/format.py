"""The one format of saved models: safetensors, and beside them a JSON file that says which model they are of.

Models of ours, of timm, localized or not, detectors and segmenters are described alike: `save_model` writes them,
`read_description` checks what is written, `load_model` builds them again. Nothing is pickled.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import timm
import torch
from safetensors.torch import save as save_tensors
from timm.models import adapt_input_conv
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from ..arguments import why_no_json
from ..atomic import check_output, is_writable_text, write_whole
from ..models.backbone import Backbone, FeaturePyramid, pair
from ..models.options import OF_BACKBONE, apply_options, behave
from ..models.pooling import POOLINGS, pooling_of, set_pooling
from ..models.registry import MODELS, default_levels, describe
from ..models.resize import resize_state
from ..models.spec import BackboneSpec, spec_from_json, to_json
from ..retrofit import localized_of, rebuild_localized
from .released.convert import load_strictly, recognise
from .released.families import Choices
from .safe import WeightFileError, read_safetensors, read_tensors
from .timm import fill, soften_stem

FORMAT, VERSION = "nearsight-model", 1
KINDS = ("spec", "timm", "dense")  # of a model of ours, of timm, of a detector or segmenter; one of them is not None
KEYS = (*KINDS, "name", "in_chans", "img_size", "output_norms", "masks", "localized", "pooling", "origin", "trained")
REPLACE = "take the file that was written with the weights."
# What an edited description makes torch and Python raise, beside the sentences of our own checks.
UNBUILDABLE = (RuntimeError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, MemoryError)
LARGEST = 16384  # pixels of a side that a model may be made for


def check_target(path: str | Path, *, inputs: Iterable[str | Path] = (), force: bool = False) -> None:
    """Refuse, before any work, weights to write that would take the place of files that are not ours."""
    beside, given = Path(path).with_suffix(".json"), list(inputs)

    def is_ours(head: bytes) -> bool:
        return f'"format": "{FORMAT}"'.encode() in head

    ours = beside.is_file() and is_ours(beside.read_bytes()[:200])
    check_output(path, inputs=given, is_ours=lambda _: ours, force=force)
    check_output(beside, inputs=given, is_ours=is_ours, force=force)


def save_model(
    model: nn.Module,
    path: str | Path,
    origin: Mapping[str, Any] | None = None,
    trained: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    timm_options: Mapping[str, Any] | None = None,
    img_size: tuple[int, int] | None = None,
) -> Path:
    """Write a model of ours, of timm, or a detector or segmenter; both files appear complete or not at all.

    Args:
        model: A backbone or a pyramid of one, a `DenseModel`, or a model of timm.
        path: File to write.
        origin: Where the weights come from.
        trained: What the model was trained for: task, classes, input.
        name: Of a model of timm, and of the backbone of a `DenseModel`.
        timm_options: Of a model of timm: what its `create_model` was given.
        img_size: Of a model of timm: height and width of its images.
    """
    from ..heads.model import DenseModel

    path = Path(path)
    description: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": name, **dict.fromkeys(KINDS)}
    if isinstance(model, DenseModel):
        description |= {"dense": to_json(model.spec), "num_classes": model.num_classes, "masks": model.masks}
    elif isinstance(backbone := model.backbone if isinstance(model, FeaturePyramid) else model, Backbone):
        norms = {str(i): kind for i, kind in model.norm_kinds.items()} if isinstance(model, FeaturePyramid) else None
        done = localized_of(backbone)
        description |= {
            "name": name_of(backbone.spec),
            "num_classes": backbone.num_classes,
            "in_chans": backbone.in_chans,
            "img_size": list(backbone.img_size),
            "output_norms": norms,
            "spec": to_json(backbone.spec),
            "localized": done.as_json() if done and done.choice.preserve else None,  # otherwise the spec tells all
        }
    elif name is not None and timm_options is not None and img_size is not None:
        done = localized_of(model)
        description |= {
            "timm": dict(timm_options),
            "num_classes": model.num_classes,
            "in_chans": 3,
            "img_size": list(img_size),
            "localized": done.as_json() if done else None,
        }
    else:
        raise TypeError(f"A {type(model).__name__} is not a model of Nearsight.")
    description |= {"pooling": pooling_of(model), "origin": dict(origin or {}), "trained": dict(trained or {}) or None}
    tensors = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    write_whole(path.with_suffix(".json"), json.dumps(description, indent=1).encode())
    write_whole(path, save_tensors(tensors, {"format": "pt"}))
    return path


def save_any(
    model: nn.Module,
    path: Path,
    options: Mapping[str, Any],
    name: str | None = None,
    trained: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model that may be one of timm, of which only the options are known that its maker was given.

    Raises:
        ValueError: It can't be built again from its name and the options.
    """
    from ..heads.model import DenseModel

    if isinstance(model, (Backbone, FeaturePyramid, DenseModel)):
        if options:
            raise ValueError(f"A model of ours knows its settings; leave {', '.join(options)} out.")
        return save_model(model, path, {"model": name} if name else None, trained, name=name)
    about: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    architecture = about.get("architecture", "")
    if not timm.is_model(architecture):
        raise ValueError(
            f"This {type(model).__name__} was not made by timm.create_model and can't be made again by name."
        )
    size = image_size(model)
    sized = options if "img_size" in options or size is None else {"img_size": list(size), **options}
    known = next((given for given in (sized, options) if rebuilds(model, architecture, given)), None)
    if known is None:
        raise ValueError(
            f"A {architecture} built with {dict(options) or 'no options'} has other weights than this model; give "
            "save() the options that timm.create_model was given, such as patch_size=8."
        )
    sides = pair(size or about["input_size"][1:])
    return save_model(model, path, None, trained, name=architecture, timm_options=known, img_size=sides)


def image_size(model: nn.Module) -> tuple[int, int] | None:
    """The image size that a model of timm is made for at present, where it knows one."""
    for name in ("patch_embed", "pixel_embed"):
        size = getattr(getattr(model, name, None), "img_size", None)
        if size is not None:
            return pair(size)
    return None


def rebuilds(model: nn.Module, name: str, options: Mapping[str, Any]) -> bool:
    """Whether timm's maker with these options, localized in the same way, gives a model with the same weights."""
    wanted = {key: tensor.shape for key, tensor in model.state_dict().items()}
    for device in ("meta", "cpu"):  # older releases of timm read numbers while they build
        try:
            with torch.device(device):
                twin = timm.create_model(
                    name, num_classes=model.num_classes, **{k: v for k, v in options.items() if k != "stem_stride"}
                )
                if (done := localized_of(model)) is not None:
                    twin = rebuild_localized(twin, done.as_json())
                set_pooling(twin, pooling_of(model))
        except (TypeError, ValueError, RuntimeError, AssertionError):  # its makers refuse options in many ways
            continue
        return wanted == {key: tensor.shape for key, tensor in twin.state_dict().items()}
    return False


def load_model(
    path: str | Path,
    description: Mapping[str, Any] | None = None,
    *,
    num_classes: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    in_chans: int | None = None,
    **options: Any,
) -> nn.Module:
    """Rebuild a model from `path` (safetensors) and the JSON file beside it, in evaluation mode.

    Args:
        path: The weights that `save_model` or `convert` wrote.
        description: What `read_description` found beside them, where that was read already.
        num_classes: Another number of classes gets a fresh head.
        img_size: Another size: positions, relative tables and windows are resized.
        in_chans: Of a model of ours, another number of channels: the first layer's weights are adapted.
        options: Of a model of ours: options of `create_model` that keep the shapes of the weights, or change what can
            be resized (`window`, `kernel`, ...), and timm's `global_pool`, `drop_rate`, `drop_path_rate`,
            `features_only`, `out_indices` and `output_fmt`. Of a model of timm: options of its `create_model`.

    Raises:
        ValueError: The files don't belong together, or were damaged or edited.
    """
    path = Path(path)
    about = read_description(path) if description is None else description
    tensors = read_safetensors(path)
    refuse_giants(path, about, tensors)
    try:
        if about["dense"] is not None:
            if num_classes is not None or in_chans is not None or options:
                raise WeightFileError(f"{path} holds a detector or segmenter, which opens as it is.")
            return load_dense(about, tensors)
        if about["timm"] is not None:
            return load_timm(path, about, tensors, num_classes, img_size, options)
        return load_own(path, about, tensors, num_classes, img_size, in_chans, options)
    except UNBUILDABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightFileError(
            f"{path.with_suffix('.json')} describes no model that can be built ({reason}); {REPLACE}"
        ) from None


def load_dense(description: Mapping[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    """A detector or segmenter."""
    from ..heads.model import DenseModel
    from ..heads.spec import from_json as dense_from_json

    spec, classes, masks = dense_from_json(description["dense"]), description["num_classes"], description["masks"]
    with torch.device("meta"):  # so that nothing is allocated for a spec that does not suit the weights
        refuse_other_shapes(DenseModel(spec, classes, masks).state_dict(), tensors)
    model = DenseModel(spec, classes, masks)
    load_strictly(model, tensors)
    return model.eval()


def load_timm(
    path: Path,
    description: Mapping[str, Any],
    tensors: dict[str, Tensor],
    num_classes: int | None,
    img_size: int | tuple[int, int] | None,
    options: Mapping[str, Any],
) -> nn.Module:
    """A model of timm, its positions and relative tables resized for another image size."""
    settings = {**description["timm"], **options}
    settings.pop("pretrained", None)  # the weights come from the file
    if img_size is not None and "img_size" in settings:
        settings["img_size"] = img_size
    stride = settings.pop("stem_stride", 0)
    classes = description["num_classes"] if num_classes is None else num_classes
    try:
        model = timm.create_model(description["name"], num_classes=classes, **settings)
    except TypeError as error:
        raise ValueError(f"timm's {description['name']} does not take these options ({error}).") from None
    except RuntimeError as error:  # no such model, or one that does not fit into memory
        reason = str(error).splitlines()[0]
        raise WeightFileError(f"{path} is of timm's {description['name']}, which can't be built ({reason}).") from None
    soften_stem(model, stride)
    if (localized := description["localized"]) is not None:
        model = rebuild_localized(model, localized)
    return fill(set_pooling(model, description["pooling"]), tensors, path).eval()


def load_own(
    path: Path,
    description: Mapping[str, Any],
    tensors: dict[str, Tensor],
    num_classes: int | None,
    img_size: int | tuple[int, int] | None,
    in_chans: int | None,
    options: dict[str, Any],
) -> nn.Module:
    """A model of ours."""
    try:
        spec = spec_from_json(description["spec"])
    except (ValueError, TypeError) as error:  # which knows no file
        reason = str(error).rstrip(".")
        raise WeightFileError(f"{path.with_suffix('.json')} describes no model ({reason}); {REPLACE}") from None
    old_size, old_channels, old_classes = (description[key] for key in ("img_size", "in_chans", "num_classes"))
    with torch.device("meta"):
        old = Backbone(spec, img_size=pair(old_size), in_chans=old_channels, num_classes=old_classes)
        set_pooling(old, description["pooling"])
    settings = {key: options.pop(key) for key in OF_BACKBONE if key in options}
    features_only = options.pop("features_only", False)
    getting = {key: options.pop(key) for key in ("out_indices", "output_fmt") if key in options}
    norms = description["output_norms"]
    if norms is None and description["localized"] is None:
        refuse_other_shapes(old.state_dict(), tensors)
    spec = apply_options(description["name"] or path.name, spec, options)
    classes = old_classes if num_classes is None else num_classes
    channels = in_chans or old_channels
    model = Backbone(spec, img_size=pair(img_size or old_size), in_chans=channels, num_classes=classes, **settings)
    model.pretrained_cfg = model.default_cfg = describe(spec, model.img_size, channels) | {"num_classes": classes}
    if (localized := description["localized"]) is not None:
        rebuild_localized(model, localized)
    set_pooling(model, description["pooling"])
    if norms is not None:
        pyramid = FeaturePyramid(model, {int(index): kind for index, kind in norms.items()})
        FeaturePyramid(old)
        own = {name.removeprefix("backbone."): t for name, t in tensors.items() if name.startswith("backbone.")}
        tensors = {name: t for name, t in tensors.items() if name.startswith("norms.")}
        tensors |= {f"backbone.{name}": t for name, t in fit(own, old, model).items()}
        load_strictly(pyramid, tensors)
        return pyramid.eval()
    load_strictly(model, fit(tensors, old, model))
    model.eval()
    return FeatureGetterNet(model, **{"out_indices": default_levels(spec)} | getting) if features_only else model


def load_released(model: Backbone, name: str, path: Path) -> None:
    """Load a released file, or one of timm's of the same network, into a model of ours; see `fit`.

    Raises:
        WeightFileError: The file is of another model.
    """
    try:
        reading = recognise(read_tensors(path), Choices())
        with torch.device("meta"):
            old = Backbone(reading.spec, in_chans=reading.in_chans, num_classes=reading.num_classes)
        if name_of(reading.spec) != name or reading.output_norms is not None:
            held = name_of(reading.spec) or "a model without a registered name"
            raise WeightFileError(f"{path} holds the weights of {held}, not of {name}.")
        load_strictly(model, fit(reading.tensors, old, model))
    except WeightFileError as error:
        raise WeightFileError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def fit(tensors: dict[str, Tensor], old: Backbone, new: Backbone) -> dict[str, Tensor]:
    """The weights of `old` in the shapes of `new`: other classes, channels and sizes."""
    tensors = dict(tensors)
    if old.num_classes != new.num_classes:
        fresh = {name: tensor for name, tensor in new.state_dict().items() if name.startswith(("head.", "head_dist."))}
        tensors = {name: t for name, t in tensors.items() if not name.startswith(("head.", "head_dist."))} | fresh
    first = f"{new.spec.embed.first_conv}.weight"
    if old.in_chans != new.in_chans:
        if tensors[first].ndim != 4:
            raise ValueError(
                f"The first layer is no convolution; it can't go from {old.in_chans} to {new.in_chans} channels."
            )
        if old.in_chans == 3:
            tensors[first] = adapt_input_conv(new.in_chans, tensors[first])
        else:  # the response to equal channels is kept
            mean = tensors[first].mean(dim=1, keepdim=True)
            tensors[first] = mean.repeat(1, new.in_chans, 1, 1) * (old.in_chans / new.in_chans)
    return resize_state(tensors, old, new)


def read_description(path: str | Path) -> dict[str, Any]:
    """The JSON file beside the weights, with all keys; those that a kind of model does not have are None.

    Raises:
        WeightFileError: A file is missing, damaged or edited, or comes from a later version.
    """
    path = Path(path)
    beside = path.with_suffix(".json")
    if not path.is_file():
        raise WeightFileError(f"{path} is not a file; give weights that `nearsight convert` wrote.")
    if not beside.is_file():
        raise WeightFileError(
            f"{beside} is missing; it says which model {path.name} is of. Released files open with load_official."
        )
    try:
        description = json.loads(beside.read_text(encoding="utf-8"))
    except ValueError as error:  # also a number of thousands of digits
        raise WeightFileError(f"{beside} is not whole JSON ({why_no_json(error)}).") from None
    except RecursionError:
        raise WeightFileError(f"{beside} is nested too deeply to describe a model of Nearsight.") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise WeightFileError(f"{beside} does not describe a model of Nearsight.")
    check_description(beside, description)
    return {**dict.fromkeys(KEYS), **description, "trained": description.get("trained") or None}


def check_description(file: Path, about: Mapping[str, Any]) -> None:
    """Refuse a description whose values have no meaning; what is inside a spec is checked when it is built."""

    def refuse(key: str, wanted: str) -> NoReturn:
        given = json.dumps(about.get(key))
        short = given if len(given) <= 60 else f"{given[:57]}..."
        raise WeightFileError(f"{file} says {key}: {short}, but {wanted}; {REPLACE}")

    if about.get("version") != VERSION:
        refuse("version", f"this Nearsight reads version {VERSION}")
    kinds = [kind for kind in KINDS if about.get(kind) is not None]
    if len(kinds) != 1 or not isinstance(about[kinds[0]], dict):
        refuse(kinds[0] if kinds else "spec", f"one of {', '.join(KINDS)} describes the model")
    if not is_count(about.get("num_classes"), 1 if kinds[0] == "dense" else 0):
        refuse("num_classes", "classes are counted by a whole number")
    if kinds[0] == "dense":
        if not isinstance(about.get("masks"), bool):
            refuse("masks", "it is true or false")
    else:
        if not is_count(about.get("in_chans"), 1):
            refuse("in_chans", "channels are counted by a whole number from 1 on")
        sides = about.get("img_size")
        if not isinstance(sides, list) or len(sides) != 2 or not all(is_count(side, 1) for side in sides):
            refuse("img_size", "an image has a height and a width in pixels")
        if max(sides) > LARGEST:
            refuse("img_size", f"sides go up to {LARGEST} pixels")
    if not isinstance(about.get("name"), str) and (kinds[0] == "timm" or about.get("name") is not None):
        refuse("name", "a name is a text")
    if about.get("pooling") not in (None, *POOLINGS):
        refuse("pooling", f"there are {', '.join(POOLINGS)}")
    for key in ("origin", "trained", "localized", "output_norms"):
        if about.get(key) is not None and not isinstance(about[key], dict):
            refuse(key, "it holds names and values")
    if not all(key.isdigit() for key in about.get("output_norms") or ()):
        refuse("output_norms", "norms belong to numbers of stages")
    if about.get("trained"):
        check_trained(file, about["trained"], about["num_classes"])


def check_trained(file: Path, trained: Mapping[str, Any], num_classes: int) -> None:
    """Refuse a record of the training that does not suit the model."""
    classes = trained.get("classes")
    if not isinstance(classes, list) or not all(isinstance(name, str) and is_writable_text(name) for name in classes):
        raise WeightFileError(f"{file} has no names of the classes; {REPLACE}")
    if len(classes) != num_classes:
        raise WeightFileError(f"{file} names {len(classes)} classes, but the model has {num_classes}; {REPLACE}")
    if not isinstance(trained.get("task"), str) or not isinstance(trained.get("input"), dict):
        raise WeightFileError(f"{file} does not say what the model was trained for and with which images; {REPLACE}")


def is_count(value: Any, least: int) -> bool:
    """Whether a value of JSON is a whole number from `least` on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def refuse_giants(path: Path, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a description of a larger model than the weights are of, before anything is built.

    No number of classes, and no width or depth in a spec, exceeds what the tensors' shapes can hold.
    """
    longest = max((side for tensor in tensors.values() for side in tensor.shape), default=0)
    blocks = len(tensors)
    if about["num_classes"] > max(longest, 1):
        raise WeightFileError(
            f"{path.with_suffix('.json')} says {about['num_classes']} classes, more than {path.name} has; {REPLACE}"
        )
    found = about["dense"] or about["spec"] or {}
    todo: list[Any] = [found]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            for key, limit in (("dim", longest), ("depth", blocks)):
                number = value.get(key)
                if isinstance(number, (int, float)) and number > limit:
                    raise WeightFileError(
                        f"{path.with_suffix('.json')} says {key}: {number:g}, more than {path.name} has; {REPLACE}"
                    )
            todo += value.values()
        elif isinstance(value, list):
            todo += value


def refuse_other_shapes(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights whose shapes are not those of the described model."""
    for name, tensor in tensors.items():
        if name in own and tensor.shape not in (own[name].shape, (*own[name].shape, 1, 1)):
            raise WeightFileError(
                f"The tensor {name} has the shape {tuple(tensor.shape)}, but the described model needs "
                f"{tuple(own[name].shape)}."
            )


def name_of(spec: BackboneSpec) -> str | None:
    """The registered name of a spec, whatever its image size, drop path and behaviour (paper or release), or None."""

    def core(value: BackboneSpec) -> BackboneSpec:
        return replace(value, drop_path=0.0, img_size=0, family="")

    wanted = core(spec)
    for name, known in MODELS.items():
        if wanted in (core(known), core(behave(known, "released"))):
            return name
    return None


def name_in(description: Mapping[str, Any]) -> str | None:
    """The model's name by its description: one with other parts or patches than the registered has that of its run."""
    return description["name"] or (description.get("origin") or {}).get("model")
