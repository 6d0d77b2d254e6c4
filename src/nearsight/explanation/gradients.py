"""Maps from gradients: roll-out of what attention adds to a class, Grad-CAM, effective receptive field of a token."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.back_projection import BackProjection
from .capture import Capture, CapturedLayer, ModelOrCapture, capture, evaluating
from .maps import Maps, Pixel, to_numpy
from .rollout import pooling, reading, token_weights


def grad_rollout(
    model: ModelOrCapture,
    images: Tensor | None = None,
    *,
    classes: Sequence[int] | None = None,
    masks: Tensor | None = None,
    names: Sequence[str] | None = None,
) -> Maps:
    """Which patches speak for a class: roll-out of attention that is weighted by gradients (Chefer et al., 2021).

    In each layer a weight `A` counts with what it adds to the class, the positive part of `A` times the gradient of
    the class's score by it, averaged over the heads. The relevance of the head's tokens is followed back through all
    layers, `R <- R + mean(relu(A * dA)) R`, and through merges to the patches behind the embedding. The model runs with
    its fused kernels; one pass back gives the gradients by the mixed values, and with them those by the weights that
    are computed again from the layers' inputs.

    A head that reads the class token starts there; one that pools patches starts with what each of them adds to the
    class. Layers without attention count with their kernels, layers without mixer not at all.

    Args:
        model: The model, or what `capture` returned; not a folded one, which has no gradients.
        images: `[B, C, H, W]`; None with a capture.
        classes: Numbers of classes, a map for each; None: the class that a classifier predicts for each image.
        masks: Of a segmenter or detector: where each of the classes was predicted, `[B, n, H, W]` in pixels of the
            images. The score is that of the class inside its mask, the first tokens are those of the mask.
        names: Titles of the maps.

    Returns:
        Maps `[B, n, rows, columns]` of the patches behind the embedding, not negative, on a scale of their own.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("deit_nano", num_classes=3)
        >>> maps = grad_rollout(model, torch.randn(2, 3, 32, 32), classes=[0, 2])
        >>> maps.values.shape, bool((maps.values >= 0).all())
        ((2, 2, 8, 8), True)
    """
    seen = capture(model, images)
    run = GradientRun(seen)
    if masks is None:
        numbers = run.check_classes(classes)
        scores = [run.output.amax(dim=1).sum()] if numbers is None else [run.output[:, n].sum() for n in numbers]
        starts: list[Tensor | None] = [None] * len(scores)
    else:
        numbers = list(classes or ())
        weights = token_weights(seen, run.last, masks)
        if weights.shape[1] != len(numbers):
            raise ValueError(f"{weights.shape[1]} masks were given for {len(numbers)} classes; give one for each.")
        scores = [run.score_inside(number, masks[:, index]) for index, number in enumerate(numbers)]
        starts = [F.pad(weights[:, [index]], (run.last.grid.aux, 0)) for index in range(len(numbers))]
    titles = tuple(names) if names is not None else tuple(f"class {n}" for n in numbers or ()) or ("prediction",)
    if len(titles) != len(scores):
        raise ValueError(f"{len(titles)} names were given for {len(scores)} classes; give one for each.")
    rows = [run.relevance(score, start) for score, start in zip(scores, starts, strict=True)]
    values = torch.cat(rows, dim=1).unflatten(-1, (seen.first.height, seen.first.width))
    raw = {} if numbers is None else {"classes": np.array(numbers)}
    label = "relevance for the class"
    return Maps("grad-rollout", to_numpy(values), titles, seen.cell, seen.image_size, label, raw=raw)


class GradientRun:
    """A pass of a model that is recorded for gradients, with what its layers mixed.

    Attributes:
        output: What the model put out.
        features: Of a classifier: the tokens that its head is given, in the model's own layout.
        mixed: By the layer: what it mixed.
    """

    def __init__(self, seen: Capture):
        model: Any = seen.model
        if any(getattr(module, "folded", False) for module in model.modules()):
            raise ValueError("A folded model has no gradients; give the model that was folded.")
        self.seen, self.last = seen, seen.layers[-1]
        self.mixed: dict[CapturedLayer, Tensor] = {}
        self.features: Tensor | None = None
        given = seen.images.detach().clone().requires_grad_()  # so that a model without gradients of its own has some
        with ExitStack() as stack:
            for layer in seen.layers:
                if layer.recompute is not None:
                    handle = exit_of(layer).register_forward_pre_hook(self.note(layer))
                    stack.callback(handle.remove)
            stack.enter_context(evaluating(model))
            stack.enter_context(torch.enable_grad())
            if hasattr(model, "forward_head"):
                self.features = model.forward_features(given)
                self.output = model.forward_head(self.features)
            else:
                self.output = model(given)

    def note(self, layer: CapturedLayer) -> Callable[[nn.Module, Any], None]:
        """A hook that keeps what a layer mixed."""

        def keep(_: nn.Module, inputs: Any) -> None:
            self.mixed[layer] = inputs[0]

        return keep

    def check_classes(self, classes: Sequence[int] | None) -> list[int] | None:
        """The classes that are asked about, if the model is a classifier that has them."""
        output = self.output
        if not isinstance(output, Tensor) or output.ndim != 2 or not output.shape[1] or self.features is None:
            raise ValueError("Which patches speak for a class is asked of a classifier; give masks to a dense model.")
        if wrong := [number for number in classes or () if not 0 <= number < output.shape[1]]:
            raise ValueError(f"There is no class {wrong[0]}; the model has {output.shape[1]}, counted from 0.")
        return None if classes is None else list(classes)

    def score_inside(self, number: int, mask: Tensor) -> Tensor:
        """The score of a class inside its mask `[B, H, W]`: mean logit, or the scores of its detections."""
        if isinstance(self.output, Tensor):
            inside = self.output[:, number, : mask.shape[1], : mask.shape[2]] * mask
            return (inside.sum(dim=(1, 2)) / mask.sum(dim=(1, 2)).clamp(min=1)).sum()
        return torch.stack([found["scores"][found["labels"] == number].sum() for found in self.output]).sum()

    def relevance(self, score: Tensor, start: Tensor | None) -> Tensor:
        """How much each patch adds to a score `[B, 1, N]`.

        Args:
            score: A number.
            start: A weight for each token behind the last layer `[B, 1, N]`; None: what the head reads for the score.
        """
        layers = list(self.mixed)
        wanted = [self.mixed[layer] for layer in layers] + ([] if self.features is None else [self.features])
        found = torch.autograd.grad(score, wanted, retain_graph=True, allow_unused=True)
        gradients: dict[CapturedLayer, Tensor | None] = dict(zip(layers, found, strict=False))
        with torch.no_grad():
            vectors = self.read_by_head(found[-1]) if start is None else start
            return self.followed(vectors, gradients)

    def read_by_head(self, gradient: Tensor | None) -> Tensor:
        """What each token adds to the score through the head, as fractions `[B, 1, N]`."""
        grid, features = self.last.grid, self.features
        plain = reading(self.seen, self.last)
        if features is None or gradient is None:
            return plain
        added = features * gradient
        if added.ndim == 4:
            is_nchw = tuple(added.shape[2:]) == (grid.height, grid.width)
            added = added.flatten(2).transpose(1, 2) if is_nchw else added.flatten(1, 2)
        per_token = added.float().sum(dim=-1).relu()
        per_token = F.pad(per_token, (grid.tokens - per_token.shape[1], 0))
        total = per_token.sum(dim=1, keepdim=True)
        return torch.where(total > 0, per_token / total.clamp(min=1e-30), plain[:, 0])[:, None]

    def followed(self, vectors: Tensor, gradients: dict[CapturedLayer, Tensor | None]) -> Tensor:
        """Relevance of the tokens behind the last layer `[B, 1, N]`, followed back to the patches `[B, 1, N']`."""
        aux = self.last.grid.aux
        for step in reversed(self.seen.steps):
            if isinstance(step, BackProjection):
                vectors = step.pull(vectors[..., aux - step.coarse.aux :])
                aux = step.fine.aux
            elif (gradient := gradients.get(step)) is not None:
                vectors = vectors + step.attention_matrix.attribute(vectors, gradient)
        return vectors[..., aux:]


def exit_of(layer: CapturedLayer) -> nn.Module:
    """The module that is given what a layer mixed."""
    if layer.exit is None:
        raise ValueError(
            f"Layer {layer.name} does not say where it hands on what it mixed, so gradients can't be followed; "
            "a method `exit` of its part would."
        )
    return layer.exit


def grad_cam(
    model: nn.Module,
    images: Tensor,
    *,
    classes: Sequence[int] | None = None,
    layer: int | str | None = None,
) -> Maps:
    """Which positions of a layer's map speak for a class (Selvaraju et al., 2017).

    Args:
        model: A classifier.
        images: `[B, C, H, W]`.
        classes: The class asked about, one for each image; None: the model's prediction.
        layer: Number or name of the layer whose map is looked at; None: the last.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("localvit_nano", num_classes=3)
        >>> grad_cam(model, torch.randn(1, 3, 32, 32), classes=[2]).values.shape
        (1, 1, 8, 8)
    """
    seen = capture(model, images)
    output = seen.output
    headless = getattr(model, "num_classes", None) == 0
    if not isinstance(output, Tensor) or output.ndim != 2 or headless:
        raise ValueError("Grad-CAM asks which positions speak for a class; give a classifier with a head.")
    chosen = seen.layer(-1 if layer is None else layer)
    predictions = output.argmax(dim=1).tolist() if classes is None else list(classes)
    if len(predictions) != len(images):
        raise ValueError(f"{len(predictions)} classes were given for {len(images)} images; give one for each.")
    if wrong := [number for number in predictions if not 0 <= number < output.shape[1]]:
        raise ValueError(f"There is no class {wrong[0]}; the model has {output.shape[1]}, counted from 0.")

    def to_map(tokens: Tensor) -> Tensor:
        tokens = tokens.flatten(1, 2) if tokens.ndim == 4 else tokens
        patches = tokens[:, chosen.grid.aux :].transpose(1, 2)
        return patches.unflatten(2, (chosen.grid.height, chosen.grid.width))

    # Behind the block; but what patches are behind the last one does not reach a head that reads the class token alone.
    behind_token = chosen is seen.layers[-1] and chosen.grid.aux > 0 and pooling(model)[0] == "token"
    target: Any = chosen.module.norm1 if behind_token else chosen.module
    kept: list[Tensor] = []
    handle = target.register_forward_hook(lambda module, given, tokens: kept.append(tokens))
    given = images.detach().clone().requires_grad_()  # so that a model without gradients of its own has some
    try:
        with evaluating(model), torch.enable_grad():
            logits = model(given)
    finally:
        handle.remove()
    score = logits[torch.arange(len(images)), predictions].sum()
    (gradient,) = torch.autograd.grad(score, kept)
    with torch.no_grad():
        weights = to_map(gradient).mean(dim=(2, 3), keepdim=True)
        values = to_numpy((weights * to_map(kept[0])).sum(dim=1, keepdim=True).relu())
    titles = (f"Grad-CAM, layer {chosen.name}",)
    raw: dict[str, Any] = {"classes": np.array(predictions)}
    return Maps("grad-cam", values, titles, chosen.cell, seen.image_size, "class activation", raw=raw)


def receptive_field(
    model: nn.Module,
    images: Tensor,
    *,
    layer: int | str = -1,
    at: Pixel | None = None,
) -> Maps:
    """How strongly the token at a pixel depends on each pixel: the size of its gradient, summed over channels.

    Args:
        model: The model; not a folded one, which has no gradients.
        images: `[B, C, H, W]`.
        layer: The layer behind which the token is looked at.
        at: The pixel (x, y) whose token is meant; None: the middle of the image.

    Returns:
        A map for each image in pixels, each with sum one, in `values`; their mean over the images in `raw["mean"]`.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("dwnet_nano", num_classes=3)
        >>> receptive_field(model, torch.randn(2, 3, 32, 32), layer="1.1").values.shape
        (2, 1, 32, 32)
    """
    seen = capture(model, images)
    chosen = seen.layer(layer)
    x, y = at if at is not None else (seen.image_size[1] / 2, seen.image_size[0] / 2)
    seen.check_pixel(x, y)
    index = chosen.token_at(x, y)
    given = images.detach().clone().requires_grad_()
    with torch.enable_grad(), evaluating(model):
        features = output_of(model, chosen.module, given)  # [B, N, C]
        (gradient,) = torch.autograd.grad(features[:, index].sum(), given)
    strength = gradient.abs().sum(dim=1, keepdim=True)  # [B, 1, H, W]
    total = strength.sum(dim=(2, 3), keepdim=True)
    if not bool((total > 0).all()):
        raise ValueError(f"The token at ({x:g}, {y:g}) behind layer {chosen.name} depends on no pixel of an image.")
    values = to_numpy(strength / total)
    title = f"layer {chosen.name} at ({x:g}, {y:g})"
    label, raw = "fraction of the gradient", {"mean": values.mean(axis=(0, 1))}
    return Maps("receptive-field", values, (title,), (1, 1), seen.image_size, label, marks=((x, y),), raw=raw)


class LayerReached(Exception):
    """What a layer put out; nothing behind it needs to run."""

    def __init__(self, tokens: Tensor):
        self.tokens = tokens


def output_of(model: nn.Module, module: nn.Module, images: Tensor) -> Tensor:
    """What a module of the model puts out for these images: tokens `[B, N, C]`."""

    def stop(_: nn.Module, __: Any, output: Tensor) -> None:
        raise LayerReached(output.flatten(1, 2) if output.ndim == 4 else output)

    handle = module.register_forward_hook(stop)
    try:
        model(images)
    except LayerReached as found:
        return found.tokens
    finally:
        handle.remove()
    raise ValueError(f"{type(module).__name__} did not run, so there is nothing to look at.")
