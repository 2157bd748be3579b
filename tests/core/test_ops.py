"""Maths blind to leading dimensions: a stack of clients is each client alone, in values and in gradients."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import ops

SIZES = (1, 3)  # of a stack
Op = Callable[..., Tensor]
Shapes = tuple[tuple[int, ...], ...]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def pool_3(x: Tensor) -> Tensor:
    return ops.max_pool2d(x, 3)


def pooled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return ops.conv_relu(x, weight, bias, 2)


# every op with the shapes one client gives it
CASES: dict[str, tuple[Op, Shapes]] = {
    "linear": (ops.linear, ((5, 4), (2, 4), (2,))),
    "linear, more weights than rows": (ops.linear, ((2, 4), (5, 4), (5,))),
    "linear, no batch": (ops.linear, ((4,), (2, 4), (2,))),
    "linear, tokens": (ops.linear, ((5, 6, 4), (2, 4), (2,))),
    "conv2d": (ops.conv2d, ((2, 3, 6, 7), (4, 3, 3, 3), (4,))),
    "conv2d 1×1": (ops.conv2d, ((2, 3, 4, 4), (4, 3, 1, 1), (4,))),
    "conv2d, as large as the image": (ops.conv2d, ((2, 3, 3, 3), (4, 3, 3, 3), (4,))),
    "conv_relu": (ops.conv_relu, ((2, 3, 6, 7), (4, 3, 3, 3), (4,))),
    "conv_relu, pooled": (pooled, ((2, 3, 7, 9), (4, 3, 3, 3), (4,))),
    "max_pool2d": (ops.max_pool2d, ((2, 3, 6, 4),)),
    "max_pool2d, odd sides": (ops.max_pool2d, ((2, 3, 5, 7),)),
    "max_pool2d, 3×3": (pool_3, ((2, 3, 6, 7),)),
    "layer_norm": (ops.layer_norm, ((2, 8), (8,), (8,))),
    "layer_norm, tokens": (ops.layer_norm, ((2, 5, 8), (8,), (8,))),
    "attention": (ops.attention, ((2, 4, 5, 3), (2, 4, 5, 3), (2, 4, 5, 3))),
    "attention, no batch": (ops.attention, ((4, 5, 3), (4, 5, 3), (4, 5, 3))),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("clients", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_a_stack_is_one_by_one(name: str, clients: int, dtype: torch.dtype, tolerance: float) -> None:
    op, shapes = CASES[name]
    stacked = [normal(clients, *shape, seed=number, dtype=dtype) for number, shape in enumerate(shapes)]
    alone = torch.stack([op(*(part[client] for part in stacked)) for client in range(clients)])
    torch.testing.assert_close(op(*stacked), alone, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("clients", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_a_stack_are_one_by_one(name: str, clients: int) -> None:
    op, shapes = CASES[name]
    stacked = [normal(clients, *shape, seed=number).requires_grad_() for number, shape in enumerate(shapes)]
    out = op(*stacked)
    pull = normal(*out.shape, seed=99)
    together = torch.autograd.grad(out, stacked, pull)
    for client in range(clients):
        single = [part[client].detach().requires_grad_() for part in stacked]
        expected = torch.autograd.grad(op(*single), single, pull[client])
        torch.testing.assert_close([part[client] for part in together], list(expected), rtol=1e-11, atol=1e-11)


def test_gradients_of_stacked_convolutions_are_numerically_right() -> None:
    parts = [normal(2, *shape).requires_grad_() for shape in ((1, 2, 4, 4), (2, 2, 3, 3), (2,))]
    assert torch.autograd.gradcheck(ops.conv2d, parts)
    assert torch.autograd.gradgradcheck(ops.conv2d, parts)


@pytest.mark.parametrize("rows", [2, 4])
def test_gradients_of_few_rows_are_numerically_right(rows: int) -> None:
    parts = [normal(2, *shape).requires_grad_() for shape in ((rows, 3), (5, 3), (5,))]
    assert torch.autograd.gradcheck(ops.linear, parts)
    assert torch.autograd.gradgradcheck(ops.linear, parts)
    # the update reads the weights' gradient, and the layer before reads that of the rows
    assert all(grad.is_contiguous() for grad in torch.autograd.grad(ops.linear(*parts).sum(), parts))


def test_linear_by_hand() -> None:
    x, weight, bias = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]), torch.tensor([0.5, -0.5])
    # 1·3 + 2·4 + 0.5 = 11.5; 1·5 + 2·6 - 0.5 = 16.5
    assert ops.linear(x, weight, bias).tolist() == [[11.5, 16.5]]


def test_linear_with_two_leading_dimensions() -> None:
    x, weight, bias = normal(2, 3, 5, 4), normal(2, 3, 6, 4, seed=1), normal(2, 3, 6, seed=2)
    expected = F.linear(x[1, 2], weight[1, 2], bias[1, 2])
    torch.testing.assert_close(ops.linear(x, weight, bias)[1, 2], expected, rtol=1e-12, atol=1e-12)


def test_convolution_by_hand() -> None:
    image = torch.arange(9.0).view(1, 1, 3, 3)  # 0 1 2 / 3 4 5 / 6 7 8
    weight, bias = torch.tensor([[[[1.0, 10.0], [100.0, 1000.0]]]]), torch.tensor([0.5])
    # top left: 0·1 + 1·10 + 3·100 + 4·1000 = 4310; every step right or down adds 1111 per unit
    expected = [[4310.5, 5421.5], [7643.5, 8754.5]]
    assert ops.conv2d(image, weight, bias)[0, 0].tolist() == expected
    assert ops.conv2d(image[None], weight[None], bias[None])[0, 0, 0].tolist() == expected


def test_convolution_reads_images_that_are_channels_last() -> None:
    x, weight, bias = normal(2, 2, 5, 6, 3).movedim(-1, -3), normal(2, 4, 3, 3, 3, seed=1), normal(2, 4, seed=2)
    expected = torch.stack([F.conv2d(x[i], weight[i], bias[i]) for i in range(2)])
    torch.testing.assert_close(ops.conv2d(x, weight, bias), expected, rtol=1e-12, atol=1e-12)


def test_pooling_by_hand() -> None:
    x = torch.tensor([[1.0, 5.0, 2.0, 0.0], [3.0, 4.0, 9.0, -1.0]])
    assert ops.max_pool2d(x.expand(2, 3, 1, 2, 4)).tolist() == [[[[[5.0, 9.0]]]] * 3] * 2


def test_convolution_with_pooling_and_relu_is_the_three_in_a_row() -> None:
    x, weight, bias = normal(2, 2, 3, 7, 9), normal(2, 4, 3, 3, 3, seed=1), normal(2, 4, seed=2)
    expected = torch.stack([F.max_pool2d(torch.relu(F.conv2d(x[i], weight[i], bias[i])), 2) for i in range(2)])
    torch.testing.assert_close(pooled(x, weight, bias), expected, rtol=1e-12, atol=1e-12)
    assert ops.conv_relu(x, weight, bias).shape == (2, 2, 4, 5, 7)


def test_dropout_by_hand() -> None:
    x, noise = torch.arange(1.0, 5).view(1, 1, 2, 2).expand(2, 1, 2, 2), torch.tensor([0.1, 0.2, 0.2, 0.9]).expand(2, 4)
    assert ops.dropout(x, noise, 0.2).tolist() == [[0.0, 2.5, 3.75, 5.0]] * 2


def test_layer_norm_by_hand() -> None:
    x, weight, bias = torch.tensor([[1.0, 3.0]]), torch.tensor([2.0, 3.0]), torch.tensor([10.0, 20.0])
    # mean 2, variance 1: [-1, 1] · [2, 3] + [10, 20]
    expected = torch.tensor([[8.0, 23.0]])
    torch.testing.assert_close(ops.layer_norm(x, weight, bias, eps=0.0), expected)
    torch.testing.assert_close(ops.layer_norm(x[None], weight[None], bias[None], eps=0.0), expected[None])


def test_attention_is_softmax_of_scaled_products() -> None:
    query, key, value = (normal(2, 3, 4, 5, seed=seed) for seed in range(3))
    expected = (query @ key.mT / math.sqrt(5)).softmax(-1) @ value
    torch.testing.assert_close(ops.attention(query, key, value), expected, rtol=1e-12, atol=1e-12)


def test_spread_puts_ones_between_clients_and_the_rest() -> None:
    assert ops.spread(normal(3, 8), 1, normal(3, 2, 5, 8)).shape == (3, 1, 1, 8)
    assert ops.spread(normal(8), 1, normal(2, 5, 8)).shape == (1, 1, 8)
    assert ops.spread(normal(3, 4, 8), 2, normal(3, 2, 4, 8)).shape == (3, 1, 4, 8)


def test_cross_entropy_by_hand() -> None:
    # p(0) = 3/4, 1/2 and 1/4 by the logits' differences ln 3, 0 and -ln 3
    logits = torch.tensor([[math.log(3), 0.0], [0.0, 0.0], [0.0, math.log(3)]])
    labels, loss = torch.tensor([0, 1, 0]), torch.tensor([math.log(4 / 3), math.log(2), math.log(4)])
    torch.testing.assert_close(ops.cross_entropy(logits, labels, torch.ones(3)), loss.mean())
    masks = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    stacked = ops.cross_entropy(logits.expand(3, 3, 2), labels.expand(3, 3), masks)
    torch.testing.assert_close(stacked, torch.stack([loss[:2].mean(), loss[2], torch.tensor(0.0)]))


def test_masked_examples_have_no_gradient() -> None:
    logits = normal(2, 3, 4).requires_grad_()
    mask = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    loss = ops.cross_entropy(logits, torch.zeros(2, 3, dtype=torch.long), mask)
    (pull,) = torch.autograd.grad(loss.sum(), logits)
    assert pull.isfinite().all()
    assert (pull.abs().sum(-1) > 0).tolist() == [[True, False, True], [False, False, False]]


def test_cross_entropy_without_a_mask_is_the_ordinary_one() -> None:
    logits, labels = normal(2, 5, 4), torch.arange(10).view(2, 5) % 4
    expected = torch.stack([F.cross_entropy(logits[i], labels[i]) for i in range(2)])
    torch.testing.assert_close(ops.cross_entropy(logits, labels, torch.ones(2, 5)), expected, rtol=1e-12, atol=1e-12)
