"""Convolutions of a stack of clients, as matrix products over the patches of their images."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core.kernels import gpus

FEW = 128 * 128  # weights of a client: their gradient, one product, would keep few of a GPU's processors busy
ALIGNED = 4  # floats are 16 bytes; matrix products on a GPU are far slower where rows do not start at multiples of that


def conv2d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolution without padding: x [C, B, I, H, W], weight [C, O, I, k, k], bias [C, O] -> [C, B, O, H', W']."""
    function = _Patched if gpus.has_triton(x) else _Stacked
    out: Tensor = function.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _Patched(torch.autograd.Function):
    """The same as `_Stacked` by kernels of our own; a column of ones adds the bias, and gathers its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from promptfed.core.kernels import patch_kernels

        columns = patch_kernels.columns(x, weight.shape[-1], ALIGNED)
        plain = weight.permute(0, 3, 4, 2, 1).flatten(1, 3)
        # whatever stands beyond the bias is multiplied by zero
        filters = torch.cat((plain, bias.unsqueeze(1).expand(-1, columns.shape[-1] - plain.shape[1], -1)), 1)
        ctx.save_for_backward(x, weight, bias, columns, filters)
        height, width = (side - weight.shape[-1] + 1 for side in x.shape[-2:])
        return (columns @ filters).view(len(x), -1, height, width, weight.shape[1]).permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from promptfed.core.kernels import patch_kernels

        x, weight, bias, columns, filters = ctx.saved_tensors
        if torch.is_grad_enabled():
            needs = ctx.needs_input_grad
            wanted = [part for part, need in zip((x, weight, bias), needs, strict=True) if need]
            out = _Stacked.apply(x, weight, bias)  # type: ignore[no-untyped-call]
            found = iter(torch.autograd.grad(out, wanted, grads[0], create_graph=True))
            return tuple(next(found) if need else None for need in needs)
        rows = grads[0].permute(0, 1, 3, 4, 2).flatten(1, 3)
        to_x, to_weight, to_bias = None, None, None
        if any(ctx.needs_input_grad[1:]):
            to_weight, to_bias = to_weights(columns, rows, weight, x.shape[1])
        if ctx.needs_input_grad[0]:
            to_x = patch_kernels.overlapped(rows @ filters.mT, x.shape, weight.shape[-1]).permute(0, 1, 4, 2, 3)
        return to_x, to_weight, to_bias


def to_weights(columns: Tensor, rows: Tensor, weight: Tensor, images: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of weights and bias; `columns` has ones too, and `rows` is that of the result."""
    kernel, used = weight.shape[-1], weight[0, 0].numel()
    if columns.shape[-1] * rows.shape[-1] <= FEW:  # image by image
        each = (part.unflatten(1, (images, -1)) for part in (columns, rows))
        to_filters = (next(each).mT @ next(each)).sum(1)
    else:
        to_filters = columns.mT @ rows
    return to_filters[:, :used].unflatten(1, (kernel, kernel, -1)).permute(0, 4, 3, 1, 2), to_filters[:, used]


class _Stacked(torch.autograd.Function):
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
    return padded(filters, 0, columns.shape[-1] - filters.shape[1])


def _columns(x: Tensor, kernel: int) -> Tensor:
    """Every k×k patch as a row: x [C, B, I, H, W] -> [C, B·H'·W', k·k·I], filled up to aligned rows."""
    patches = x.unfold(-2, kernel, 1).unfold(-2, kernel, 1)  # [C, B, I, H', W', k, k]
    columns = patches.permute(0, 1, 3, 4, 5, 6, 2).flatten(4).flatten(1, 3)
    return padded(columns, -columns.shape[-1] % ALIGNED, 0)


def padded(x: Tensor, columns: int, rows: int) -> Tensor:
    """Append zeros; `F.pad` would copy even where there is nothing to append."""
    return F.pad(x, (0, columns, 0, rows)) if columns or rows else x
