import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nearsight.ops.sliding import (
    gather_offsets,
    inside_window,
    offset_products,
    pad_for_window,
    same_padding,
    unfold_gather_offsets,
    unfold_offset_products,
    unfold_offsets,
)

shapes = {
    "batch": st.integers(1, 3),
    "height": st.integers(1, 6),
    "width": st.integers(1, 6),
    "groups": st.integers(1, 3),
    "channels": st.integers(1, 4),
    "kernel": st.integers(1, 5),
    "strided": st.booleans(),
    "seed": st.integers(0, 99),
}


class Largest(TorchDispatchMode):
    """Keeps the size of the largest tensor that any operation allocates, in elements."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.elements = max(self.elements, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


def random(*shape, strided=False, dtype=torch.float64):
    """Random numbers; `strided` has gaps between all of them."""
    full = torch.randn(*(2 * s for s in shape) if strided else shape, dtype=dtype)
    return (full[tuple(slice(None, None, 2) for _ in shape)] if strided else full).requires_grad_()


def assert_same_with_gradients(fast, plain, *inputs):
    torch.testing.assert_close(fast, plain)
    cotangent = torch.randn_like(plain)
    gradients = [torch.autograd.grad(result, inputs, cotangent) for result in (fast, plain)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kernel", range(1, 13))
def test_same_padding_keeps_the_size_and_centres_odd_kernels(kernel):
    before, after = same_padding(kernel)
    assert before + after == kernel - 1
    assert after - before == (kernel + 1) % 2


def test_twelve_is_padded_five_before_and_six_behind():
    assert same_padding(12) == (5, 6)


@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_the_unfold_reference_is_torchs_unfold(kernel):
    field = torch.randn(2, 4, 5, 3)
    wanted = F.unfold(field.permute(0, 3, 1, 2), kernel, padding=kernel // 2)
    wanted = wanted.view(2, 3, kernel**2, 4, 5).permute(0, 3, 4, 2, 1)
    assert torch.equal(unfold_offsets(field, kernel), wanted)


@given(**shapes)
@settings(max_examples=30, deadline=None)
def test_inhomogeneous_convolution_agrees_with_the_unfolded_sum(
    batch, height, width, groups, channels, kernel, strided, seed
):
    torch.manual_seed(seed)
    field = random(batch, height, width, groups, channels, strided=strided)
    weights = random(batch, height, width, kernel**2, groups, strided=strided)
    assert_same_with_gradients(
        gather_offsets(field, weights, kernel), unfold_gather_offsets(field, weights, kernel), field, weights
    )


@given(**shapes)
@settings(max_examples=30, deadline=None)
def test_dot_products_over_the_window_agree_with_the_unfolded_ones(
    batch, height, width, groups, channels, kernel, strided, seed
):
    torch.manual_seed(seed)
    queries = random(batch, height, width, groups, channels, strided=strided)
    keys = random(batch, height, width, groups, channels, strided=strided)
    assert_same_with_gradients(
        offset_products(queries, keys, kernel), unfold_offset_products(queries, keys, kernel), queries, keys
    )


@pytest.mark.parametrize("shape", [(1, 4, 5), (1, 1, 1)])
def test_weights_may_be_shared_over_the_batch_and_the_positions(shape):
    field, weights = random(2, 4, 5, 2, 3), random(*shape, 9, 2)
    assert_same_with_gradients(
        gather_offsets(field, weights, 3), unfold_gather_offsets(field, weights, 3), field, weights
    )


def test_weights_equal_at_all_positions_make_a_depthwise_convolution():
    field, kernels = torch.randn(2, 5, 6, 4, 1), torch.randn(4, 1, 3, 3)
    weights = kernels.flatten(1).T.view(1, 1, 1, 9, 4)
    wanted = F.conv2d(field[..., 0].permute(0, 3, 1, 2), kernels, padding=1, groups=4)
    torch.testing.assert_close(gather_offsets(field, weights, 3)[..., 0], wanted.permute(0, 2, 3, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_sum_over_many_taps_is_rounded_to_sixteen_bits_only_once(dtype):
    torch.manual_seed(0)
    field, weights = torch.rand(1, 9, 9, 2, 3).to(dtype), torch.rand(1, 9, 9, 49, 2).to(dtype)
    exact = unfold_gather_offsets(field.double(), weights.double(), 7)
    summed = gather_offsets(field, weights, 7)
    assert summed.dtype == dtype
    torch.testing.assert_close(summed.double(), exact, rtol=1.01 * torch.finfo(dtype).eps, atol=0)


def test_mixed_types_give_the_wider_one():
    field, weights = torch.randn(1, 3, 3, 1, 2).bfloat16(), torch.randn(1, 3, 3, 9, 1)
    assert gather_offsets(field, weights, 3).dtype == torch.float32


def test_inhomogeneous_convolution_never_holds_the_unfolded_input():
    batch, side, groups, channels, kernel = 2, 12, 2, 16, 7
    field, weights = random(batch, side, side, groups, channels), random(batch, side, side, kernel**2, groups)
    bound = max(weights.numel(), pad_for_window(field, kernel).numel())
    unfolded = kernel**2 * field.numel()
    assert bound < unfolded / 8
    with Largest() as largest:
        gather_offsets(field, weights, kernel).square().sum().backward()
    assert largest.elements <= bound
    with Largest() as largest:
        unfold_gather_offsets(field, weights, kernel)
    assert largest.elements >= unfolded  # the measure sees an unfolded input where there is one


def test_dot_products_over_the_window_never_hold_the_unfolded_keys():
    batch, side, heads, channels, kernel = 2, 12, 2, 16, 7
    queries, keys = random(batch, side, side, heads, channels), random(batch, side, side, heads, channels)
    bound = max(batch * side * side * kernel**2 * heads, pad_for_window(keys, kernel).numel())
    assert bound < kernel**2 * keys.numel() / 8
    with Largest() as largest:
        offset_products(queries, keys, kernel).square().sum().backward()
    assert largest.elements <= bound


@given(height=st.integers(1, 6), width=st.integers(1, 6), kernel=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_taps_are_inside_where_the_map_is(height, width, kernel):
    inside = inside_window(height, width, kernel)
    before, _ = same_padding(kernel)
    for row, column, tap in torch.cartesian_prod(*map(torch.arange, inside.shape)).tolist():
        y, x = row + tap // kernel - before, column + tap % kernel - before
        assert inside[row, column, tap].item() == (0 <= y < height and 0 <= x < width)
