"""Triton kernels of `fused.py`, in float32.

In attention a program does one head of one image, whose scores never leave the chip. In a norm it does a few rows of
one client, and leaves their share of the weights' gradient to be added up: the order of the sum is always the same.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 8  # of a norm that a program does


@triton.jit
def _places(tokens, width, HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    image, head = tl.program_id(0).to(tl.int64) // HEADS, tl.program_id(0) % HEADS
    at = tl.arange(0, BLOCK)[:, None]
    inside = head * D + tl.arange(0, D)[None, :]
    own = image * tokens * 3 * width + at * 3 * width + inside
    joined = image * tokens * width + at * width + inside
    return own, joined, at < tokens


@triton.jit
def _parts(qkv, own, keep, width):
    """Load queries, keys and values; rows beyond the last token are zero."""
    q = tl.load(qkv + own, mask=keep, other=0.0)
    k = tl.load(qkv + own + width, mask=keep, other=0.0)
    v = tl.load(qkv + own + 2 * width, mask=keep, other=0.0)
    return q, k, v


@triton.jit
def _shares(q, k, tokens, scale, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    scores = tl.where(tl.arange(0, BLOCK)[None, :] < tokens, scores, float("-inf"))
    e = tl.exp(scores - tl.max(scores, 1)[:, None])
    return e / tl.sum(e, 1)[:, None]


@triton.jit
def _attend(
    qkv,
    out,
    tokens,
    width,
    scale,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    own, joined, keep = _places(tokens, width, HEADS, D, BLOCK)
    q, k, v = _parts(qkv, own, keep, width)
    p = _shares(q, k, tokens, scale, BLOCK, PRECISION)
    tl.store(out + joined, tl.dot(p, v, input_precision=PRECISION), mask=keep)


@triton.jit
def _attend_gradient(
    qkv,
    grad,
    to_qkv,
    tokens,
    width,
    scale,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    own, joined, keep = _places(tokens, width, HEADS, D, BLOCK)
    q, k, v = _parts(qkv, own, keep, width)
    g = tl.load(grad + joined, mask=keep, other=0.0)  # zero beyond the last token, and so is what that gives
    p = _shares(q, k, tokens, scale, BLOCK, PRECISION)
    tl.store(to_qkv + own + 2 * width, tl.dot(tl.trans(p), g, input_precision=PRECISION), mask=keep)
    to_p = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    to_scores = p * (to_p - tl.sum(p * to_p, 1)[:, None]) * scale
    tl.store(to_qkv + own, tl.dot(to_scores, k, input_precision=PRECISION), mask=keep)
    tl.store(to_qkv + own + width, tl.dot(tl.trans(to_scores), q, input_precision=PRECISION), mask=keep)


@triton.jit
def _some_rows(rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    keep = (row < rows) & (at < columns)
    return (tl.program_id(1).to(tl.int64) * rows + row) * columns + at, at, keep


@triton.jit
def _normed(x, keep, columns, eps):
    centred = tl.where(keep, x - tl.sum(x, 1)[:, None] / columns, 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(centred * centred, 1)[:, None] / columns + eps)
    return centred * rate, rate


@triton.jit
def _norm(
    z,
    branch,
    weight,
    bias,
    total,
    out,
    rows,
    columns,
    eps,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place, at, keep = _some_rows(rows, columns, ROWS, BLOCK)
    x = tl.load(z + place, mask=keep, other=0.0)
    if ADD:
        x += tl.load(branch + place, mask=keep, other=0.0)
        tl.store(total + place, x, mask=keep)
    plain, _ = _normed(x, keep, columns, eps)
    own = tl.program_id(1) * columns + at
    w = tl.load(weight + own, mask=at < columns, other=0.0)
    b = tl.load(bias + own, mask=at < columns, other=0.0)
    tl.store(out + place, plain * w + b, mask=keep)


@triton.jit
def _norm_gradient(
    total,
    weight,
    to_total,
    to_out,
    to_z,
    shares,
    rows,
    columns,
    eps,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place, at, keep = _some_rows(rows, columns, ROWS, BLOCK)
    plain, rate = _normed(tl.load(total + place, mask=keep, other=0.0), keep, columns, eps)
    g = tl.load(to_out + place, mask=keep, other=0.0)
    y = g * tl.load(weight + tl.program_id(1) * columns + at, mask=at < columns, other=0.0)
    x = (y - tl.sum(y, 1)[:, None] / columns - plain * (tl.sum(y * plain, 1)[:, None] / columns)) * rate
    if ADD:
        x += tl.load(to_total + place, mask=keep, other=0.0)
    tl.store(to_z + place, x, mask=keep)
    line = tl.arange(0, BLOCK)
    mine = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * columns + line
    half = tl.num_programs(1) * tl.num_programs(0) * columns
    tl.store(shares + mine, tl.sum(g * plain, 0), mask=line < columns)
    tl.store(shares + half + mine, tl.sum(g, 0), mask=line < columns)


def _form(qkv: Tensor, heads: int) -> tuple[tuple[int, int, float], dict[str, int | str]]:
    """Return the numbers and constants that the kernels of attention take."""
    width = qkv.shape[-1] // 3
    d = width // heads
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    block = max(16, triton.next_power_of_2(qkv.shape[-2]))
    constants = {"HEADS": heads, "D": d, "BLOCK": block, "PRECISION": precision, "num_warps": 8 if block > 64 else 4}
    return (qkv.shape[-2], width, d**-0.5), constants


def attend(qkv: Tensor, heads: int) -> Tensor:
    """Return what every token gathers: qkv [N, T, 3 · heads · d] -> [N, T, heads · d]."""
    numbers, constants = _form(qkv, heads)
    out = qkv.new_empty(*qkv.shape[:-1], qkv.shape[-1] // 3)
    _attend[(len(qkv) * heads,)](qkv, out, *numbers, **constants)
    return out


def attend_gradient(qkv: Tensor, grad: Tensor, heads: int) -> Tensor:
    """Return the gradient of qkv."""
    numbers, constants = _form(qkv, heads)
    out = torch.empty_like(qkv)
    _attend_gradient[(len(qkv) * heads,)](qkv, grad, out, *numbers, **constants)
    return out


def norm(z: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return z [C, R, N] (+ branch) and its layer norm; weight and bias are [C, N]."""
    clients, rows, columns = z.shape
    out = torch.empty_like(z)
    total = z if branch is None else torch.empty_like(z)
    _norm[(triton.cdiv(rows, ROWS), clients)](
        *(z, z if branch is None else branch, weight, bias, total, out, rows, columns, eps),
        ADD=branch is not None,
        ROWS=ROWS,
        BLOCK=triton.next_power_of_2(columns),
    )
    return total, out


def norm_gradient(
    total: Tensor, weight: Tensor, to_total: Tensor | None, to_out: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the gradient of z, and each tile's share of those of weight and bias [2, C, tiles, N]."""
    clients, rows, columns = total.shape
    to_z, tiles = torch.empty_like(total), triton.cdiv(rows, ROWS)
    shares = total.new_empty(2, clients, tiles, columns)
    _norm_gradient[(tiles, clients)](
        *(total, weight, to_out if to_total is None else to_total, to_out, to_z, shares, rows, columns, eps),
        ADD=to_total is not None,
        ROWS=ROWS,
        BLOCK=triton.next_power_of_2(columns),
    )
    return to_z, shares
