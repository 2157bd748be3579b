"""Dropout by one kernel, which also brings a map's numbers into the order of a dense layer's weights."""

from typing import Any

import torch
from torch import Tensor

from promptfed.core.kernels import gpus


def fits(x: Tensor, noise: Tensor) -> bool:
    """Say whether `dropped` takes x."""
    return gpus.has_triton(x) and gpus.has_triton(noise) and noise.is_contiguous()


def dropped(x: Tensor, noise: Tensor, rate: float) -> Tensor:
    """Return x [..., O, H, W] or [..., O] without the numbers whose noise is below the rate: in the shape of noise."""
    out: Tensor = _Dropped.apply(x, noise, rate)  # type: ignore[no-untyped-call]
    return out


def written(x: Tensor, noise: Tensor, rate: float) -> Tensor:
    """Return the same by plain operations."""
    return x.reshape(noise.shape) * ((noise >= rate) * (1 / (1 - rate)))


def _in_order(x: Tensor, noise: Tensor) -> Tensor:
    """Return x as [N, O, P] as it lies in memory, if it can be seen so."""
    lead = noise.dim() - 1
    flat = x.flatten(0, lead - 1) if lead else x.unsqueeze(0)
    return flat.flatten(2) if flat.dim() > 2 else flat.unsqueeze(-1)


class _Dropped(torch.autograd.Function):
    """Its gradient is dropped from in the same way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, noise: Tensor, rate: float) -> Tensor:
        from promptfed.core.kernels import draw_kernels

        ctx.rate, ctx.shape = rate, x.shape
        seen = _in_order(x, noise)
        ctx.like, ctx.last = seen.shape, seen.stride(1) == 1 and seen.shape[-1] > 1
        ctx.save_for_backward(noise)
        out = torch.empty_like(noise)
        draw_kernels.dropped(seen, noise, rate, out.view(seen.shape))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from promptfed.core.kernels import draw_kernels

        (noise,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return written(grads[0], noise, ctx.rate).view(ctx.shape), None, None
        rows, channels, pixels = ctx.like
        to_x = grads[0].new_empty((rows, pixels, channels) if ctx.last else (rows, channels, pixels))
        to_x = to_x.mT if ctx.last else to_x  # as x lies
        draw_kernels.dropped(grads[0].contiguous().view(ctx.like), noise, ctx.rate, to_x)
        return to_x.unflatten(0, ctx.shape[: noise.dim() - 1]).reshape(ctx.shape), None, None
