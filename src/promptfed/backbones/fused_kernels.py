"""Triton kernels of `fused.py`, in float32.

In attention a program does one head of one image, whose scores never leave the chip; the first token stands apart, as
blocks are powers of two and patches often are one as well. Otherwise a program does a few rows of one client. Each
leaves its share of the gradient of a bias or a norm's weight to be added up: the order of the sum is always the same.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 1024  # of the rows that a program does


@triton.jit
def _place(HEADS: tl.constexpr, D: tl.constexpr):
    """Return the image that this program does, and where the numbers of its head are in a row."""
    return tl.program_id(0).to(tl.int64) // HEADS, tl.program_id(0) % HEADS * D + tl.arange(0, D)


@triton.jit
def _load(qkv, bias, part, tokens, width, each, HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """Return query, key or value (part 0, 1 or 2) of the first token, and of the others: [D] and [BLOCK, D]."""
    image, inside = _place(HEADS, D)
    own = tl.load(bias + image // each * 3 * width + part * width + inside)
    place = qkv + image * tokens * 3 * width + part * width + inside
    at = 1 + tl.arange(0, BLOCK)[:, None]
    others = tl.load(place[None, :] + at * 3 * width, mask=at < tokens, other=0.0) + own[None, :]
    return tl.load(place) + own, tl.where(at < tokens, others, 0.0)


@triton.jit
def _put(out, first, others, part, tokens, width, row, HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """Store what belongs to the first token and to the others, in rows of so many numbers."""
    image, inside = _place(HEADS, D)
    at = 1 + tl.arange(0, BLOCK)[:, None]
    tl.store(out + image * tokens * row + part * width + inside, first)
    tl.store(out + (image * tokens + at) * row + part * width + inside[None, :], others, mask=at < tokens)


@triton.jit
def _shares(q1, k1, q, k, tokens, scale, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """Return how much is gathered: by the first token from itself and from the others, by the others likewise."""
    real = 1 + tl.arange(0, BLOCK) < tokens
    one = tl.sum(q1 * k1, 0) * scale
    row = tl.where(real, tl.sum(k * q1[None, :], 1) * scale, float("-inf"))
    top = tl.maximum(one, tl.max(row, 0))
    one, row = tl.exp(one - top), tl.exp(row - top)
    total = one + tl.sum(row, 0)
    column = tl.sum(q * k1[None, :], 1) * scale
    block = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    block = tl.where(real[None, :], block, float("-inf"))
    tops = tl.maximum(column, tl.max(block, 1))
    column, block = tl.exp(column - tops), tl.exp(block - tops[:, None])
    totals = column + tl.sum(block, 1)
    return one / total, row / total, column / totals, block / totals[:, None]


@triton.jit
def _attend(
    qkv,
    bias,
    out,
    tokens,
    width,
    each,
    scale,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    q1, q = _load(qkv, bias, 0, tokens, width, each, HEADS, D, BLOCK)
    k1, k = _load(qkv, bias, 1, tokens, width, each, HEADS, D, BLOCK)
    v1, v = _load(qkv, bias, 2, tokens, width, each, HEADS, D, BLOCK)
    one, row, column, block = _shares(q1, k1, q, k, tokens, scale, BLOCK, PRECISION)
    mixed1 = one * v1 + tl.sum(row[:, None] * v, 0)
    mixed = column[:, None] * v1[None, :] + tl.dot(block, v, input_precision=PRECISION)
    _put(out, mixed1, mixed, 0, tokens, width, width, HEADS, D, BLOCK)


@triton.jit
def _attend_gradient(
    qkv,
    bias,
    grad,
    to_qkv,
    to_bias,
    tokens,
    width,
    each,
    scale,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    q1, q = _load(qkv, bias, 0, tokens, width, each, HEADS, D, BLOCK)
    k1, k = _load(qkv, bias, 1, tokens, width, each, HEADS, D, BLOCK)
    v1, v = _load(qkv, bias, 2, tokens, width, each, HEADS, D, BLOCK)
    image, inside = _place(HEADS, D)
    at = 1 + tl.arange(0, BLOCK)[:, None]
    g1 = tl.load(grad + image * tokens * width + inside)
    # rows beyond the last token are zero, and so is what they give
    g = tl.load(grad + (image * tokens + at) * width + inside[None, :], mask=at < tokens, other=0.0)
    one, row, column, block = _shares(q1, k1, q, k, tokens, scale, BLOCK, PRECISION)
    to_v1 = one * g1 + tl.sum(column[:, None] * g, 0)
    to_v = row[:, None] * g1[None, :] + tl.dot(tl.trans(block), g, input_precision=PRECISION)
    # the gradients of the scores, in place of the shares
    of_one, of_row = tl.sum(g1 * v1, 0), tl.sum(v * g1[None, :], 1)
    mean = one * of_one + tl.sum(row * of_row, 0)
    one, row = one * (of_one - mean) * scale, row * (of_row - mean) * scale
    of_column, of_block = tl.sum(g * v1[None, :], 1), tl.dot(g, tl.trans(v), input_precision=PRECISION)
    means = column * of_column + tl.sum(block * of_block, 1)
    column = column * (of_column - means) * scale
    block = block * (of_block - means[:, None]) * scale
    to_q1 = one * k1 + tl.sum(row[:, None] * k, 0)
    to_q = column[:, None] * k1[None, :] + tl.dot(block, k, input_precision=PRECISION)
    to_k1 = one * q1 + tl.sum(column[:, None] * q, 0)
    to_k = row[:, None] * q1[None, :] + tl.dot(tl.trans(block), q, input_precision=PRECISION)
    _put(to_qkv, to_q1, to_q, 0, tokens, width, 3 * width, HEADS, D, BLOCK)
    _put(to_qkv, to_k1, to_k, 1, tokens, width, 3 * width, HEADS, D, BLOCK)
    _put(to_qkv, to_v1, to_v, 2, tokens, width, 3 * width, HEADS, D, BLOCK)
    share = to_bias + image * 3 * width + inside
    tl.store(share, to_q1 + tl.sum(to_q, 0))
    tl.store(share + width, to_k1 + tl.sum(to_k, 0))
    tl.store(share + 2 * width, to_v1 + tl.sum(to_v, 0))


@triton.jit
def _some_rows(rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    keep = (row < rows) & (at < columns)
    return (tl.program_id(1).to(tl.int64) * rows + row) * columns + at, at, keep


@triton.jit
def _own(vector, at, columns):
    """Load the numbers that a client has for every column."""
    return tl.load(vector + tl.program_id(1) * columns + at, mask=at < columns, other=0.0)


@triton.jit
def _share(shares, number, x, columns, BLOCK: tl.constexpr):
    """Store the sums of this program's rows in the table `number` of shares."""
    at = tl.arange(0, BLOCK)
    program = (number * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(shares + program.to(tl.int64) * columns + at, tl.sum(x, 0), mask=at < columns)


@triton.jit
def _normed(x, keep, columns, eps):
    centred = tl.where(keep, x - tl.sum(x, 1)[:, None] / columns, 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(centred * centred, 1)[:, None] / columns + eps)
    return centred * rate, rate


@triton.jit
def _norm(
    z,
    branch,
    extra,
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
        x = tl.where(keep, x + tl.load(branch + place, mask=keep, other=0.0) + _own(extra, at, columns), 0.0)
        tl.store(total + place, x, mask=keep)
    plain, _ = _normed(x, keep, columns, eps)
    tl.store(out + place, plain * _own(weight, at, columns) + _own(bias, at, columns), mask=keep)


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
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place, at, keep = _some_rows(rows, columns, ROWS, BLOCK)
    plain, rate = _normed(tl.load(total + place, mask=keep, other=0.0), keep, columns, eps)
    g = tl.load(to_out + place, mask=keep, other=0.0)
    y = g * _own(weight, at, columns)
    x = (y - tl.sum(y, 1)[:, None] / columns - plain * (tl.sum(y * plain, 1)[:, None] / columns)) * rate
    x = tl.where(keep, x + tl.load(to_total + place, mask=keep, other=0.0), 0.0)
    tl.store(to_z + place, x, mask=keep)
    _share(shares, 0, g * plain, columns, BLOCK)
    _share(shares, 1, g, columns, BLOCK)
    _share(shares, 2, x, columns, BLOCK)


@triton.jit
def _gelu(x, bias, out, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    place, at, keep = _some_rows(rows, columns, ROWS, BLOCK)
    h = tl.load(x + place, mask=keep, other=0.0) + _own(bias, at, columns)
    tl.store(out + place, 0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476)), mask=keep)


@triton.jit
def _gelu_gradient(x, bias, grad, to_x, shares, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    place, at, keep = _some_rows(rows, columns, ROWS, BLOCK)
    h = tl.load(x + place, mask=keep, other=0.0) + _own(bias, at, columns)
    slope = 0.5 * (1.0 + tl.erf(h * 0.7071067811865476)) + h * 0.3989422804014327 * tl.exp(-0.5 * h * h)
    y = slope * tl.load(grad + place, mask=keep, other=0.0)
    tl.store(to_x + place, y, mask=keep)
    _share(shares, 0, y, columns, BLOCK)


def _form(qkv: Tensor, heads: int, tokens: int) -> tuple[tuple[int], tuple[int, int, int, float], dict[str, Any]]:
    """Return the programs, numbers and constants that the kernels of attention take."""
    clients, rows, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    constants = {
        "HEADS": heads,
        "D": width // heads,
        "BLOCK": max(16, triton.next_power_of_2(tokens - 1)),
        "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
    }
    each = rows // tokens
    return (clients * each * heads,), (tokens, width, each, (width // heads) ** -0.5), constants


def attend(qkv: Tensor, bias: Tensor, heads: int, tokens: int, out: Tensor) -> None:
    """Write what every token gathers [C, B · T, heads · d]: qkv [C, B · T, 3 · heads · d], bias [C, 3 · heads · d]."""
    programs, numbers, constants = _form(qkv, heads, tokens)
    _attend[programs](qkv, bias, out, *numbers, **constants)


def images(qkv: Tensor, tokens: int, count: int) -> Tensor:
    """Return room for the shares of that many gradients of attention [count, C, B, 3 · heads · d]."""
    return qkv.new_empty(count, len(qkv), qkv.shape[1] // tokens, qkv.shape[2])


def attend_gradient(
    qkv: Tensor, bias: Tensor, grad: Tensor, heads: int, tokens: int, out: Tensor, shares: Tensor
) -> None:
    """Write the gradient of qkv, and each image's share of that of the bias [C, B, 3 · heads · d]."""
    programs, numbers, constants = _form(qkv, heads, tokens)
    _attend_gradient[programs](qkv, bias, grad, out, shares, *numbers, **constants)


def _tiles(x: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the programs that do a few rows each of x [C, R, N], and their constants."""
    clients, rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    some = max(1, NUMBERS // block)
    return (triton.cdiv(rows, some), clients), {"ROWS": some, "BLOCK": block, "num_warps": 1}


def room(x: Tensor, count: int) -> Tensor:
    """Return room for the shares of that many gradients [count, C, programs, N] that have the shape of x."""
    (tiles, clients), _ = _tiles(x)
    return x.new_empty(count, clients, tiles, x.shape[-1])


def norm(
    z: Tensor, branch: tuple[Tensor, Tensor] | None, weight: Tensor, bias: Tensor, eps: float, out: Tensor
) -> Tensor:
    """Return z [C, R, N] plus a branch [C, R, N] and its bias [C, N], if any, and write the norm of that."""
    programs, constants = _tiles(z)
    z = z.contiguous()
    total = z if branch is None else torch.empty_like(z)
    added = (z, weight) if branch is None else branch  # the former are not read
    _norm[programs](z, *added, weight, bias, total, out, *z.shape[1:], eps, ADD=branch is not None, **constants)
    return total


def norm_gradient(
    total: Tensor, weight: Tensor, to_total: Tensor, to_out: Tensor, eps: float, out: Tensor, shares: Tensor
) -> None:
    """Write the gradient of z and branch, and the shares of weight, bias and branch's bias [3, C, programs, N]."""
    programs, constants = _tiles(total)
    _norm_gradient[programs](total, weight, to_total, to_out, out, shares, *total.shape[1:], eps, **constants)


def gelu(x: Tensor, bias: Tensor, out: Tensor) -> None:
    """Write GELU(x + bias): x [C, R, N], bias [C, N]."""
    programs, constants = _tiles(x)
    _gelu[programs](x, bias, out, *x.shape[1:], **constants)


def gelu_gradient(x: Tensor, bias: Tensor, grad: Tensor, out: Tensor, shares: Tensor) -> None:
    """Write the gradient of x, and the shares of that of the bias [C, programs, N]."""
    programs, constants = _tiles(x)
    _gelu_gradient[programs](x, bias, grad, out, shares, *x.shape[1:], **constants)
