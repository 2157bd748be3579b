"""What the class token gathers in the last block, where no one else asks: no keys and no values are made.

A score is q · (W x) = (Wᵀ q) · x, and a mean of values is W times the mean of what they are made of. So it is one query
per head that goes through the matrices, and all tokens are only read a few times.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import once_differentiable

from promptfed.core.tree import Tree

ALIGNED = 8  # numbers of 16 bits; matrix products on a GPU are far slower where rows do not start at multiples of that


def gathered(z: Tensor, weights: Tree, heads: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return the class token of z [..., T, width], and what it gathers in a frozen block, before its matrix `out`.

    Both are [..., 1, width]. `weights` are those of the block, named without its number, as in `transformer.shapes`.
    """
    frozen = (weights[f"{part}.{kind}"] for part in ("norm1", "qkv") for kind in ("weight", "bias"))
    made = _Gathered.apply(z.reshape(-1, *z.shape[-2:]), *frozen, heads, eps)  # type: ignore[no-untyped-call]
    first, mixed = (part.view(*z.shape[:-2], 1, -1) for part in made)
    return first, mixed


class _Gathered(torch.autograd.Function):
    """The norm before attention and the latter in one step, so that the tokens' gradient is made once."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, scale: Tensor, shift: Tensor, matrix: Tensor, bias: Tensor, heads: int, eps: float
    ) -> tuple[Tensor, Tensor]:
        plain, mean, rate = _normed(z, scale, shift, eps)
        _, of_key, of_value = matrix.view(3, heads, -1, matrix.shape[1]).unbind(0)  # each [heads, d, width]
        width = len(scale)
        query = _by_head(torch.addmm(bias[:width], plain[:, 0], matrix[:width].mT), heads) * of_key.shape[1] ** -0.5
        asked = query @ of_key  # [heads, N, width]; the keys' bias adds the same to all scores
        shares = _exact(plain, asked.permute(1, 2, 0)).softmax(1)  # [N, T, heads]
        found = (_aligned(shares.to(z.dtype)).mT @ plain)[:, :heads]  # [N, heads, width]
        mixed = (found.transpose(0, 1) @ of_value.mT).transpose(0, 1).reshape(len(z), -1) + bias[2 * width :]
        ctx.save_for_backward(z, plain, mean, rate, asked, shares, scale, shift, matrix)
        return z[:, 0].clone(), mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_first: Tensor, to_mixed: Tensor) -> tuple[Tensor | None, ...]:
        z, plain, mean, rate, asked, shares, scale, shift, matrix = ctx.saved_tensors
        heads, width = len(asked), len(scale)
        _, of_key, of_value = matrix.view(3, heads, -1, width).unbind(0)
        to_found = _by_head(to_mixed, heads) @ of_value  # [heads, N, width]
        to_shares = _exact(plain, to_found.permute(1, 2, 0))
        to_scores = (shares * (to_shares - (shares * to_shares).sum(1, keepdim=True))).to(z.dtype)
        to_asked = (_aligned(to_scores).mT @ plain)[:, :heads]  # [N, heads, width]
        to_query = (to_asked.transpose(0, 1) @ of_key.mT) * of_key.shape[1] ** -0.5
        each = torch.cat([to_scores, shares.to(z.dtype)], 2)  # [N, T, 2 · heads]
        to_plain = each @ torch.cat([asked, to_found]).transpose(0, 1)
        to_plain[:, 0] += to_query.transpose(0, 1).reshape(len(z), -1) @ matrix[:width]
        wanted = [True, False, False]
        to_z: Tensor = torch.ops.aten.native_layer_norm_backward(
            *(to_plain, z, scale.shape, mean, rate, scale, shift, wanted)
        )[0]
        to_z[:, 0] += to_first
        return to_z, None, None, None, None, None, None


def _normed(z: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of z, and what torch's gradient of it needs; torch's own takes three times as long."""
    if z.is_cuda and z.dtype == torch.bfloat16:
        from promptfed.backbones import kernels

        return kernels.plain_norm(z, scale, shift, eps)
    return torch.native_layer_norm(z, scale.shape, scale, shift, eps)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """Return x [N, heads · d] as [heads, N, d]."""
    return x.view(len(x), heads, -1).transpose(0, 1)


def _aligned(x: Tensor) -> Tensor:
    """Return x [N, T, heads] with columns of zeros behind, so that its rows are aligned."""
    return F.pad(x, (0, -x.shape[-1] % ALIGNED))


def _exact(x: Tensor, y: Tensor) -> Tensor:
    """Return x @ y, of bf16 in float32."""
    if x.dtype != torch.bfloat16:
        return x @ y
    return torch.bmm(x, y, out_dtype=torch.float32) if x.is_cuda else x.float() @ y.float()
