"""Optimizers: which parameter learns how fast and decays how much, and how the rate goes over the epochs."""

import math
from fnmatch import fnmatchcase
from typing import Any

import torch
from timm.models import group_parameters
from timm.optim import Lamb
from torch import Tensor, nn

from ..config.recipe import Optimizer, Schedule
from ..parts.slots import declared
from ..retrofit import Localized
from .muon import Muon

NARROWEST = 4  # rows or columns below which a weight is no matrix to Muon, as in timm


def parameter_groups(model: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Trainable parameters in groups of one learning rate and one weight decay.

    Biases, norms and what the model names in `no_weight_decay` are not decayed. With `layer_decay` a layer learns
    slower than the one behind it, except for what `nearsight.localize` has added, which learns at `localized` times the
    rate; the offsets of deformable merging learn at `offsets` times their layer's rate, and under Muon what is no inner
    matrix at `fallback` times it.

    Returns:
        Slow groups first, with `params`, their `names`, `lr_scale` (fraction of the learning rate), `weight_decay`,
        `flat`: whether the rate stays what it is behind the warm-up, and `use_fallback`: whether Muon leaves them to
        AdamW. The order follows from the model and the settings alone.

    Example:
        >>> from nearsight import create_model
        >>> groups = parameter_groups(create_model("lit_nano"), Optimizer())
        >>> [(group["lr_scale"], group["weight_decay"], len(group["names"])) for group in groups]
        [(0.01, 0.0, 2), (0.01, 0.05, 2), (1.0, 0.0, 56), (1.0, 0.05, 24)]
    """
    scales, new = layer_scales(model, optimizer.layer_decay), localized_names(model)
    exempt: set[str] = {*getattr(model, "no_weight_decay", set)(), *declared(model, "undecayed")}
    slow = declared(model, "slow")
    outer = outer_layers(model)
    groups: dict[tuple[float, float, bool, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        scale = scales[name] * (optimizer.offsets if name in slow else 1.0)
        scale *= optimizer.backbone if name.startswith("pyramid.") else 1.0
        scale *= optimizer.localized if name in new else 1.0
        named = any(fnmatchcase(name, pattern) for pattern in exempt)  # some of timm's models have wildcards
        decays = parameter.ndim > 1 and not name.endswith(".bias") and not named
        decay = optimizer.weight_decay if decays else 0.0
        flat = optimizer.offsets_flat and name in slow
        falls_back = not (decays and is_matrix(parameter) and name.rpartition(".")[0] not in outer)
        scale *= optimizer.fallback if optimizer.kind == "muon" and falls_back else 1.0
        fresh = {"params": [], "names": [], "lr_scale": scale, "weight_decay": decay, "flat": flat}
        if optimizer.kind == "muon":
            fresh["use_fallback"] = falls_back
        group = groups.setdefault((scale, decay, flat, optimizer.kind == "muon" and falls_back), fresh)
        group["params"].append(parameter)
        group["names"].append(name)
    if not groups:
        raise ValueError("The model has nothing to train: all of its parameters are frozen.")
    return [groups[key] for key in sorted(groups)]


def outer_layers(model: nn.Module) -> set[str]:
    """Names of the layers that see the image's channels or give the classes: no inner matrices to Muon.

    Example:
        >>> from nearsight import create_model
        >>> sorted(outer_layers(create_model("localvit_nano")))
        ['embed.proj', 'head']
    """
    about: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    named = (about.get("first_conv"), about.get("classifier"))
    return {name for given in named if given for name in ((given,) if isinstance(given, str) else given)}


def is_matrix(parameter: Tensor) -> bool:
    """Whether a parameter is a matrix that is worth an orthogonal step: no vector, table or depth-wise kernel."""
    return parameter.ndim in (2, 4) and min(parameter.shape[:2]) >= NARROWEST


def layer_scales(model: nn.Module, decay: float | None) -> dict[str, float]:
    """Factor of the learning rate for each parameter: 1 for the head, times `decay` with each layer before."""
    names = [name for name, _ in model.named_parameters()]
    if decay is None:
        return dict.fromkeys(names, 1.0)
    matcher: Any = getattr(model, "group_matcher", None)
    if matcher is None:
        raise ValueError(
            f"{type(model).__name__} does not say which layers it has; set optimizer.layer_decay to null for it."
        )
    layers = group_parameters(model, matcher(coarse=False), reverse=True)
    last, new = max(layers.values()), localized_names(model)
    return {name: 1.0 if name in new else decay ** (last - layers[name]) for name in names}


def localized_names(model: nn.Module) -> set[str]:
    """Names of the parameters that `nearsight.localize` added to pretrained ones."""
    found = ((prefix, getattr(module, "localized", None)) for prefix, module in model.named_modules())
    held = [(f"{prefix}." if prefix else "", done) for prefix, done in found if isinstance(done, Localized)]
    return {prefix + name for prefix, done in held for name in done.new}


def clip_gradients(model: nn.Module, optimizer: Optimizer, norm: Tensor) -> None:
    """Shorten the gradient to the recipe's norms: of all weights together, or of what `localize` has added apart.

    Args:
        model: With gradients.
        optimizer: Of the recipe.
        norm: Of the gradient of all weights.
    """
    taught = {name: parameter for name, parameter in model.named_parameters() if parameter.grad is not None}
    new = set() if optimizer.localized_clip is None else localized_names(model)
    if optimizer.localized_clip is not None:
        nn.utils.clip_grad_norm_([taught[name] for name in sorted(new & set(taught))], optimizer.localized_clip)
    if optimizer.clip is not None:
        others = [parameter for name, parameter in taught.items() if name not in new]
        total = nn.utils.get_total_norm([one.grad for one in others if one.grad is not None]) if new else norm
        nn.utils.clip_grads_with_norm_(others, optimizer.clip, total)


def make_optimizer(model: nn.Module, optimizer: Optimizer, batch: int) -> torch.optim.Optimizer:
    """The optimizer of a recipe, for a batch over all processes.

    Every group has its `lr_scale`; in training its `lr` is `lr_scale` times that of the schedule.

    Example:
        >>> from nearsight import create_model
        >>> settings = Optimizer(lr=5e-4, lr_batch=512)
        >>> make_optimizer(create_model("deit_nano"), settings, batch=1024).param_groups[0]["lr"]
        0.001
    """
    rate = base_rate(optimizer, batch)
    groups = parameter_groups(model, optimizer)
    for group in groups:
        group["lr"] = rate * group["lr_scale"]
    betas = (optimizer.momentum, optimizer.beta2)
    if optimizer.kind == "sgd":
        nesterov = optimizer.nesterov and optimizer.momentum > 0
        return torch.optim.SGD(groups, lr=rate, momentum=optimizer.momentum, nesterov=nesterov)
    if optimizer.kind == "lamb":
        # `clip` is done by the training loop, over all processes.
        return Lamb(groups, lr=rate, betas=betas, eps=optimizer.eps, max_grad_norm=None)
    if optimizer.kind == "muon":
        # Matrices have their paper's momentum; `momentum` and `beta2` are for all that is left to AdamW.
        return Muon(groups, lr=rate, betas=betas, eps=optimizer.eps)
    # On a CPU torch takes a pass over the weights for every term of a step unless it is told to take one for all.
    on_cpu = all(one.device.type == "cpu" for group in groups for one in group["params"])
    return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=optimizer.eps, fused=on_cpu or None)


def base_rate(optimizer: Optimizer, batch: int) -> float:
    """The learning rate at its height, for a batch over all processes."""
    return optimizer.lr * batch / optimizer.lr_batch if optimizer.lr_batch else optimizer.lr


def learning_rate(schedule: Schedule, epochs: int, epoch: float) -> float:
    """Fraction of the learning rate at a moment of training.

    The warm-up takes the place of the schedule's first epochs and does not shift it, as in DeiT's and Swin's training.

    Args:
        schedule: The schedule.
        epochs: All epochs of the training.
        epoch: Epochs done, with the part of the present one.

    Example:
        >>> schedule = Schedule(warmup_epochs=5, warmup_lr=0.001, min_lr=0.01)
        >>> [round(learning_rate(schedule, 300, epoch), 3) for epoch in (0, 2.5, 150, 300)]
        [0.001, 0.5, 0.505, 0.01]
    """
    if epoch < schedule.warmup_epochs:
        return schedule.warmup_lr + (1 - schedule.warmup_lr) * epoch / schedule.warmup_epochs
    if schedule.kind == "constant":
        return 1.0
    done = min(epoch / epochs, 1.0)
    if schedule.kind == "poly":
        return schedule.min_lr + (1 - schedule.min_lr) * (1 - done) ** schedule.power
    if schedule.kind == "step":
        # Milestones are fractions; half a millionth keeps 0.3 of 200 epochs at epoch 60.
        return max(schedule.gamma ** sum(done + 5e-7 >= fraction for fraction in schedule.milestones), schedule.min_lr)
    return schedule.min_lr + (1 - schedule.min_lr) * (1 + math.cos(math.pi * done)) / 2
