"""Blocks of a transformer trained in float32 on a GPU, with few kernels a step.

The step of a small network takes as long as its kernels are many. Between matrix products there is one here: a sum and
the norm after it, attention, GELU. Each adds the bias of the product before it as well, and its gradient leaves shares
of that of the bias, which are added up for all blocks together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from promptfed.core.kernels import gpus
from promptfed.core.tree import Tree

LONGEST = 65  # tokens whose scores fit on the chip of any GPU
WIDTHS = (16, 32)  # of a head, likewise; without tensor cores, only the first
WIDEST = 1024  # a row of a norm or of the MLP's hidden layer
NORMS, PRODUCTS = ("norm1", "norm2"), ("qkv", "out", "mlp1", "mlp2")
NAMES = tuple(f"{part}.{kind}" for part in (*NORMS, *PRODUCTS) for kind in ("weight", "bias"))

Written = Callable[[Tensor, Sequence[Tree]], Tensor]


def fit(z: Tensor, weights: Tree, heads: int, hidden: int) -> bool:
    """Say whether tokens z [..., T, width] can go `through` blocks with these weights."""
    tokens, width, weight = z.shape[-2], z.shape[-1], weights["norm.weight"]
    widths = WIDTHS[:1] if torch.get_float32_matmul_precision() == "highest" else WIDTHS
    sizes = tokens <= LONGEST and width in [heads * d for d in widths] and max(width, hidden) <= WIDEST
    return sizes and gpus.has_triton(z) and weight.dtype == z.dtype and weight.dim() <= 2


def through(z: Tensor, blocks: Sequence[Tree], heads: int, eps: float, written: Written) -> Tensor:
    """Return the tokens z [..., T, width] after the blocks; the weights of a stack of clients are [C, ...].

    `written` is the same function written out, for second derivatives.
    """
    flat = [block[name] for block in blocks for name in NAMES]
    setup = _Setup(heads, z.shape[-2], eps, written)
    if torch.is_grad_enabled() and any(part.requires_grad for part in (z, *flat)):
        out: Tensor = _FusedBlocks.apply(setup, z, *flat)  # type: ignore[no-untyped-call]
        return out
    return _forwards(setup, z, _stacked(flat))[0]


@dataclass(frozen=True)
class _Setup:
    heads: int
    tokens: int
    eps: float
    written: Written


@dataclass(frozen=True)
class _Kept:
    """What the gradient needs."""

    entered: tuple[Tensor, ...]  # PRODUCTS' inputs, of all blocks in one tensor each [blocks, C, rows, ...]
    before: list[Tensor]  # what norm1 took, block by block [C, rows, ...]
    qkv: list[Tensor]
    middle: list[Tensor]  # what norm2 took
    hidden: list[Tensor]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return all of them in a row, which `of` puts back."""
        return (*self.entered, *self.before, *self.qkv, *self.middle, *self.hidden)

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "_Kept":
        """Return what was put in a row."""
        entered, rest = tensors[: len(PRODUCTS)], list(tensors[len(PRODUCTS) :])
        each = len(rest) // 4
        return cls(tuple(entered), *(rest[at : at + each] for at in range(0, len(rest), each)))


def _parts(flat: Sequence[Tensor]) -> list[Tree]:
    """Return the weights block by block."""
    return [dict(zip(NAMES, flat[at : at + len(NAMES)], strict=True)) for at in range(0, len(flat), len(NAMES))]


def _stacked(flat: Sequence[Tensor]) -> list[Tree]:
    """Return the weights block by block, all with a leading C, which is 1 without a stack.

    Kernels read the vectors of clients one after another, though clients may share them.
    """
    stack = flat[0].dim() > 1
    lead = [part if stack else part.unsqueeze(0) for part in flat]
    return _parts([part.contiguous() if part.dim() == 2 else part for part in lead])


def _times(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of every client's matrices; a single client's has better kernels than a stack of one."""
    return (x[0] @ y[0]).unsqueeze(0) if len(x) == 1 else x @ y


def _forwards(setup: _Setup, z: Tensor, blocks: Sequence[Tree], *, keep: bool = False) -> tuple[Tensor, _Kept]:
    """Return the tokens after the blocks, and what the gradient needs if it is to `keep`."""
    from promptfed.backbones import fused_kernels as kernels

    shape, branch = z.shape, None
    z = z.reshape(len(blocks[0]["norm1.weight"]), -1, shape[-1])
    sizes = [blocks[0][f"{name}.weight"].shape[-1] for name in PRODUCTS]
    entered = tuple(z.new_empty(len(blocks) if keep else 1, *z.shape[:2], size) for size in sizes)
    kept = _Kept(entered, [], [], [], [])
    for number, w in enumerate(blocks):
        normed, mixed, renormed, active = (part[number if keep else 0] for part in entered)
        before = kernels.norm(z, branch, w["norm1.weight"], w["norm1.bias"], setup.eps, normed)
        qkv = _times(normed, w["qkv.weight"].mT)
        kernels.attend(qkv, w["qkv.bias"], setup.heads, setup.tokens, mixed)
        branch = _times(mixed, w["out.weight"].mT), w["out.bias"]
        z = kernels.norm(before, branch, w["norm2.weight"], w["norm2.bias"], setup.eps, renormed)
        hidden = _times(renormed, w["mlp1.weight"].mT)
        kernels.gelu(hidden, w["mlp1.bias"], active)
        branch = _times(active, w["mlp2.weight"].mT), w["mlp2.bias"]
        if keep:
            for part, new in zip(
                (kept.before, kept.qkv, kept.middle, kept.hidden), (before, qkv, z, hidden), strict=True
            ):
                part.append(new)
    assert branch is not None
    return (z + branch[0] + branch[1].unsqueeze(1)).view(shape), kept


def _backwards(
    setup: _Setup, grad: Tensor, blocks: Sequence[Tree], kept: _Kept, *, train: bool
) -> tuple[Tensor, list[Tree]]:
    """Return the gradient of the tokens, given that of the result [C, rows, width], and to `train`, of the weights.

    That of the weights is taken for all blocks at once.
    """
    from promptfed.backbones import fused_kernels as kernels

    count = len(blocks)
    left = [grad.new_empty(count, *grad.shape[:2], blocks[0][f"{name}.weight"].shape[-2]) for name in PRODUCTS]
    of_qkv, of_middle, of_hidden, to_z = left  # the gradients of what the products gave
    to_z[-1] = grad
    norms = kernels.room(grad, 6 * count)  # for weight, bias and branch's bias of norm1 and norm2 of every block
    gelus, attentions = kernels.room(of_hidden[0], count), kernels.images(of_qkv[0], setup.tokens, count)
    first = torch.empty_like(grad)
    for at in reversed(range(count)):
        w, one, two = blocks[at], norms[6 * at : 6 * at + 3], norms[6 * at + 3 : 6 * at + 6]
        of_active = _times(to_z[at], w["mlp2.weight"])
        kernels.gelu_gradient(kept.hidden[at], w["mlp1.bias"], of_active, of_hidden[at], gelus[at])
        of_renormed = _times(of_hidden[at], w["mlp1.weight"])
        kernels.norm_gradient(kept.middle[at], w["norm2.weight"], to_z[at], of_renormed, setup.eps, of_middle[at], two)
        of_mixed = _times(of_middle[at], w["out.weight"])
        kernels.attend_gradient(
            *(kept.qkv[at], w["qkv.bias"], of_mixed, setup.heads, setup.tokens, of_qkv[at], attentions[at])
        )
        of_normed, out = _times(of_qkv[at], w["qkv.weight"]), to_z[at - 1] if at else first
        kernels.norm_gradient(kept.before[at], w["norm1.weight"], of_middle[at], of_normed, setup.eps, out, one)
    if not train:
        return first, []
    of_norms, of_gelus, of_attentions = norms.sum(2), gelus.sum(2), attentions.sum(2)
    last = grad.sum(1)  # for the bias of the last product, after which there is no norm
    made: list[Tree] = []
    for at in range(count):
        w1, b1, _, w2, b2, out = of_norms[6 * at : 6 * at + 6]
        own = {"norm1.weight": w1, "norm1.bias": b1, "norm2.weight": w2, "norm2.bias": b2, "out.bias": out}
        own |= {"qkv.bias": of_attentions[at], "mlp1.bias": of_gelus[at]}
        made.append(own | {"mlp2.bias": of_norms[6 * at + 8] if at + 1 < count else last})
    for name, gradient, given in zip(PRODUCTS, left, kept.entered, strict=True):
        product = gradient.flatten(0, 1).mT @ given.flatten(0, 1)  # [blocks · C, outputs, inputs]
        for own, part in zip(made, product.unflatten(0, (count, -1)), strict=True):
            own[f"{name}.weight"] = part
    return first, made


class _FusedBlocks(torch.autograd.Function):
    """All blocks as one step for autograd."""

    @staticmethod
    def forward(ctx: Any, setup: _Setup, z: Tensor, *flat: Tensor) -> Tensor:
        out, kept = _forwards(setup, z, _stacked(flat), keep=True)
        ctx.save_for_backward(z, *flat, *kept.tensors)
        ctx.setup = setup
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[1:]
        z, *flat = ctx.saved_tensors[: len(needs)]
        if torch.is_grad_enabled():
            wanted = [part for part, need in zip((z, *flat), needs, strict=True) if need]
            out = ctx.setup.written(z, _parts(flat))
            found = iter(torch.autograd.grad(out, wanted, grads[0], create_graph=True))
            return None, *(next(found) if need else None for need in needs)
        kept, train = _Kept.of(ctx.saved_tensors[len(needs) :]), any(needs[1:])
        grad = grads[0].reshape(kept.before[0].shape)
        to_z, made = _backwards(ctx.setup, grad, _stacked(flat), kept, train=train)
        own = [to[name] for to in made for name in NAMES] if train else [None] * len(flat)
        shaped = (to if to is None else to.view(part.shape) for to, part in zip(own, flat, strict=True))
        return None, to_z.view(z.shape), *shaped
