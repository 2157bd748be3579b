"""Convolution, pooling and ReLU of a stack of clients in one kernel, which does not store the patches of images."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core.kernels import gpus, patches


def fits(x: Tensor, weight: Tensor) -> bool:
    """Say whether `conv2d` takes x [C, B, I, H, W] and weight [C, O, I, k, k]: by products on tensor cores."""
    sizes = x.dim() == 5 and weight.dim() == 5 and len(x) == len(weight)
    return sizes and gpus.has_triton(x) and x.dtype == weight.dtype and _in_short()


def _in_short() -> bool:
    return torch.get_float32_matmul_precision() != "highest"


def conv2d(x: Tensor, weight: Tensor, bias: Tensor, pool: int) -> Tensor:
    """Convolution, the largest of every pool×pool window, and ReLU: x [C, B, I, H, W] -> [C, B, O, H', W'].

    Weight [C, O, I, k, k] and bias [C, O] are the clients' own; pool is 1 or 2.
    """
    out: Tensor = _Convolved.apply(x, weight, bias, pool)  # type: ignore[no-untyped-call]
    return out


def written(x: Tensor, weight: Tensor, bias: Tensor, pool: int) -> Tensor:
    """Return the same by plain operations."""
    out = patches.conv2d(x, weight, bias)
    if pool > 1:
        out = F.max_pool2d(out.flatten(0, 1), pool).unflatten(0, x.shape[:2])
    return torch.relu(out)


class _Convolved(torch.autograd.Function):
    """Its gradient is taken by kernels too, unless somebody differentiates that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, pool: int) -> Tensor:
        from promptfed.core.kernels import conv_kernels, tiles

        filters = weight.permute(0, 1, 3, 4, 2).contiguous()
        out, code = conv_kernels.convolved(x, filters, bias.contiguous(), pool, tiles.forward(x, weight, pool))
        ctx.pool = pool
        ctx.save_for_backward(x, weight, bias, code)
        return out.permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from promptfed.core.kernels import conv_gradient_kernels, patch_kernels, tiles

        x, weight, bias, code = ctx.saved_tensors
        needs, kernel, pool = ctx.needs_input_grad, weight.shape[-1], ctx.pool
        if torch.is_grad_enabled():
            wanted = [part for part, need in zip((x, weight, bias), needs, strict=False) if need]
            out = written(x, weight, bias, pool)
            found = iter(torch.autograd.grad(out, wanted, grads[0], create_graph=True))
            return tuple(next(found) if need else None for need in needs)
        size = (x.shape[-2] - kernel + 1, x.shape[-1] - kernel + 1)
        of_weight, few = needs[1] or needs[2], tiles.has_few_channels(weight)
        to_x, to_weight, to_bias = None, None, None
        if of_weight and few:
            to_weight, to_bias = conv_gradient_kernels.to_weights(
                x, grads[0], code, kernel, pool, *tiles.weights(weight)
            )
        if needs[0] or (of_weight and not few):
            pull = conv_gradient_kernels.pulled(grads[0], code, size, pool)
            if of_weight and not few:
                columns = patch_kernels.columns(x, kernel, tiles.ALIGNED)
                to_weight, to_bias = patches.to_weights(columns, pull.flatten(1, 3), weight, x.shape[1])
            if needs[0]:
                to_x = _to_images(pull, weight, x.shape).permute(0, 1, 4, 2, 3)
        return to_x, to_weight, to_bias, None


def _to_images(pull: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
    """Return the gradient of images [C, B, H, W, I], given that of their convolution [C, B, H', W', O]."""
    from promptfed.core.kernels import conv_gradient_kernels, tiles

    size = (shape[-2], shape[-1])
    if tiles.along_rows(weight, size):
        return conv_gradient_kernels.along_rows(pull, weight.permute(0, 4, 2, 3, 1).contiguous(), size, tiles.ROWS)
    turned = weight.permute(0, 2, 3, 4, 1).contiguous()
    return conv_gradient_kernels.to_images(pull, turned, size, tiles.IMAGES)
