"""Blocks of a frozen vision transformer in 8-bit floats (e4m3), one scale per row: twice bf16's speed on recent GPUs.

The weights never change, so they are quantised once, and backward computes what the prompts need: the gradient of the
tokens. A GPU runs the kernels of `kernels.py`; on a CPU the same functions are written in torch, for reading and tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import once_differentiable

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

LARGEST = 448.0  # of the numbers e4m3 has
SMALLEST = 1e-12  # no row is scaled by less
ROOT = (2 / torch.pi) ** 0.5
STEP = 16  # the tensor cores' products need sides that are multiples of it


@dataclass(frozen=True)
class Rows:
    """A matrix whose row r is `values[r] · scale[r]`: e4m3 [R, N] and float32 [R, 1]."""

    values: Tensor
    scale: Tensor

    def product(self, other: "Rows", bias: Tensor | None = None) -> Tensor:
        """Return self @ otherᵀ (+ bias) in bf16, added up in float32."""
        if not self.values.is_cuda:
            out = (self.values.float() * self.scale) @ (other.values.float() * other.scale).mT
            return (out if bias is None else out + bias.float()).bfloat16()
        return torch._scaled_mm(
            *(self.values, other.values.t()),
            scale_a=self.scale,
            scale_b=other.scale.t(),
            bias=bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )


def rows(x: Tensor) -> Rows:
    """Quantise every row of x [R, N]."""
    if x.is_cuda:
        from promptfed.backbones import kernels

        return Rows(*kernels.quantised(x))
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=SMALLEST) / LARGEST
    return Rows((x.float() / scale).to(torch.float8_e4m3fn), scale)


@dataclass(frozen=True)
class QuantisedLinear:
    """A frozen linear map, quantised by rows for the forward and by columns for the gradient of its input."""

    weight: Rows  # [O, I]
    transposed: Rows  # [I, O]
    bias: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> "QuantisedLinear":
        """Quantise weight [O, I]."""
        return cls(rows(weight.contiguous()), rows(weight.mT.contiguous()), bias.bfloat16())

    def __call__(self, x: Rows) -> Tensor:
        """Return x @ weightᵀ + bias."""
        return x.product(self.weight, self.bias)

    def backward(self, grad: Rows) -> Tensor:
        """Return the gradient of the input."""
        return grad.product(self.transposed)


@dataclass(frozen=True)
class QuantisedBlock:
    """A frozen block; the scale of each branch, if it has one, is in its matrix."""

    heads: int
    eps: float
    norm1: tuple[Tensor, Tensor]
    qkv: QuantisedLinear
    out: QuantisedLinear
    norm2: tuple[Tensor, Tensor]
    mlp1: QuantisedLinear
    mlp2: QuantisedLinear


def block(heads: int, eps: float, weights: Tree) -> QuantisedBlock:
    """Quantise the weights of one block, named without its number, as in `transformer.shapes`."""
    weights = weights | _bounded(weights)

    def matrix(name: str, scale: str = "") -> QuantisedLinear:
        weight, bias = weights[f"{name}.weight"].float(), weights[f"{name}.bias"].float()
        if weight.shape[0] % STEP or weight.shape[1] % STEP:
            raise PromptFedError(f"backbone.precision=fp8 needs widths that are multiples of {STEP}; set it to bf16.")
        if scale in weights:
            weight, bias = weight * weights[scale].float().unsqueeze(-1), bias * weights[scale].float()
        return QuantisedLinear.of(weight, bias)

    def norm(name: str) -> tuple[Tensor, Tensor]:
        return weights[f"{name}.weight"].float(), weights[f"{name}.bias"].float()

    return QuantisedBlock(
        heads,
        eps,
        norm1=norm("norm1"),
        qkv=matrix("qkv"),
        out=matrix("out", "scale1"),
        norm2=norm("norm2"),
        mlp1=matrix("mlp1"),
        mlp2=matrix("mlp2", "scale2"),
    )


def _bounded(weights: Tree) -> Tree:
    """Return attention's matrices with its values scaled so that none is above LARGEST, and `out` taking that back.

    A mean of values is then no larger either, and can be written in e4m3 as soon as it is known. A number there keeps
    its digits down to 2⁻¹⁵ of the largest, so the bound, that of Cauchy and Schwarz for a normed token, may be far off.
    """
    matrix, bias = weights["qkv.weight"].float(), weights["qkv.bias"].float()
    scale, shift = weights["norm1.weight"].float(), weights["norm1.bias"].float()
    width = len(scale)
    values, rest = matrix[2 * width :], bias[2 * width :]
    most = width**0.5 * (values * scale).norm(dim=1) + (values @ shift + rest).abs()
    most = 1.2 * most + 0.15 * (values * shift).abs().sum(1)  # tokens and weights are rounded to e4m3
    reach = most.clamp(min=SMALLEST) / LARGEST
    by = torch.cat([reach.new_ones(2 * width), 1 / reach])
    return {
        "qkv.weight": matrix * by.unsqueeze(1),
        "qkv.bias": bias * by,
        "out.weight": weights["out.weight"].float() * reach,
    }


def through(z: Tensor, blocks: Sequence[QuantisedBlock], wanted: slice = slice(None)) -> Tensor:
    """Return the tokens z [..., T, width] after the blocks; of those before, only the `wanted` get a gradient."""
    made: Tensor = _QuantisedBlocks.apply(z.reshape(-1, *z.shape[-2:]), blocks, wanted)  # type: ignore[no-untyped-call]
    return made.view(z.shape)


class _QuantisedBlocks(torch.autograd.Function):
    """Blocks forwards, and the gradient of their tokens backwards.

    They are one step for autograd, so that a sum and the norm after it are one kernel, and so are a norm's gradient and
    its quantisation.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, blocks: Sequence[QuantisedBlock], wanted: slice) -> Tensor:
        shape, saved = z.shape, []
        z, branch = z.reshape(-1, shape[-1]), None
        for block in blocks:
            if branch is None:
                plain = normed(z, *block.norm1, block.eps)
            else:
                z, plain = added_and_normed(z, branch, *block.norm1, block.eps)
            mixed, attention = attended(block.qkv(plain), block.heads, shape[1])
            branch = block.out(mixed)
            middle, plain = added_and_normed(z, branch, *block.norm2, block.eps)
            hidden = block.mlp1(plain)
            branch = block.mlp2(gelu(hidden))
            saved.append((block, z, attention, middle, hidden))
            z = middle
        ctx.saved, ctx.wanted = saved, wanted
        return (z if branch is None else z + branch).view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        shape, grad = grad.shape, grad.reshape(-1, grad.shape[-1])
        low = rows(grad)
        while ctx.saved:  # what is used up is freed
            block, z, attention, middle, hidden = ctx.saved.pop()
            to_hidden = gelu_backward(block.mlp2.backward(low), hidden)
            grad, low = norm_backward(grad, block.mlp1.backward(to_hidden), middle, block.norm2[0], block.eps)
            to_mixed, few = block.out.backward(low), not ctx.saved and ctx.wanted != slice(None)
            through_norm = block.qkv.backward(attention.backward(to_mixed, ctx.wanted if few else slice(None)))
            if few:
                return _first(block, ctx.wanted, grad.view(shape), through_norm, z.view(shape)), None, None
            grad, low = norm_backward(grad, through_norm, z, block.norm1[0], block.eps)
        return grad.view(shape), None, None


def _first(block: QuantisedBlock, wanted: slice, grad: Tensor, through_norm: Tensor, z: Tensor) -> Tensor:
    """Return the gradient of the first block's tokens where it is wanted, zero elsewhere."""
    some = (grad[:, wanted], z[:, wanted])
    passed, before = (part.reshape(-1, part.shape[-1]) for part in some)
    found, _ = norm_backward(passed, through_norm, before, block.norm1[0], block.eps)
    out = torch.zeros_like(grad)
    out[:, wanted] = found.view(some[0].shape)
    return out


@dataclass(frozen=True)
class _OwnAttention:
    """What the gradient of attention by our kernels needs."""

    heads: int
    tokens: int
    qkv: Tensor
    norms: Tensor

    def backward(self, grad: Tensor, wanted: slice) -> Rows:
        """Return the gradient of the `wanted` tokens' rows of qkv, given that of what all tokens gathered."""
        from promptfed.backbones import attention_kernels

        made = attention_kernels.attend_backward(self.qkv, grad, self.norms, self.heads, self.tokens)
        return rows(made.view(-1, self.tokens, made.shape[-1])[:, wanted].reshape(-1, made.shape[-1]))


@dataclass(frozen=True)
class _TorchsAttention:
    """What the gradient of torch's attention needs."""

    mixed: Tensor  # [N, heads, T, d]
    parts: Sequence[Tensor]

    def backward(self, grad: Tensor, wanted: slice) -> Rows:
        """Return the gradient of the `wanted` tokens' rows of qkv, given that of what all tokens gathered."""
        count, heads, tokens, _ = self.mixed.shape
        to_mixed = grad.view(count, tokens, heads, -1).transpose(1, 2)
        to_parts = torch.autograd.grad(self.mixed, self.parts, to_mixed)
        return joined(*(part[:, :, wanted] for part in to_parts))


def attended(qkv: Tensor, heads: int, tokens: int) -> tuple[Rows, _OwnAttention | _TorchsAttention]:
    """Return what every token gathers [N · T, heads · d], and what gives the gradient of qkv [N · T, 3 · heads · d].

    Values are at most LARGEST, see `_bounded`.
    """
    one = torch.ones(len(qkv), 1, device=qkv.device)
    if qkv.is_cuda:
        from promptfed.backbones import attention_kernels

        if attention_kernels.fit(qkv, heads, tokens):
            mixed, norms = attention_kernels.attend(qkv, heads, tokens)
            return Rows(mixed, one), _OwnAttention(heads, tokens, qkv, norms)
    query, key, value = qkv.view(-1, tokens, 3, heads, qkv.shape[1] // 3 // heads).permute(2, 0, 3, 1, 4).unbind(0)
    parts = [part.detach().requires_grad_() for part in (query, key, value)]
    with torch.enable_grad():  # attention brings its own backward
        made = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
    mixed = made.detach().transpose(1, 2).reshape(len(qkv), -1).to(torch.float8_e4m3fn)
    return Rows(mixed, one), _TorchsAttention(made, parts)


def normed(z: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Rows:
    """Return the layer norm of every row, quantised."""
    if z.is_cuda:
        from promptfed.backbones import kernels

        return Rows(*kernels.normed(z, weight, bias, eps))
    return rows(F.layer_norm(z.float(), weight.shape, weight, bias, eps))


def added_and_normed(z: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Rows]:
    """Return z + branch, and its layer norm quantised."""
    if z.is_cuda:
        from promptfed.backbones import kernels

        total, values, scale = kernels.added_and_normed(z, branch, weight, bias, eps)
        return total, Rows(values, scale)
    return z + branch, normed(z + branch, weight, bias, eps)


def norm_backward(grad: Tensor, to_normed: Tensor, z: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Rows]:
    """Return `grad`, which passed the norm by, plus what comes through it, for the norm's input z; also quantised."""
    if z.is_cuda:
        from promptfed.backbones import kernels

        found, values, scale = kernels.norm_backward(grad, to_normed, z, weight, eps)
        return found, Rows(values, scale)
    centred = z.float() - z.float().mean(-1, keepdim=True)
    rate = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    plain, inner = centred * rate, to_normed.float() * weight
    passed = (inner - inner.mean(-1, keepdim=True) - plain * (inner * plain).mean(-1, keepdim=True)) * rate
    found = (grad.float() + passed).to(z.dtype)
    return found, rows(found)


def gelu(hidden: Tensor) -> Rows:
    """Return the activation, quantised; the form by tanh differs from GELU's by less than e4m3 rounds."""
    if hidden.is_cuda:
        from promptfed.backbones import kernels

        return Rows(*kernels.gelu(hidden))
    return rows(F.gelu(hidden.float(), approximate="tanh"))


def gelu_backward(grad: Tensor, hidden: Tensor) -> Rows:
    """Return the gradient of the activation's input, quantised."""
    if hidden.is_cuda:
        from promptfed.backbones import kernels

        return Rows(*kernels.gelu(hidden, grad))
    x = hidden.float()
    gate = torch.sigmoid(2 * ROOT * (x + 0.044715 * x**3))
    slope = gate + gate * (1 - gate) * x * 2 * ROOT * (1 + 3 * 0.044715 * x * x)
    return rows(grad.float() * slope)


def joined(query: Tensor, key: Tensor, value: Tensor) -> Rows:
    """Return three parts [N, heads, T, d] side by side, a row per token, quantised."""
    if query.is_cuda:
        from promptfed.backbones import kernels

        return Rows(*kernels.joined(query, key, value))
    side_by_side = torch.stack((query, key, value)).permute(1, 3, 0, 2, 4)  # [N, T, 3, heads, d]
    return rows(side_by_side.flatten(0, 1).flatten(1))
