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
    if _lone(weight, 2):
        alone = F.linear(x.reshape(-1, x.shape[-1]), weight.view(weight.shape[-2:]), bias.view(-1))
        return alone.view(*x.shape[:-1], -1)
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


def _lone(weight: Tensor, trailing: int) -> bool:
    """Say whether a stack is of one client: torch's own layers take fewer kernels for it than a stack needs."""
    return weight.shape[: weight.dim() - trailing].numel() == 1


def conv2d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolution without padding: x [lead, B, I, H, W], weight [lead, O, I, k, k] -> [lead, B, O, H', W'].

    A stack of clients is one batched matrix product over image patches: grouped convolutions of this size leave a GPU
    mostly idle. The result keeps its channels last in memory, which the next patch extraction reads contiguously.
    """
    if weight.dim() == 4:
        return F.conv2d(x, weight, bias)
    out: Tensor = _StackedConv.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _StackedConv(torch.autograd.Function):
    """The convolution of a stack; its gradient is one sum along diagonals, where that of `unfold` scatters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        columns = _columns(x, weight.shape[-1])
        ctx.save_for_backward(x, weight, columns)
        height, width = (side - weight.shape[-1] + 1 for side in x.shape[-2:])
        out = torch.baddbmm(bias.unsqueeze(1), columns, _filters(weight, columns))
        return out.view(len(x), -1, height, width, weight.shape[1]).permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight, columns = ctx.saved_tensors
        kernel, used = weight.shape[-1], weight[0, 0].numel()
        grad = grads[0].permute(0, 1, 3, 4, 2)  # [C, B, H', W', O]
        rows = grad.flatten(1, 3)
        to_x, to_weight, to_bias = None, None, None
        if any(ctx.needs_input_grad[1:]):
            if torch.is_grad_enabled():  # someone differentiates the gradient: it must depend on x itself
                columns = _columns(x, kernel)
            to_filters = (columns.mT @ rows)[:, :used].unflatten(1, (kernel, kernel, -1))
            to_weight, to_bias = to_filters.permute(0, 4, 3, 1, 2), rows.sum(1)
        if ctx.needs_input_grad[0]:
            # what every output gives to each pixel of its patch, the patch turned by half a circle
            patches = (rows @ _filters(weight.flip(-2, -1), columns).mT)[..., :used]
            to_x = _overlapped(patches.view(*grad.shape[:4], kernel, kernel, -1))
        return to_x, to_weight, to_bias


def _overlapped(patches: Tensor) -> Tensor:
    """Add up patches [C, B, H', W', k, k, I], each turned by half a circle, where they lie: [C, B, I, H, W].

    Pixel (h, w) is at (p, q) of the turned patch that begins at (h, w) − k + 1 + (p, q): with a border of zeros, all of
    its patches lie along one diagonal in memory, and a single sum adds them.
    """
    kernel = patches.shape[-2]
    border = (kernel - 1, kernel - 1)
    padded = F.pad(patches, (0, 0, 0, 0, 0, 0, *border, *border))
    clients, images, down, across, row, column, channel = padded.stride()
    height, width = (side - kernel + 1 for side in padded.shape[2:4])
    size = (*padded.shape[:2], height, width, kernel, kernel, padded.shape[-1])
    steps = (clients, images, down, across, down + row, across + column, channel)
    return padded.as_strided(size, steps).sum((4, 5)).permute(0, 1, 4, 2, 3)


def _filters(weight: Tensor, columns: Tensor) -> Tensor:
    """Return weights [C, O, I, k, k] as [C, k·k·I, O], with as many rows as there are columns."""
    filters = weight.permute(0, 3, 4, 2, 1).flatten(1, 3)
    return _padded(filters, 0, columns.shape[-1] - filters.shape[1])


def _columns(x: Tensor, kernel: int) -> Tensor:
    """Every k×k patch as a row: x [C, B, I, H, W] -> [C, B·H'·W', k·k·I], filled up to aligned rows."""
    patches = x.unfold(-2, kernel, 1).unfold(-2, kernel, 1)  # [C, B, I, H', W', k, k]
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
    if _lone(weight, 1):
        return F.layer_norm(x, weight.shape[-1:], weight.view(-1), bias.view(-1), eps)
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
