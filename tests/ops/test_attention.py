"""Attention of many small problems gives what the plain formula gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nearsight.ops import attention
from nearsight.ops.attention import add_from_few, short_attention, suits, window_attention


def plain(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | float, scale: float) -> Tensor:
    """The formula for one head of one sequence, `[N, d]` each."""
    return (scale * queries @ keys.T + bias).softmax(dim=-1) @ values


def window_by_window(
    fields: list[Tensor], bias: Tensor | None, size: int, heads: int, scale: float | None = None
) -> Tensor:
    """One head of one window after the other."""
    batch, height, width, channels = fields[0].shape
    depth = channels // heads
    mixed = torch.empty(batch, height, width, channels, dtype=fields[0].dtype)
    for image in range(batch):
        for index, (top, left) in enumerate(
            (top, left) for top in range(0, height, size) for left in range(0, width, size)
        ):
            for head in range(heads):
                cut = (
                    image,
                    slice(top, top + size),
                    slice(left, left + size),
                    slice(head * depth, (head + 1) * depth),
                )
                q, k, v = (field[cut].reshape(-1, depth) for field in fields)
                added = 0.0 if bias is None else bias[index if len(bias) > 1 else 0, head]
                mixed[cut] = plain(q, k, v, added, depth**-0.5 if scale is None else scale).view(size, size, depth)
    return mixed


@given(
    batch=st.integers(1, 3),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    size=st.integers(1, 3),
    heads=st.integers(1, 3),
    bias=st.sampled_from(["none", "one", "each"]),
    logits_at_once=st.sampled_from([1, 200, 1 << 20]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_windows_are_attended_to_as_one_by_one(batch, rows, columns, size, heads, bias, logits_at_once, seed):
    """Also in pieces of a row of windows, of an image and of several, and from a qkv layer's output as it lies."""
    torch.manual_seed(seed)
    both = torch.randn(batch, rows * size, columns * size, 3 * heads * 4, dtype=torch.float64)
    fields = list(both.chunk(3, dim=-1))
    count = {"none": 0, "one": 1, "each": rows * columns}[bias]
    added = torch.randn(count, heads, size**2, size**2, dtype=torch.float64) if count else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "LOGITS", logits_at_once)
        mixed = window_attention(*fields, added, size=size, heads=heads)
    torch.testing.assert_close(mixed, window_by_window(fields, added, size, heads))


def test_minus_infinity_hides_a_position():
    field = torch.randn(1, 2, 2, 4)
    bias = torch.zeros(1, 1, 4, 4)
    bias[..., 3] = -torch.inf
    changed = field.clone()
    changed[0, 1, 1] += 1.0
    mixed = [window_attention(field, keys, keys, bias, size=2, heads=1) for keys in (field, changed)]
    assert torch.equal(*mixed)


def test_the_scale_can_be_given():
    fields = [torch.randn(1, 4, 2, 6, dtype=torch.float64) for _ in range(3)]
    mixed = window_attention(*fields, None, size=2, heads=2, scale=0.7)
    torch.testing.assert_close(mixed, window_by_window(fields, None, 2, 2, scale=0.7))


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("logits_at_once", [1, 1 << 20])
def test_a_short_sequence_is_one_window(monkeypatch, biased, logits_at_once):
    monkeypatch.setattr(attention, "LOGITS", logits_at_once)
    both = torch.randn(3, 9, 3 * 8, dtype=torch.float64)
    bias = torch.randn(1, 2, 9, 9, dtype=torch.float64) if biased else None
    mixed = short_attention(*both.chunk(3, dim=-1), bias, heads=2)
    fields = [t.unflatten(1, (3, 3)) for t in both.chunk(3, dim=-1)]
    torch.testing.assert_close(mixed, window_by_window(fields, bias, 3, 2).flatten(1, 2))


@given(batch=st.integers(1, 3), count=st.integers(1, 9), few=st.integers(1, 4), heads=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_what_is_read_from_a_few_keys_is_added(batch, count, few, heads):
    torch.manual_seed(count)
    queries, tokens = torch.randn(2, batch, count, heads * 4, dtype=torch.float64)
    keys, values = torch.randn(batch, few, 2 * heads * 4, dtype=torch.float64).chunk(2, dim=-1)
    expected = tokens.clone()
    for image in range(batch):
        for head in range(heads):
            cut = (image, slice(None), slice(4 * head, 4 * head + 4))
            expected[cut] += plain(queries[cut], keys[cut], values[cut], 0.0, 0.5)
    got = add_from_few(tokens, queries, keys, values, heads)
    torch.testing.assert_close(got, expected)
    assert got.data_ptr() == tokens.data_ptr()


def test_these_ways_are_for_plain_inference_in_full_precision():
    assert suits(torch.zeros(1))
    assert not suits(torch.zeros(1, dtype=torch.bfloat16))
    assert not suits(torch.zeros(1, device="meta"))
    learned = torch.zeros(1, requires_grad=True)
    assert not suits(learned)
    with torch.no_grad():
        assert suits(learned)
