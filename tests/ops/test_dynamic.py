"""Dynamic convolutions agree with plain references, forward and backward, and stay within their memory."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nearsight.benchmarking.measure import peak_memory
from nearsight.ops import bands, dynamic
from nearsight.ops.dynamic import convolve_each
from nearsight.ops.predicted import convolve_predicted
from nearsight.ops.sliding import gather_offsets, unfold_gather_offsets
from tests.rounding import assert_rounded

shapes = {
    "batch": st.integers(1, 3),
    "height": st.integers(1, 6),
    "width": st.integers(1, 6),
    "groups": st.integers(1, 3),
    "channels": st.sampled_from([1, 2, 5, 11]),
    "kernel": st.integers(1, 5),
    "strided": st.booleans(),
    "seed": st.integers(0, 99),
}


def random(*shape, strided=False, dtype=torch.float64):
    """Random numbers; `strided` has gaps between all of them."""
    full = torch.randn(*(2 * s for s in shape) if strided else shape, dtype=dtype)
    return (full[tuple(slice(None, None, 2) for _ in shape)] if strided else full).requires_grad_()


def inputs(batch, height, width, groups, channels, kernel, strided=False, dtype=torch.float64, reduced=4):
    """Map, hidden values, weight and bias of the prediction."""
    positions, taps = (batch, height, width), groups * kernel**2
    sizes = (*positions, groups, channels), (*positions, reduced), (taps, reduced), (taps,)
    return [random(*size, strided=strided, dtype=dtype) for size in sizes]


def plain_predicted(field, hidden, weight, bias, kernel):
    weights = F.linear(hidden, weight, bias).unflatten(-1, (field.shape[3], kernel**2)).transpose(3, 4)
    return unfold_gather_offsets(field, weights, kernel)


def plain_each(picture, kernels, bias):
    before, after = (kernels.shape[-1] - 1) // 2, kernels.shape[-1] // 2
    padded = F.pad(picture, (before, after, before, after)).split(1)
    channels = picture.shape[1]
    return torch.cat([F.conv2d(p, k[:, None], bias, groups=channels) for p, k in zip(padded, kernels, strict=True)])


def assert_same_with_gradients(fast, plain, inputs):
    torch.testing.assert_close(fast, plain)
    cotangent = torch.randn_like(plain)
    torch.testing.assert_close(*(torch.autograd.grad(result, inputs, cotangent) for result in (fast, plain)))


@pytest.fixture
def small_bands(monkeypatch):
    """So few numbers in a band that small maps have several of them."""
    monkeypatch.setattr(bands, "PIECE", 70)


@given(**shapes)
@settings(max_examples=40, deadline=None)
def test_predicted_kernels_agree_with_the_unfolded_sum(batch, height, width, groups, channels, kernel, strided, seed):
    torch.manual_seed(seed)
    given = inputs(batch, height, width, groups, channels, kernel, strided)
    assert_same_with_gradients(convolve_predicted(*given, kernel), plain_predicted(*given, kernel), given)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("height", "width"), [(7, 5), (2, 9), (9, 1)])
@pytest.mark.parametrize("channels", [2, 11])
def test_bands_meet_without_a_seam(small_bands, batch, height, width, channels):
    given = inputs(batch, height, width, 2, channels, 3)
    cut = list(bands.bands(batch, height, width * 18, torch.device("cpu")))
    assert len(cut) > 1
    assert_same_with_gradients(convolve_predicted(*given, 3), plain_predicted(*given, 3), given)
    field, weights = given[0], random(batch, height, width, 9, 2)
    assert_same_with_gradients(
        gather_offsets(field, weights, 3), unfold_gather_offsets(field, weights, 3), (field, weights)
    )


@given(st.integers(1, 9), st.integers(1, 60), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_bands_cover_every_row_of_every_image_once_and_are_small(batch, height, row):
    seen = torch.zeros(batch, height, dtype=torch.int)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bands, "PIECE", 500)
        for band in bands.bands(batch, height, row, torch.device("cpu")):
            seen[band] += 1
            assert seen[band].numel() * row <= 500 or seen[band].numel() == 1
    assert (seen == 1).all()


@pytest.mark.parametrize("shape", [(1, 4, 5), (1, 1, 5), (1, 1, 1), (2, 1, 1)])
def test_shared_weights_get_the_sum_of_their_gradients(small_bands, shape):
    field, weights = random(2, 4, 5, 2, 3), random(*shape, 9, 2)
    whole = weights.expand(2, 4, 5, -1, -1)
    assert_same_with_gradients(
        gather_offsets(field, weights, 3), unfold_gather_offsets(field, whole, 3), (field, weights)
    )


def test_gradients_agree_with_finite_differences(small_bands):
    assert torch.autograd.gradcheck(lambda *given: convolve_predicted(*given, 3), inputs(1, 4, 3, 2, 2, 3, reduced=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_predicted_kernels_in_narrow_types_are_summed_in_wide_ones(dtype):
    torch.manual_seed(0)
    given = [tensor.detach().to(dtype) for tensor in inputs(2, 6, 5, 2, 3, 5)]
    field, hidden, weight, bias = given
    weights = torch.addmm(bias, hidden.flatten(0, 2), weight.T)  # rounded to the type, as a linear layer's result is
    weights = weights.view(2, 6, 5, 2, 25).transpose(3, 4).double()
    wanted = unfold_gather_offsets(field.double(), weights, 5)
    got = convolve_predicted(*given, 5)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=torch.finfo(dtype).eps * wanted.abs().max().item())


def test_under_autocast_it_computes_as_a_linear_layer_and_a_sum_would():
    given = [tensor.detach().float().requires_grad_() for tensor in inputs(2, 5, 5, 2, 3, 3)]
    field, hidden, weight, bias = given
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = convolve_predicted(field, hidden.bfloat16(), weight, bias, 3)
    assert got.dtype == torch.float32  # as the map
    sums = weight.shape[1] + 3**2  # of a predicted weight, and of the window
    assert_rounded(got, plain_predicted(*given, 3), sums, torch.bfloat16)
    got.sum().backward()
    assert all(tensor.grad is not None and tensor.grad.dtype == torch.float32 for tensor in given)


@pytest.mark.parametrize("backward", [False, True])
def test_predicted_kernels_take_less_than_a_tenth_of_the_memory_of_the_unfolded_sum(backward):
    """At the size of the first stage of the tiny model, eight images."""
    given = inputs(8, 56, 56, 32, 3, 7, dtype=torch.float32, reduced=24)
    cotangent = torch.ones_like(given[0])

    def call(function):
        with torch.set_grad_enabled(backward):
            out = function(*given, 7)
        return (out, torch.autograd.grad(out, given, cotangent)) if backward else out

    forms = (convolve_predicted, plain_predicted)
    banded, unfolded = (peak_memory(lambda form=form: call(form), torch.device("cpu")) for form in forms)
    assert unfolded > 49 * given[0].nbytes  # the measure sees the windows written out
    assert banded < unfolded / 10


EACH = [dynamic.convolve_each_by_image, dynamic.convolve_each_in_groups, dynamic.convolve_each_by_offsets]


@pytest.mark.parametrize("form", EACH)
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_every_form_convolves_each_image_with_its_own_kernels(form, kernel, last, biased):
    picture, kernels = random(3, 4, 6, 5), random(3, 4, kernel, kernel)
    bias = random(4) if biased else None
    seen = picture.contiguous(memory_format=torch.channels_last) if last else picture
    given = (picture, kernels, bias) if biased else (picture, kernels)
    assert_same_with_gradients(form(seen, kernels, bias), plain_each(picture, kernels, bias), given)


def test_channels_that_come_last_in_memory_stay_last():
    picture = torch.randn(2, 4, 6, 5).contiguous(memory_format=torch.channels_last)
    assert convolve_each(picture, torch.randn(2, 4, 3, 3)).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_predicted_kernels_agree_forward_and_backward(backend):
    given = inputs(2, 6, 5, 2, 3, 3, dtype=torch.float32)
    compiled = torch.compile(lambda *given: convolve_predicted(*given, 3), fullgraph=True, backend=backend)
    assert_same_with_gradients(compiled(*given), plain_predicted(*given, 3), given)


@pytest.mark.parametrize("kernel", [2, 3])
def test_the_operator_of_compiled_models_keeps_the_rules_of_operators(kernel):
    field, hidden, weight, bias = inputs(2, 4, 5, 2, 3, kernel, dtype=torch.float32)
    table = torch.cat((weight, bias[:, None]), 1).unflatten(0, (2, -1)).transpose(0, 1).contiguous().detach()
    arguments = field, hidden, table.requires_grad_(), kernel
    torch.library.opcheck(torch.ops.nearsight.convolve_predicted.default, arguments)
