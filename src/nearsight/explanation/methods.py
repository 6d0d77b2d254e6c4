"""The methods by name: from an opened model and a view of an image to a figure and arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from .attention import attention, global_tokens
from .capture import capture
from .faithfulness import BACKGROUND
from .figures import DenseRow, Panel, draw_dense, draw_global_tokens, draw_kernels, draw_maps, draw_sampling
from .gradients import grad_cam, receptive_field
from .kernels import kernels, sampling_points
from .maps import Place, View
from .model import Opened
from .rollout import dense_rollout, rollout
from .targets import predicted_targets

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Wishes:
    """What a user asks of a method.

    Attributes:
        layer: Number or name of the layer; None takes the method's own choice.
        head: Which head; None takes their mean.
        at: Pixels (x, y) of what the model is shown; none takes the method's own choice.
        classes: Numbers of the classes asked about; none takes the model's answers.
        fusion: How roll-out makes one of all heads.
        discard: Share of the smallest weights that roll-out leaves out.
        beside: Other models for the rows of a figure of dense roll-out.
    """

    layer: str | None = None
    head: int | None = None
    at: tuple[Place, ...] = ()
    classes: tuple[int, ...] = ()
    fusion: Literal["mean", "max", "min"] = "mean"
    discard: float = 0.0
    beside: tuple[Opened, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """A figure and the numbers behind it."""

    figure: "Figure"
    arrays: dict[str, NDArray]


def explain_attention(opened: Opened, view: View, wishes: Wishes) -> Explanation:
    """Attention of chosen tokens in a layer."""
    found = attention(opened.model, view.normalised(opened.preprocessing), layer=wishes.layer, at=wishes.at or None)
    maps = found.maps(wishes.head)
    return Explanation(draw_maps(maps, view.picture, title=opened.name, note=opened.note), maps.arrays())


def explain_rollout(opened: Opened, view: View, wishes: Wishes) -> Explanation:
    """Roll-out of attention through all layers."""
    maps = rollout(
        opened.model,
        view.normalised(opened.preprocessing),
        layer=-1 if wishes.layer is None else wishes.layer,
        at=wishes.at or None,
        fusion=wishes.fusion,
        discard=wishes.discard,
    )
    return Explanation(draw_maps(maps, view.picture, title=opened.name, note=opened.note), maps.arrays())


def explain_dense(opened: Opened, view: View, wishes: Wishes) -> Explanation:
    """Dense roll-out for what a segmenter or detector predicts; further models in rows below."""
    rows: list[DenseRow] = []
    arrays: dict[str, NDArray] = {}
    for place, one in enumerate((opened, *wishes.beside)):
        row = dense_row(one, view, wishes)
        rows.append(row)
        names = {"overall": row.found.overall.values, "classes": row.found.classes.values, "tokens": row.found.tokens}
        titles = {"titles": np.array(row.found.classes.titles)}
        arrays |= {(f"{key}_{place}" if place else key): value for key, value in (names | titles).items()}
    notes = dict.fromkeys(one.note for one in (opened, *wishes.beside))
    return Explanation(draw_dense(rows, note=" ".join(notes).strip()), arrays)


def dense_row(opened: Opened, view: View, wishes: Wishes) -> DenseRow:
    """The row of one model in a figure of dense roll-out."""
    if opened.task not in ("detect", "segment"):
        raise ValueError(
            f"{opened.name} classifies images, and dense roll-out needs regions or boxes that a model predicts; give "
            "the run of a segmenter or detector."
        )
    seen = capture(opened.model, view.normalised(opened.preprocessing))
    found = predicted_targets(seen.output, 0, view.size, sure=opened.threshold, only=wishes.classes or None)
    if not found.numbers:
        asked = "any class" if not wishes.classes else ", ".join(map(opened.class_name, wishes.classes))
        raise ValueError(f"{opened.name} does not find {asked} in this image, so there is no map to make.")
    names = [opened.class_name(number) for number in found.numbers]
    made = dense_rollout(
        seen,
        masks=found.masks[None],
        names=names,
        layer=-1 if wishes.layer is None else wishes.layer,
        fusion=wishes.fusion,
        discard=wishes.discard,
    )
    ground = opened.classes.index(BACKGROUND) if BACKGROUND in opened.classes else None
    regions = found.regions if found.regions is None else np.where(found.regions == ground, -1, found.regions)
    prediction = Panel("prediction", view.picture, view.size, regions=regions, boxes=found.boxes)
    legend = tuple(pair for pair in zip(names, found.numbers, strict=True) if pair[1] != ground)
    return DenseRow(opened.name, view.picture, prediction, legend, made)


def explain_global_tokens(opened: Opened, view: View, wishes: Wishes) -> Explanation:
    """What LightViT's global tokens gather, and who reads them."""
    found = global_tokens(opened.model, view.normalised(opened.preprocessing), layer=wishes.layer, head=wishes.head)
    arrays = {"aggregate": found.aggregate.raw["heads"], "broadcast": found.broadcast.raw["heads"]}
    return Explanation(draw_global_tokens(found, view.picture, note=opened.note), arrays)


def explain_sampling(opened: Opened, view: View, wishes: Wishes) -> Explanation:
    """Where LIT's deformable merges sample."""
    places: Sequence[Place] = wishes.at or spread_places(view.size)
    found = sampling_points(opened.model, view.normalised(opened.preprocessing), at=places)
    return Explanation(draw_sampling(found, view.picture, note=opened.note), found.arrays())


def spread_places(size: tuple[int, int]) -> list[Place]:
    """Five places that lie apart, where nobody has a wish."""
    height, width = size
    return [(width * x, height * y) for x, y in ((0.5, 0.5), (0.2, 0.2), (0.8, 0.2), (0.2, 0.8), (0.8, 0.8))]


def explain_kernels(opened: Opened, view: View, wishes: Wishes) -> Explanation:
    """Kernels at places."""
    places = wishes.at or tuple(spread_places(view.size)[:3])
    found = kernels(opened.model, view.normalised(opened.preprocessing), layer=wishes.layer, at=places)
    return Explanation(draw_kernels(found, view.picture, note=opened.note), found.arrays())


def explain_field(opened: Opened, view: View, wishes: Wishes) -> Explanation:
    """The pixels that a token depends on."""
    if len(wishes.at) > 1:
        raise ValueError("The receptive field is that of one place; give --at once.")
    layer = -1 if wishes.layer is None else wishes.layer
    images = view.normalised(opened.preprocessing)
    maps = receptive_field(opened.model, images, layer=layer, at=wishes.at[0] if wishes.at else None)
    return Explanation(draw_maps(maps, view.picture, title=opened.name, note=opened.note), maps.arrays())


def explain_cam(opened: Opened, view: View, wishes: Wishes) -> Explanation:
    """Grad-CAM."""
    images = view.normalised(opened.preprocessing)
    maps = grad_cam(opened.model, images, classes=wishes.classes[:1] or None, layer=wishes.layer)
    name = opened.class_name(int(maps.raw["classes"][0]))
    title = f"{opened.name}, {name}"
    return Explanation(draw_maps(maps, view.picture, title=title, note=opened.note), maps.arrays())


METHODS: dict[str, Callable[[Opened, View, Wishes], Explanation]] = {
    "attention": explain_attention,
    "rollout": explain_rollout,
    "dense-rollout": explain_dense,
    "global-tokens": explain_global_tokens,
    "sampling": explain_sampling,
    "kernels": explain_kernels,
    "receptive-field": explain_field,
    "grad-cam": explain_cam,
}
OVER_MANY = "probability-grids"  # one figure of all images together
