"""The functions with written-out gradients against torch's own and against finite differences."""

import pytest
import torch
import torch.nn.functional as F

from model.functions import norm, squared_relu

PLAIN = {norm: lambda x: F.rms_norm(x, (x.size(-1),)), squared_relu: lambda x: F.relu(x).square()}


@pytest.mark.parametrize("function", PLAIN)
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3, 5, 16)])
def test_equal_to_the_plain_expression_in_value_and_gradient(function, shape):
    torch.manual_seed(0)
    found = []
    x, direction = torch.randn(shape), torch.randn(shape)
    for f in (function, PLAIN[function]):
        leaf = x.clone().requires_grad_()
        y = f(leaf)
        y.backward(direction)
        found.append((y.detach(), leaf.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("function", PLAIN)
def test_gradient_is_that_of_finite_differences(function):
    torch.manual_seed(0)
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x,))


@pytest.mark.parametrize("function", PLAIN)
def test_zero_stays_zero_with_finite_gradient(function):
    x = torch.zeros(2, 4, requires_grad=True)
    y = function(x)
    y.sum().backward()
    assert not y.any() and torch.isfinite(x.grad).all()


def test_squared_relu_in_bfloat16_rounds_as_the_plain_expression():
    x = torch.randn(64, dtype=torch.bfloat16)
    assert torch.equal(squared_relu(x), PLAIN[squared_relu](x))
