"""Companions of frozen matrices: pairs of low rank (LoRA), whole matrices and adapters, added to what these give.

A weight tree may have, for the tower it is given to:

    block3.mlp1.lora_a, block3.mlp1.lora_b    y = W x + b + B A x: A [r, in], B [out, r], of qkv, out, mlp1 or mlp2
    block3.q.lora_a, block3.q.lora_b          the same of the queries alone; k the keys, v the values
    block3.q.rest                             y = W x + b + R x: R [out, in], beside a pair or alone, of any of these
    block3.side.down.weight, .bias, and up    out = block(z) + up(relu(down(norm1(z)))), or with `mid` in between
                                              up(relu(mid(relu(down(norm1(z))))))

The frozen matrix is one for all clients. Companions of a stack of clients have a leading C.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from promptfed.core import ops
from promptfed.core.tree import Tree

PAIR = ".lora_a", ".lora_b"
REST = ".rest"
SIDE = "side."
Made = TypeVar("Made", Tensor, Tensor | None)
PARTS = "q", "k", "v"  # of the joint matrix of attention
EVERY = slice(None)


def stacked(w: Tree) -> int:
    """Return the number of clients whose companions are among the weights of a block; 0: they are of one, or none."""
    led = [len(value) for name, value in w.items() if is_one(name) and value.dim() > 2 - name.endswith(".bias")]
    return led[0] if led else 0


def by_client(w: Tree, x: Tensor, made: Callable[[Tensor], Made]) -> Made:
    """Return what is `made` of x [C · n, ...], with the clients' own dimension split off where companions have one."""
    clients = stacked(w)
    if not clients:
        return made(x)
    found = made(x.unflatten(0, (clients, -1)))
    return found if found is None else found.flatten(0, 1)


def is_one(name: str) -> bool:
    """Say whether a weight of that name is a companion."""
    return name.endswith((*PAIR, REST)) or f".{SIDE}" in name


def linear(w: Tree, name: str, x: Tensor, factor: float = 1.0) -> Tensor:
    """Return what a block's matrix gives [..., O], what its companions do times `factor` with it."""
    out, more = ops.linear(x, w[f"{name}.weight"], w[f"{name}.bias"]), _beside(w, name, x)
    return out if more is None else out + factor * more


def attention(w: Tree, x: Tensor, first: int, stop: int) -> Tensor:
    """Return those from `first` to `stop` of queries, keys and values [..., (stop - first) * width]."""
    width = w["qkv.weight"].shape[-1]
    rows = slice(first * width, stop * width)
    out = ops.linear(x, w["qkv.weight"][..., rows, :], w["qkv.bias"][..., rows])
    joint = _beside(w, "qkv", x, rows)
    out = out if joint is None else out + joint
    parts = [_beside(w, part, x) for part in PARTS[first:stop]]
    if all(part is None for part in parts):
        return out
    zero = torch.zeros_like(out[..., :width])
    return out + torch.cat([zero if part is None else part for part in parts], -1)


def aside(w: Tree, plain: Tensor) -> Tensor | None:
    """Return what a block's side adapter makes of its normed tokens; None if there is none."""
    if f"{SIDE}down.weight" not in w:
        return None
    z = _affine(w, "down", plain).relu()
    z = _affine(w, "mid", z).relu() if f"{SIDE}mid.weight" in w else z
    return _affine(w, "up", z)


def _beside(w: Tree, name: str, x: Tensor, rows: slice = EVERY) -> Tensor | None:
    """Return what a matrix's companions give, or some rows of it; None if there are none."""
    a, b, rest = (w.get(f"{name}{kind}") for kind in (*PAIR, REST))
    pair = None if a is None or b is None else ops.low_rank(x, a, b[..., rows, :])
    if rest is None:
        return pair
    rest = rest[..., rows, :]
    whole = ops.linear(x, rest, rest.new_zeros(rest.shape[:-1]))
    return whole if pair is None else pair + whole


def _affine(w: Tree, name: str, x: Tensor) -> Tensor:
    return ops.linear(x, w[f"{SIDE}{name}.weight"], w[f"{SIDE}{name}.bias"])


def matrices(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    """Return the outputs and inputs of every matrix in blocks of these shapes that may have a pair beside it."""
    found = {}
    for name, shape in shapes.items():
        matrix = name.removesuffix(".weight")
        if name.startswith("block") and matrix != name and len(shape) == 2:
            found[matrix] = shape[0], shape[1]
            if matrix.endswith(".qkv"):
                found |= {f"{matrix[:-3]}{part}": (shape[1], shape[1]) for part in PARTS}
    return found
