"""Maths blind to leading dimensions: weights without one serve a single client, weights [C, ...] a stack of clients."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

ALIGNED = 4  # floats are 16 bytes; matrix products on a GPU are far slower where rows do not start at multiples of that


def spread(weight: Tensor, trailing: int, like: Tensor) -> Tensor:
    """Shape a weight [lead, ...trailing] so that it broadcasts against `like` [lead, anything, ...trailing]."""
    lead = weight.dim() - trailing
    middle = like.dim() - lead - trailing
    return weight.reshape(*weight.shape[:lead], *(1,) * middle, *weight.shape[lead:])


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Affine map: x [lead, ..., I], weight [lead, O, I], bias [lead, O] -> [lead, ..., O]."""
    lead = weight.dim() - 2
    if lead == 0:
        return F.linear(x, weight, bias)
    flat = x.reshape(*x.shape[:lead], -1, x.shape[-1])
    if lead > 1:
        out = flat @ weight.mT + bias.unsqueeze(-2)
    elif flat.shape[-2] < weight.shape[-2]:
        # few rows, many weights: this order makes the weights' gradient contiguous, which their update then reads
        rows = flat.shape[-2]
        flat = _padded(flat, 0, -rows % ALIGNED)
        out = torch.baddbmm(bias.unsqueeze(-1), weight, flat.mT).mT[..., :rows, :]
    else:
        out = torch.baddbmm(bias.unsqueeze(-2), flat, weight.mT)
    return out.reshape(*x.shape[:-1], -1)


def conv2d(x: Tensor, weight: Tensor, bias: Tensor, stride: int = 1) -> Tensor:
    """Convolution without padding: x [lead, B, I, H, W], weight [lead, O, I, k, k] -> [lead, B, O, H', W'].

    A stack of clients is one batched matrix product over image patches: grouped convolutions of this size leave a GPU
    mostly idle. The result keeps its channels last in memory, which the next patch extraction reads contiguously.
    """
    if weight.dim() == 4:
        return F.conv2d(x, weight, bias, stride)
    out: Tensor = _StackedConv.apply(x, weight, bias, stride)  # type: ignore[no-untyped-call]
    return out


class _StackedConv(torch.autograd.Function):
    """The convolution of a stack; its gradient adds up shifted views, several times faster than that of `unfold`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        columns = _columns(x, weight.shape[-1], stride)
        ctx.save_for_backward(x, weight, columns)
        ctx.stride = stride
        height, width = ((side - weight.shape[-1]) // stride + 1 for side in x.shape[-2:])
        out = torch.baddbmm(bias.unsqueeze(1), columns, _filters(weight, columns))
        return out.view(len(x), -1, height, width, weight.shape[1]).permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight, columns = ctx.saved_tensors
        clients, batch, inputs, *sides = x.shape
        kernel, stride, used = weight.shape[-1], ctx.stride, weight[0, 0].numel()
        if torch.is_grad_enabled():  # someone differentiates the gradient: it must depend on x itself
            columns = _columns(x, kernel, stride)
        grad = grads[0].permute(0, 1, 3, 4, 2).flatten(1, 3)  # [C, B·H'·W', O]
        to_weight = (columns.mT @ grad)[:, :used].unflatten(1, (kernel, kernel, inputs)).permute(0, 4, 3, 1, 2)
        if not ctx.needs_input_grad[0]:
            return None, to_weight, grad.sum(1), None
        down, across = ((side - kernel) // stride + 1 for side in sides)
        patches = (grad @ _filters(weight, columns).mT)[..., :used]
        patches = patches.view(clients, batch, down, across, kernel, kernel, inputs)
        to_x = grad.new_zeros(clients, batch, *sides, inputs)
        for row in range(kernel):
            for column in range(kernel):
                place = to_x[:, :, row : row + stride * down : stride, column : column + stride * across : stride]
                place += patches[:, :, :, :, row, column]
        return to_x.permute(0, 1, 4, 2, 3), to_weight, grad.sum(1), None


def _filters(weight: Tensor, columns: Tensor) -> Tensor:
    """Return weights [C, O, I, k, k] as [C, k·k·I, O], with as many rows as there are columns."""
    filters = weight.permute(0, 3, 4, 2, 1).flatten(1, 3)
    return _padded(filters, 0, columns.shape[-1] - filters.shape[1])


def _columns(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Every k×k patch as a row: x [C, B, I, H, W] -> [C, B·H'·W', k·k·I], filled up to aligned rows."""
    patches = x.unfold(-2, kernel, stride).unfold(-2, kernel, stride)  # [C, B, I, H', W', k, k]
    columns = patches.permute(0, 1, 3, 4, 5, 6, 2).flatten(4).flatten(1, 3)
    return _padded(columns, -columns.shape[-1] % ALIGNED, 0)


def _padded(x: Tensor, columns: int, rows: int) -> Tensor:
    """Append zeros; `F.pad` would copy even where there is nothing to append."""
    return F.pad(x, (0, columns, 0, rows)) if columns or rows else x


def max_pool2d(x: Tensor, size: int = 2) -> Tensor:
    """Largest value of every size×size window: x [..., O, H, W]."""
    folded = x.flatten(0, -4) if x.dim() > 4 else x
    return F.max_pool2d(folded, size).unflatten(0, x.shape[:-3]) if x.dim() > 4 else F.max_pool2d(folded, size)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """Normalise the last dimension: x [lead, ..., D], weight and bias [lead, D]."""
    if weight.dim() == 1:
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    plain = F.layer_norm(x, weight.shape[-1:], eps=eps)
    return torch.addcmul(spread(bias, 1, x), plain, spread(weight, 1, x))


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Scaled dot-product attention over [..., heads, T, d].

    Written out, since the fused float32 kernels are slower for the short sequences of small images.
    """
    scale: float = query.shape[-1] ** -0.5
    return (query @ key.mT * scale).softmax(-1) @ value


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy over the examples with mask 1: logits [..., B, K], labels and mask [..., B] -> [...]."""
    each = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)
    return (each * mask).sum(-1) / mask.sum(-1).clamp(min=1)
