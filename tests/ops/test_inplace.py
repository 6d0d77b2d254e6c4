"""Numbers are written over only where nothing remembers them."""

import torch
import torch.nn.functional as F

from nearsight.ops.inplace import gelu_over, may_overwrite


def test_a_tensor_that_a_gradient_needs_is_left_as_it_is():
    source = torch.randn(5, requires_grad=True)
    tokens = 2 * source
    before = tokens.detach().clone()
    out = gelu_over(tokens)
    assert torch.equal(tokens, before)
    out.sum().backward()
    expected = torch.autograd.grad(F.gelu(2 * source).sum(), source)[0]
    torch.testing.assert_close(source.grad, expected)


def test_inference_writes_into_the_same_memory():
    tokens = torch.randn(5, requires_grad=True)
    with torch.inference_mode():
        fresh = tokens * 1
        expected = F.gelu(fresh)
        out = gelu_over(fresh)
    assert out.data_ptr() == fresh.data_ptr() and torch.equal(out, expected)


def test_a_recorded_graph_writes_over_nothing():
    def ask(tokens):
        return tokens + 1 if may_overwrite(tokens) else tokens + 2

    compiled = torch.compile(ask, backend="eager", fullgraph=True)
    assert ask(torch.zeros(2)).sum() == 2 and compiled(torch.zeros(2)).sum() == 4
