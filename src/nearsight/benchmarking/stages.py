"""Where a model's time goes: embedding, stages and head, timed within one call (LightViT's Figure 5a)."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..models import Backbone
from ..models.counting import macs_so_far
from ..tasks.build import channels_seen
from ..timing import moment
from .models import BenchModel

MOST = 8  # stages that a table shows; a plain transformer of timm lists each of its blocks


@dataclass(frozen=True)
class StageTime:
    """A part of a model.

    Attributes:
        name: `embed`, `stage 1` and so on, `head`; of a model of timm what it calls the modules of its pyramid.
        macs: Multiply-adds of one image.
        seconds: That it took with a batch, in each round.
    """

    name: str
    macs: int
    seconds: tuple[float, ...]


def stage_ends(model: nn.Module) -> dict[str, nn.Module]:
    """The modules whose ends divide a call of the model, by the name of what they end; the head comes behind the last.

    Raises:
        ValueError: The model doesn't say where its stages are, or has none.

    Example:
        >>> import timm
        >>> list(stage_ends(timm.create_model("resnet18")))
        ['act1', 'layer1', 'layer2', 'layer3', 'layer4']
    """
    if isinstance(model, Backbone):
        return {"embed": model.embed, **{f"stage {number}": stage for number, stage in enumerate(model.stages, 1)}}
    rows = list(getattr(model, "feature_info", ()))
    if not 1 < len(rows) <= MOST:
        told = f"lists {len(rows)} maps" if rows else "lists no maps"
        raise ValueError(
            f"its stages can't be timed, since {type(model).__name__} {told} in feature_info, not 2 to {MOST}."
        )
    try:
        return {row["module"]: model.get_submodule(row["module"]) for row in rows}
    except AttributeError:
        raise ValueError(
            f"its stages can't be timed, since feature_info of {type(model).__name__} names modules that it lacks."
        ) from None


@torch.inference_mode()
def time_stages(model: BenchModel, module: nn.Module, images: Tensor, rounds: int) -> list[StageTime]:
    """Time the stages of a model.

    Args:
        model: What is measured.
        module: It, or its folded form, where the images are.
        images: A batch `[B, C, H, W]`.
        rounds: How often.

    Raises:
        ValueError: Its stages are not known.

    Example:
        >>> from nearsight.benchmarking.models import open_model
        >>> opened = open_model("lit_nano")
        >>> stages = time_stages(opened, opened.model, torch.zeros(2, 3, 32, 32), rounds=2)
        >>> [stage.name for stage in stages], sum(stage.macs for stage in stages) == opened.macs
        (['embed', 'stage 1', 'stage 2', 'stage 3', 'head'], True)
    """
    names = [*stage_ends(module), "head"]
    moments: list[float] = []

    def note(*_: object) -> None:
        moments.append(moment(images.device))

    handles = [end.register_forward_hook(note) for end in stage_ends(module).values()]
    spans: list[list[float]] = []
    try:
        for _ in range(rounds + 1):  # the first one warms up
            moments.clear()
            note()
            module(images)
            note()
            spans.append([after - before for before, after in pairwise(moments)])
    finally:
        for handle in handles:
            handle.remove()
    if {len(row) for row in spans} != {len(names)}:
        raise ValueError(f"its stages can't be timed, since {type(module).__name__} does not call each of them once.")
    columns = zip(*spans[1:], strict=True)
    return [StageTime(*row) for row in zip(names, stage_macs(model), columns, strict=True)]


def stage_macs(model: BenchModel) -> Sequence[int]:
    """Multiply-adds of one image in each part, the head last."""
    with torch.inference_mode(False):  # in which operators can't be seen
        shape = copy.deepcopy(model.model).to("meta")
        image = torch.zeros(1, channels_seen(model.model), *model.size, device="meta")
        done = macs_so_far(shape, stage_ends(shape).values(), image)
    return [after - before for before, after in pairwise([0, *done])]
