"""What a model costs: its parameters, and the multiply-adds of one image.

Multiply-adds are those of convolutions (plain, grouped, dynamic, deformable), matrix products, attention, and the
sliding products that `nearsight.ops` reports. Norms, activations, biases, pooling and bilinear reads are left out, as
in the papers, which print multiply-adds under the name FLOPs.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torchvision  # noqa: F401  (registers the deformable convolution)
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, shape_wrapper

from ..ops.execution import macs_hook


class Cost(NamedTuple):
    """Parameters and multiply-adds.

    Attributes:
        parameters: Numbers that training changes.
        buffers: Fixed numbers: running statistics, position tables, random features.
        macs: Multiply-adds of one image.
    """

    parameters: int
    buffers: int
    macs: int


def count(model: nn.Module, image_size: int | Sequence[int] = 224, in_chans: int = 3) -> Cost:
    """Count the parameters of a model and the multiply-adds of one image in evaluation.

    The model may stand on the meta device (`with torch.device("meta")`), where the count needs neither memory nor
    time; its mode (training or evaluation) is the same afterwards.

    Args:
        model: Takes images `[1, in_chans, H, W]`.
        image_size: Side, or height and width, in pixels.
        in_chans: Channels of the image.

    Example:
        >>> count(nn.Conv2d(3, 8, 3, padding=1), image_size=4)
        Cost(parameters=224, buffers=0, macs=3456)
    """
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    like = next(model.parameters())
    images = torch.zeros(1, in_chans, height, width, device=like.device, dtype=like.dtype)
    return Cost(
        parameters=sum(p.numel() for p in model.parameters()),
        buffers=sum(b.numel() for b in model.buffers()),
        macs=count_macs(model, images),
    )


def count_macs(model: nn.Module, *inputs: Any) -> int:
    """Multiply-adds of one call of a model, or of any module, in evaluation."""
    return macs_so_far(model, (), *inputs)[-1]


def macs_so_far(model: nn.Module, modules: Iterable[nn.Module], *inputs: Any) -> list[int]:
    """Multiply-adds of one call in evaluation when each of these modules of the model is done, and at its end.

    Example:
        >>> first, second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)
        >>> macs_so_far(nn.Sequential(first, second), [first], torch.zeros(1, 3, 4, 4))
        [384, 640]
    """
    reported: list[int] = []
    marks: list[int] = []
    counter = ProductCounter()
    training = {module: module.training for module in model.modules()}
    ends = [each.register_forward_hook(lambda *_: marks.append(counter.flops // 2 + sum(reported))) for each in modules]
    model.eval()
    try:
        with torch.no_grad(), visible_attention(), macs_hook(reported.append), counter:
            model(*inputs)
    finally:
        for end in ends:
            end.remove()
        for module, mode in training.items():
            module.training = mode
    return [*marks, counter.flops // 2 + sum(reported)]


def deformable_flops(nchw: Sequence[int], weight: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any) -> int:
    """As an ordinary convolution, from the shapes `[B, in, H, W]`, `[out, in / groups, h, w]` and `[B, out, H, W]`."""
    return 2 * math.prod(weight) * out_shape[0] * math.prod(out_shape[2:])


FORMULAS = {**flop_registry, torch.ops.torchvision.deform_conv2d: shape_wrapper(deformable_flops)}


class ProductCounter(TorchDispatchMode):
    """Applies PyTorch's formulas for convolutions, matrix products and attention, and ours, to every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0  # two for a multiply-add

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        return out


@contextmanager
def visible_attention() -> Iterator[None]:
    """Keep attention off its fused kernels, in which products can't be seen, or not in every version of PyTorch."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
