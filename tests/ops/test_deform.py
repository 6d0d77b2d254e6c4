import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nearsight.ops.deform import (
    deformable_2x2,
    deformable_2x2_reference,
    deformable_2x2_sampled,
    deformable_2x2_summed,
    deformable_2x2_torchvision,
)
from tests.rounding import assert_rounded

FORMS = [deformable_2x2_summed, deformable_2x2_torchvision, deformable_2x2_reference]


def problem(batch, channels, rows, columns, out, dtype=torch.float64, spread=1.5):
    picture = torch.randn(batch, channels, 2 * rows, 2 * columns, dtype=dtype)
    offsets = spread * torch.randn(batch, 8, rows, columns, dtype=dtype)
    weight, bias = torch.randn(out, channels, 2, 2, dtype=dtype), torch.randn(out, dtype=dtype)
    return [t.requires_grad_() for t in (picture, offsets, weight, bias)]


def by_hand(picture, offsets, weight, bias):
    """One output after the other, cell by cell."""
    batch, _, height, width = picture.shape
    rows, columns = offsets.shape[2:]
    out = bias[None, :, None, None].repeat(batch, 1, rows, columns)
    for b in range(batch):
        for row in range(rows):
            for column in range(columns):
                for tap in range(4):
                    y = 2 * row + tap // 2 + offsets[b, 2 * tap, row, column].item()
                    x = 2 * column + tap % 2 + offsets[b, 2 * tap + 1, row, column].item()
                    for i in range(height):
                        for j in range(width):
                            fraction = max(0.0, 1 - abs(y - i)) * max(0.0, 1 - abs(x - j))
                            out[b, :, row, column] += fraction * weight[:, :, tap // 2, tap % 2] @ picture[b, :, i, j]
    return out


@pytest.mark.parametrize("sample", FORMS)
def test_each_offset_reads_the_bilinear_mean_at_its_moved_position(sample):
    torch.manual_seed(0)
    inputs = [t.detach() for t in problem(2, 2, 2, 3, 2)]
    torch.testing.assert_close(sample(*inputs), by_hand(*inputs))


@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 5),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    out=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("sample", [deformable_2x2_summed, deformable_2x2_torchvision, deformable_2x2_sampled])
def test_every_form_agrees_with_the_reference_forward_and_backward(sample, batch, channels, rows, columns, out, seed):
    torch.manual_seed(seed)
    inputs = problem(batch, channels, rows, columns, out)
    fast, plain = sample(*inputs), deformable_2x2_reference(*inputs)
    torch.testing.assert_close(fast, plain)
    cotangent = torch.randn_like(fast)
    gradients = [torch.autograd.grad(result, inputs, cotangent) for result in (fast, plain)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_the_sum_of_rows_has_the_gradients_of_finite_differences(order):
    torch.manual_seed(0)
    picture, offsets, weight, bias = problem(2, 3, 2, 3, 2)
    picture = picture.detach().contiguous(memory_format=order).requires_grad_()
    assert torch.autograd.gradcheck(deformable_2x2_summed, (picture, offsets, weight, bias))


def test_a_last_row_that_no_tap_stands_on_can_still_be_read():
    """An odd side whose last row is cropped: samples may fall on it."""
    torch.manual_seed(0)
    picture, offsets = torch.randn(1, 2, 5, 7), torch.randn(1, 8, 2, 3) + 1.0
    weight, bias = torch.randn(3, 2, 2, 2), torch.randn(3)
    torch.testing.assert_close(deformable_2x2(picture, offsets, weight, bias), by_hand(picture, offsets, weight, bias))


@pytest.mark.parametrize("shift", [0.0, 1.0, -1.0, -2.0])
@pytest.mark.parametrize("sample", [deformable_2x2_summed, deformable_2x2_torchvision])
def test_offsets_on_whole_cells_have_the_same_gradient_in_all(sample, shift):
    # Training starts at zero offsets, where the bilinear weights have a kink.
    torch.manual_seed(0)
    picture, offsets, weight, bias = problem(2, 3, 2, 3, 4, spread=0)
    offsets = (offsets.detach() + shift).requires_grad_()
    fast = torch.autograd.grad(sample(picture, offsets, weight, bias).square().sum(), offsets)
    plain = torch.autograd.grad(deformable_2x2_reference(picture, offsets, weight, bias).square().sum(), offsets)
    torch.testing.assert_close(fast, plain)


@pytest.mark.parametrize("sample", FORMS)
def test_zero_offsets_give_a_convolution(sample):
    picture, offsets, weight, bias = problem(2, 3, 3, 2, 4, spread=0)
    torch.testing.assert_close(sample(picture, offsets, weight, bias), F.conv2d(picture, weight, bias, stride=2))


@pytest.mark.parametrize("sample", FORMS)
def test_far_offsets_read_zeros(sample):
    picture, offsets, weight, bias = problem(1, 3, 2, 2, 4, spread=0)
    far = sample(picture, offsets + 100, weight, bias)
    torch.testing.assert_close(far, bias[None, :, None, None].expand_as(far))


@pytest.mark.parametrize("sample", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_give_the_result_of_thirty_two_up_to_rounding(sample, dtype):
    torch.manual_seed(0)
    inputs = [t.detach() for t in problem(2, 3, 2, 3, 4, dtype=torch.float32)]
    exact = sample(*inputs)
    narrow = sample(*(t.to(dtype) for t in inputs))
    assert narrow.dtype == dtype
    assert_rounded(narrow, exact, inputs[2][0].numel(), dtype)
    with torch.autocast("cpu", dtype=dtype):
        mixed = sample(*inputs)
    assert_rounded(mixed, exact, inputs[2][0].numel(), dtype)
