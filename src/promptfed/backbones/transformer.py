"""The forward of a vision transformer, written once: its architecture (Arch), its weights' shapes, and its features.

The tokens stand in the order [class token, prompts, patches], and prompts carry no position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.backbones import class_token, companions, float8, fused, sequence
from promptfed.backbones.init import affine
from promptfed.core import memory, ops
from promptfed.core.errors import PromptFedError
from promptfed.core.kernels import gpus
from promptfed.core.protocols import Tokens
from promptfed.core.tree import Tree

Statistics = tuple[tuple[float, float, float], tuple[float, float, float]]


@dataclass(frozen=True)
class Arch:
    """The architecture of a vision transformer with pre-norm blocks; images have three channels."""

    width: int
    depth: int
    heads: int
    patch: int
    mlp: int  # the width of the hidden layer of a block's MLP
    grid: tuple[int, int]  # the rows and columns of patches that have a position
    eps: float = 1e-6
    layer_scale: bool = False
    swiglu: bool = False  # the MLP's hidden layer is gated, as in the giant DINOv2
    quick_gelu: bool = False  # CLIP's cheap form of GELU
    pre_norm: bool = False  # the tokens are normed before the first block, as in CLIP
    patch_bias: bool = True
    projection: int = 0  # the class token is mapped, without bias, to so many features; 0: it is not mapped
    registers: int = 0  # frozen tokens without a position that all images share, as in later DINOv2
    statistics: Statistics | None = None  # of the pixels it was pretrained on


@cache
def shapes(arch: Arch) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by name, the head's left out."""
    width = arch.width
    found: dict[str, tuple[int, ...]] = {"cls": (1, width), "position": (arch.grid[0] * arch.grid[1] + 1, width)}

    if arch.registers:
        found["registers"] = arch.registers, width

    def matrix(name: str, outputs: int, inputs: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = (outputs, inputs), (outputs,)

    def norm(name: str) -> None:
        found[f"{name}.weight"] = found[f"{name}.bias"] = (width,)

    matrix("patch", width, 3 * arch.patch**2)
    if not arch.patch_bias:
        del found["patch.bias"]
    if arch.pre_norm:
        norm("prenorm")
    for number in range(arch.depth):
        block = f"block{number}"
        norm(f"{block}.norm1")
        matrix(f"{block}.qkv", 3 * width, width)
        matrix(f"{block}.out", width, width)
        norm(f"{block}.norm2")
        matrix(f"{block}.mlp1", 2 * arch.mlp if arch.swiglu else arch.mlp, width)
        matrix(f"{block}.mlp2", width, arch.mlp)
        if arch.layer_scale:
            found[f"{block}.scale1"] = found[f"{block}.scale2"] = (width,)
    norm("norm")
    if arch.projection:
        found["projection.weight"] = arch.projection, width
    return found


def fresh(arch: Arch, generator: torch.Generator) -> Tree:
    """Return weights for training from scratch, in PyTorch's own distributions; class token and positions are zero."""
    memory.require(4 * arch.depth * arch.width * (4 * arch.width + 2 * arch.mlp), "backbone.depth", "backbone.width")
    weights: Tree = {}
    known = shapes(arch)
    for name, shape in known.items():
        if name in weights:
            continue
        if name.endswith(".weight") and len(shape) == 2:
            made = affine(name.removesuffix(".weight"), shape, generator)
            weights |= {part: value for part, value in made.items() if part in known}
        else:
            weights[name] = torch.zeros(shape) if name.endswith(("cls", "position", ".bias")) else torch.ones(shape)
    return weights


def features(
    arch: Arch,
    weights: Tree,
    x: Tensor,
    tokens: Tokens | None = None,
    *,
    thrifty: bool = True,
    low: Sequence[float8.QuantisedBlock] = (),
    prompts_only: bool = False,
    patches: bool = False,
    project: bool = True,
) -> Tensor:
    """Return the class token after the last block, norm and projection (if any) of images x [..., B, 3, H, W].

    Prompt `tokens` are [..., K, width] per client or [..., B, K, width] per sample. Of a sequence of them, the first
    enters before the first block and each later one takes the place of the one before it; blocks after the last go on
    with what its prompts have become. `thrifty` lets the last block compute the class token alone and fuses attention
    in bf16 on a GPU: the same function, rounded differently. The first blocks are those of `low`, if there are any;
    with `prompts_only` their gradient is that of the prompts, all else before them being constant.
    With `patches` it is the class token and all patches [..., B, 1 + M, D], projected (if so) only with `project`.
    Companions of the matrices among the weights (see `companions`) are added to what these give.
    """
    thrifty = thrifty and not patches
    beside = any(map(companions.is_one, weights))
    layered = [] if tokens is None else [tokens] if isinstance(tokens, Tensor) else list(tokens)
    if len(layered) > max(arch.depth, 1):
        raise PromptFedError(f"There are prompts for {len(layered)} layers, but the backbone has {arch.depth}.")
    z = embed(arch, weights, x, layered[0] if layered else None)
    if arch.pre_norm:
        z = ops.layer_norm(z, weights["prenorm.weight"], weights["prenorm.bias"], arch.eps)
    flash = thrifty and z.is_cuda and z.dtype == torch.bfloat16  # for float32 see ops.attention
    together = (
        arch.depth - thrifty if _plain(arch) and not beside and fused.fit(z, weights, arch.heads, arch.mlp) else 0
    )
    count = layered[0].shape[-2] if layered else 0
    wanted = slice(1, 1 + count) if prompts_only and count else slice(None)
    number = 0
    while number < arch.depth:
        if 0 < number < len(layered):
            z = _replace(z, layered[number], layered[number - 1].shape[-2])
        # blocks between which no prompt changes are one step
        last = arch.depth if number + 1 >= len(layered) else number + 1
        if number < len(low):
            z = float8.through(z, low[number:last], wanted if number == 0 else slice(None))
            number = min(last, len(low))
        elif number < together:
            last = min(last, together)
            blocks = [_own(weights, one) for one in range(number, last)]
            z = fused.through(z, blocks, arch.heads, arch.eps, partial(_written, arch))
            number = last
        else:
            own, alone = _own(weights, number), thrifty and number == arch.depth - 1
            lean = alone and flash and bool(low) and not beside  # the matrices are frozen
            z = _block(arch, own, z, alone=alone, flash=flash, lean=lean)
            number += 1
    rows = arch.grid[0] * arch.grid[1]
    z = torch.cat([z[..., :1, :], z[..., 1 + count : 1 + count + rows, :]], -2) if patches else z[..., 0, :]
    z = ops.layer_norm(z, weights["norm.weight"], weights["norm.bias"], arch.eps)
    return _map(z, weights["projection.weight"]) if arch.projection and project else z


def grown(
    arch: Arch, weights: Tree, x: Tensor, tokens: Mapping[int, Tensor], *, nearest: int = 0, upto: int = 0
) -> Tensor:
    """Return features of images x [..., B, 3, H, W] through a sequence that grows: [..., B, D].

    Before block `number` its tokens [..., K, width], or per sample [..., B, K, width], enter right behind the class
    token, and stay. What is read off is the mean of the class token and the `nearest` tokens behind it, after the last
    block or after `upto` blocks, norm and projection (if any).
    """
    late = [number for number in tokens if not 0 <= number < arch.depth]
    if late or not 0 <= upto <= arch.depth:
        raise PromptFedError(f"The backbone has {arch.depth} blocks, and there is none {max([*late, upto])}.")
    z = embed(arch, weights, x, None)
    if arch.pre_norm:
        z = ops.layer_norm(z, weights["prenorm.weight"], weights["prenorm.bias"], arch.eps)
    flash = z.is_cuda and z.dtype == torch.bfloat16
    for number in range(upto or arch.depth):
        if number in tokens:
            z = torch.cat([z[..., :1, :], _placed(tokens[number], z), z[..., 1:, :]], -2)
        z = _block(arch, _own(weights, number), z, alone=False, flash=flash)
    z = ops.layer_norm(z[..., : 1 + nearest, :], weights["norm.weight"], weights["norm.bias"], arch.eps).mean(-2)
    return _map(z, weights["projection.weight"]) if arch.projection else z


def quantised(arch: Arch, weights: Tree) -> tuple[float8.QuantisedBlock, ...]:
    """Return all blocks but the last, of which only the class token is needed, in 8-bit floats."""
    if arch.swiglu:
        raise PromptFedError("backbone.precision=fp8 has no gated MLP; set it to bf16.")
    return tuple(float8.block(arch.heads, arch.eps, _own(weights, number)) for number in range(arch.depth - 1))


def _own(weights: Tree, number: int) -> Tree:
    """Return the weights of one block."""
    own = f"block{number}."
    return {name.removeprefix(own): value for name, value in weights.items() if name.startswith(own)}


def _plain(arch: Arch) -> bool:
    return not (arch.layer_scale or arch.swiglu or arch.quick_gelu)


def embed(arch: Arch, weights: Tree, x: Tensor, tokens: Tensor | None) -> Tensor:
    """Return [class token, prompt tokens, patches] as one sequence [..., B, T, width]."""
    z = _map(*_patches(arch, weights["patch.weight"], x), weights["patch.bias"] if arch.patch_bias else None)
    position = ops.spread(weights["position"], 2, z)
    first = ops.spread(weights["cls"], 2, z) + position[..., :1, :]
    if tokens is not None and not arch.registers and sequence.fit(x, z, weights["cls"], weights["position"]):
        return sequence.in_order(first, _placed(tokens, z), z, weights["position"][1:])
    parts = [first.expand(*z.shape[:-2], 1, -1)]
    if tokens is not None:
        parts.append(_placed(tokens, z))
    parts.append(z + position[..., 1:, :])
    if arch.registers:  # they have no position, so their place is free: behind the patches they disturb no one
        parts.append(_placed(weights["registers"], z))
    if z.dtype == torch.bfloat16:  # the sequence of a large network: a GPU joins what is contiguous far sooner
        parts = [part.contiguous() for part in parts]
    return torch.cat(parts, -2)


def _patches(arch: Arch, matrix: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the patches of images [..., B, h*w, 3*p*p], and the matrix they go through."""
    p, last = arch.patch, x.movedim(-3, -1)
    if matrix.dtype == torch.bfloat16 and last.is_contiguous() and not x.requires_grad and gpus.has_triton(x):
        from promptfed.core.kernels import image_kernels

        found = image_kernels.patches(last.flatten(0, -4), p)  # channels last; so the matrix' columns move
        columns = matrix.unflatten(-1, (-1, p, p)).movedim(-3, -1).flatten(-3)
        return found.view(*x.shape[:-3], *found.shape[1:]), columns
    rows = x.to(matrix.dtype).unflatten(-2, (-1, p)).unflatten(-1, (-1, p))  # [..., B, 3, h, p, w, p]
    return rows.movedim((-4, -2), (-5, -4)).flatten(-3).flatten(-3, -2), matrix


def _placed(tokens: Tensor, z: Tensor) -> Tensor:
    """Give every sample of z [..., B, T, width] its prompts [..., B, K, width]."""
    return ops.spread(tokens, 2, z).expand(*z.shape[:-2], -1, -1)


def _replace(z: Tensor, tokens: Tensor, count: int) -> Tensor:
    """Put `tokens` where the `count` prompts of the layer before stand."""
    return torch.cat([z[..., :1, :], _placed(tokens, z), z[..., 1 + count :, :]], -2)


def _written(arch: Arch, z: Tensor, blocks: Sequence[Tree]) -> Tensor:
    for w in blocks:
        z = _block(arch, w, z, alone=False, flash=False)
    return z


def _block(arch: Arch, w: Tree, z: Tensor, *, alone: bool, flash: bool, lean: bool = False) -> Tensor:
    """Return z after attention and MLP; `alone`: of the class token only, as no later block looks at the others.

    A `lean` block makes no keys and values for it.
    """
    if lean:
        (z, mixed), aside = class_token.gathered(z, w, arch.heads, arch.eps), None
    else:
        plain = ops.layer_norm(z, w["norm1.weight"], w["norm1.bias"], arch.eps)
        if alone:
            z = z[..., :1, :]
        aside = companions.aside(w, plain[..., :1, :] if alone else plain)
        mixed = _attend(arch, w, plain, alone=alone, flash=flash)
    z = _add(z, companions.linear(w, "out", mixed), w["scale1"] if arch.layer_scale else None)
    plain = ops.layer_norm(z, w["norm2.weight"], w["norm2.bias"], arch.eps)
    hidden = companions.linear(w, "mlp1", plain)
    if arch.swiglu:
        gate, hidden = hidden.chunk(2, -1)
        hidden = F.silu(gate) * hidden
    else:
        hidden = quick_gelu(hidden) if arch.quick_gelu else F.gelu(hidden)
    z = _add(z, companions.linear(w, "mlp2", hidden), w["scale2"] if arch.layer_scale else None)
    return z if aside is None else z + aside


def _attend(arch: Arch, w: Tree, z: Tensor, *, alone: bool, flash: bool) -> Tensor:
    """Return what every token, or the class token `alone`, gathers from all of z: [..., T or 1, width]."""

    def heads(x: Tensor, first: int, stop: int) -> tuple[Tensor, ...]:
        flat = companions.attention(w, x, first, stop)
        found: Tensor = flat.unflatten(-1, (-1, arch.heads, arch.width // arch.heads)).movedim((-3, -2), (0, -3))
        return (found if flash else found.contiguous()).unbind(0)  # each [..., heads, T, d]

    if alone:
        query, key, value = *heads(z[..., :1, :], 0, 1), *heads(z, 1, 3)
    else:
        query, key, value = heads(z, 0, 3)
    if flash:
        folded = F.scaled_dot_product_attention(query.flatten(0, -4), key.flatten(0, -4), value.flatten(0, -4))
        mixed = folded.view(query.shape)
    else:
        mixed = ops.attention(query, key, value)
    return mixed.movedim(-3, -2).flatten(-2)


def _add(z: Tensor, branch: Tensor, scale: Tensor | None) -> Tensor:
    return z + branch if scale is None else torch.addcmul(z, branch, ops.spread(scale, 1, z))


def _map(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return ops.linear(x, weight, weight.new_zeros(weight.shape[:-1]) if bias is None else bias)


def quick_gelu(x: Tensor) -> Tensor:
    """Return x · sigmoid(1.702 x), which CLIP uses for GELU."""
    return x * torch.sigmoid(1.702 * x)
