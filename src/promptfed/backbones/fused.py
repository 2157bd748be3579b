"""Attention and norms of a transformer trained in float32 on a GPU, in one kernel each and one or two for the gradient.

The step of a small network takes as long as its kernels are many: written out, attention takes fifteen of them and a
norm of a stack seven. Elsewhere, and where someone differentiates a gradient, they are written out.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from promptfed import ops

LONGEST = 128  # tokens whose scores fit on the chip
NARROW = 16  # the width of a head whose queries, keys, values and scores fit together
WIDEST = 1024  # a row of a norm
ROOMY = ((8, 0), (9, 0), (10, 0))  # NVIDIA's chips for data centres; its others have 99 KB


def attend(qkv: Tensor, heads: int) -> Tensor:
    """Return what every token gathers by all heads: queries, keys and values [..., T, 3 · width] -> [..., T, width]."""
    short = qkv.shape[-2] <= LONGEST and qkv.shape[-1] == 3 * heads * NARROW
    if not (short and _has_kernels(qkv)):
        return _attend(qkv, heads)
    out: Tensor = _Attention.apply(qkv.flatten(0, -3).contiguous(), heads)  # type: ignore[no-untyped-call]
    return out.view(*qkv.shape[:-1], -1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension: x [lead, ..., D], weight and bias [lead, D]."""
    if weight.numel() == weight.shape[-1] or not _fits(x, weight):  # torch's own is as good for a single client
        return ops.layer_norm(x, weight, bias, eps)
    own = weight.contiguous(), bias.contiguous()  # of clients that share them it is one row, seen many times
    out: Tensor = _Norm.apply(x.flatten(1, -2).contiguous(), None, *own, eps)  # type: ignore[no-untyped-call]
    return out.view(x.shape)


def add_and_norm(z: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return z + branch, and its layer norm."""
    if not _fits(z, weight):
        total = z + branch
        return total, ops.layer_norm(total, weight, bias, eps)
    clients = 1 if weight.dim() == 1 else len(weight)
    parts = [part.reshape(clients, -1, part.shape[-1]).contiguous() for part in (z, branch)]
    own = (part.reshape(clients, -1).contiguous() for part in (weight, bias))
    total, out = _Norm.apply(*parts, *own, eps)  # type: ignore[no-untyped-call]
    return total.view(z.shape), out.view(z.shape)


def _fits(x: Tensor, weight: Tensor) -> bool:
    return weight.dim() <= 2 and x.shape[-1] <= WIDEST and _has_kernels(x) and weight.dtype == x.dtype


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and _has_room(x.device)


@cache
def _has_room(device: torch.device) -> bool:
    """Say whether there is Triton, and a chip with the 104 KB of memory that attention takes."""
    nvidia = find_spec("triton") is not None and torch.version.cuda is not None
    return nvidia and torch.cuda.get_device_capability(device) in ROOMY


def _attend(qkv: Tensor, heads: int) -> Tensor:
    parts = qkv.unflatten(-1, (3, heads, -1)).movedim((-3, -2), (0, -3)).contiguous()  # [3, ..., heads, T, d]
    return ops.attention(*parts.unbind(0)).movedim(-3, -2).flatten(-2)


class _Attention(torch.autograd.Function):
    """Attention over qkv [N, T, 3 · width]; the scores are computed again for the gradient."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int) -> Tensor:
        from promptfed.backbones import fused_kernels

        ctx.save_for_backward(qkv)
        ctx.heads = heads
        return fused_kernels.attend(qkv, heads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        from promptfed.backbones import fused_kernels

        (qkv,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return torch.autograd.grad(_attend(qkv, ctx.heads), qkv, grads[0], create_graph=True)[0], None
        return fused_kernels.attend_gradient(qkv, grads[0].contiguous(), ctx.heads), None


class _Norm(torch.autograd.Function):
    """Layer norm of z [C, R, N], weight and bias [C, N]; with a branch, z + branch and the norm of that."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor | tuple[Tensor, Tensor]:
        from promptfed.backbones import fused_kernels

        total, out = fused_kernels.norm(z, branch, weight, bias, eps)
        ctx.save_for_backward(total, weight)
        ctx.eps = eps
        return out if branch is None else (total, out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from promptfed.backbones import fused_kernels

        (total, weight), alone = ctx.saved_tensors, len(grads) == 1
        to_total, to_out = (None if alone else grads[0].contiguous()), grads[-1].contiguous()
        gradient = _norm_gradient if torch.is_grad_enabled() else fused_kernels.norm_gradient
        to_z, shares = gradient(total, weight, to_total, to_out, ctx.eps)
        to_weight, to_bias = shares.sum(2) if ctx.needs_input_grad[2] else (None, None)
        return to_z, (None if alone else to_z), to_weight, to_bias, None


def _norm_gradient(
    total: Tensor, weight: Tensor, to_total: Tensor | None, to_out: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the gradient of z [C, R, N], and each row's share of those of weight and bias [2, C, R, N]."""
    centred = total - total.mean(-1, keepdim=True)
    rate = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    plain, y = centred * rate, to_out * weight.unsqueeze(1)
    to_z = (y - y.mean(-1, keepdim=True) - plain * (y * plain).mean(-1, keepdim=True)) * rate
    return to_z if to_total is None else to_z + to_total, torch.stack((to_out * plain, to_out))
