"""The functions with written-out gradients against torch's own and against finite differences."""

import pytest
import torch
import torch.nn.functional as F

from model.functions import attention, norm, squared_relu

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


def made_up_heads(B=3, T=7, H=2, D=4, dtype=torch.float32):
    torch.manual_seed(0)
    qkv = torch.randn(B, T, 3 * H * D, dtype=dtype, requires_grad=True)
    bias = torch.randn(H, T, T, dtype=dtype, requires_grad=True)
    return qkv, bias, torch.full((T, T), -torch.inf, dtype=dtype).triu(1)


def test_attention_equals_torchs_in_value_and_gradient():
    qkv, bias, future = made_up_heads()
    q, k, v = qkv.view(3, 7, 3, 2, 4).permute(2, 0, 3, 1, 4)
    expected = F.scaled_dot_product_attention(q, k, v, bias + future).transpose(1, 2).flatten(2)
    y, direction = attention(qkv, bias + future), torch.randn(3, 7, 8)
    torch.testing.assert_close(y, expected)
    for a, b in zip(
        torch.autograd.grad(y, (qkv, bias), direction),
        torch.autograd.grad(expected, (qkv, bias), direction),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_attentions_gradient_is_that_of_finite_differences():
    qkv, bias, future = made_up_heads(2, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, b: attention(x, b + future), (qkv, bias))


def test_attention_is_taken_in_float32_under_autocast():
    qkv, bias, future = made_up_heads()
    x, expected = qkv.detach().bfloat16(), attention(qkv.detach().bfloat16().float(), bias + future)
    with torch.autocast("cpu", torch.bfloat16):
        y = attention(x, bias + future)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected.bfloat16(), rtol=0, atol=0)
