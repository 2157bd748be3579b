"""Triton kernels of `float8.py`: each reads a row once, computes in float32 and writes it quantised to e4m3.

One program works on one row. Rows are numbered in 64 bits, as a large batch has more than 2³¹ numbers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _write(y, keep, at, values, scale, row, columns):
    top = tl.maximum(tl.max(tl.abs(y), 0), 1e-12)
    tl.store(scale + row, top / 448.0)
    tl.store(values + row * columns + at, (y * (448.0 / top)).to(tl.float8e4nv), mask=keep)


@triton.jit
def _quantise(x, values, scale, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    keep = at < columns
    y = tl.load(x + row * columns + at, mask=keep, other=0.0).to(tl.float32)
    _write(y, keep, at, values, scale, row, columns)


@triton.jit
def _norm(z, branch, weight, bias, total, values, scale, columns, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    keep = at < columns
    x = tl.load(z + row * columns + at, mask=keep, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(branch + row * columns + at, mask=keep, other=0.0).to(tl.float32)
        rounded = x.to(tl.bfloat16)
        tl.store(total + row * columns + at, rounded, mask=keep)
        x = rounded.to(tl.float32)  # backward reads it back as it was stored
    centred = tl.where(keep, x - tl.sum(x, 0) / columns, 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / columns + eps)
    w = tl.load(weight + at, mask=keep, other=0.0)
    b = tl.load(bias + at, mask=keep, other=0.0)
    _write(centred * rate * w + b, keep, at, values, scale, row, columns)


@triton.jit
def _norm_backward(grad, inner, z, weight, out, values, scale, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    keep = at < columns
    x = tl.load(z + row * columns + at, mask=keep, other=0.0).to(tl.float32)
    centred = tl.where(keep, x - tl.sum(x, 0) / columns, 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / columns + eps)
    plain = centred * rate
    w = tl.load(weight + at, mask=keep, other=0.0)
    y = tl.load(inner + row * columns + at, mask=keep, other=0.0).to(tl.float32) * w
    through = (y - tl.sum(y, 0) / columns - plain * (tl.sum(y * plain, 0) / columns)) * rate
    g = tl.load(grad + row * columns + at, mask=keep, other=0.0).to(tl.float32)
    rounded = (g + through).to(tl.bfloat16)
    tl.store(out + row * columns + at, rounded, mask=keep)
    _write(tl.where(keep, rounded.to(tl.float32), 0.0), keep, at, values, scale, row, columns)


@triton.jit
def _gate(x):
    # ½ (1 + tanh(√(2/π) (x + 0.044715 x³))): these kernels compute as much as they read, and erf would cost twice that
    return tl.sigmoid(x * (1.5957691216057308 + 0.07135481627260025 * x * x))


@triton.jit
def _slope(x):
    gate = _gate(x)
    return gate + gate * (1.0 - gate) * x * (1.5957691216057308 + 0.21406444881780073 * x * x)


@triton.jit
def _activated(hidden, grad, start, at, columns, BACK: tl.constexpr):
    keep = at < columns
    x = tl.load(hidden + start + at, mask=keep, other=0.0).to(tl.float32)
    y = x * _gate(x)
    if BACK:
        y = tl.load(grad + start + at, mask=keep, other=0.0).to(tl.float32) * _slope(x)
    return y


@triton.jit
def _gelu(hidden, grad, values, scale, columns, BACK: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start, at = row * columns, tl.arange(0, BLOCK)
    a = _activated(hidden, grad, start, at, columns, BACK)
    top = tl.max(tl.abs(a), 0)
    if PARTS == 3:
        b = _activated(hidden, grad, start, at + BLOCK, columns, BACK)
        c = _activated(hidden, grad, start, at + 2 * BLOCK, columns, BACK)
        top = tl.maximum(top, tl.maximum(tl.max(tl.abs(b), 0), tl.max(tl.abs(c), 0)))
    top = tl.maximum(top, 1e-12)
    factor = 448.0 / top
    tl.store(scale + row, top / 448.0)
    tl.store(values + start + at, (a * factor).to(tl.float8e4nv), mask=at < columns)
    if PARTS == 3:
        tl.store(values + start + at + BLOCK, (b * factor).to(tl.float8e4nv))
        tl.store(values + start + at + 2 * BLOCK, (c * factor).to(tl.float8e4nv))


@triton.jit
def _load_heads(part, image, token, d, image_step, head_step, token_step, at, keep):
    place = image * image_step + token * token_step + (at // d) * head_step + at % d
    return tl.load(part + place, mask=keep, other=0.0).to(tl.float32)


@triton.jit
def _join(
    q,
    k,
    v,
    values,
    scale,
    tokens,
    width,
    d,
    q_image,
    q_head,
    q_token,
    k_image,
    k_head,
    k_token,
    v_image,
    v_head,
    v_token,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    image, token = row // tokens, row % tokens
    at = tl.arange(0, BLOCK)
    keep = at < width
    a = _load_heads(q, image, token, d, q_image, q_head, q_token, at, keep)
    b = _load_heads(k, image, token, d, k_image, k_head, k_token, at, keep)
    c = _load_heads(v, image, token, d, v_image, v_head, v_token, at, keep)
    top = tl.maximum(tl.max(tl.abs(a), 0), tl.maximum(tl.max(tl.abs(b), 0), tl.max(tl.abs(c), 0)))
    top = tl.maximum(top, 1e-12)
    tl.store(scale + row, top / 448.0)
    factor = 448.0 / top
    start = values + row * 3 * width + at
    tl.store(start, (a * factor).to(tl.float8e4nv), mask=keep)
    tl.store(start + width, (b * factor).to(tl.float8e4nv), mask=keep)
    tl.store(start + 2 * width, (c * factor).to(tl.float8e4nv), mask=keep)


def _room(like: Tensor, count: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return space for quantised rows and their scales."""
    values = torch.empty(count, columns, dtype=torch.float8_e4m3fn, device=like.device)
    return values, torch.empty(count, 1, dtype=torch.float32, device=like.device)


def _form(columns: int) -> dict[str, int]:
    """Return how a program covers one row."""
    block = triton.next_power_of_2(columns)
    return {"BLOCK": block, "num_warps": max(1, min(8, block // 512))}


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of x [R, N] as e4m3 and their scales."""
    x, (values, scale) = x.contiguous(), _room(x, *x.shape)
    _quantise[(len(x),)](x, values, scale, x.shape[1], **_form(x.shape[1]))
    return values, scale


def normed(z: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the layer norm of the rows of z, quantised."""
    values, scale = _room(z, *z.shape)
    _norm[(len(z),)](z, z, weight, bias, z, values, scale, z.shape[1], eps, ADD=False, **_form(z.shape[1]))
    return values, scale


def added_and_normed(
    z: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z + branch, and its layer norm quantised."""
    (values, scale), total = _room(z, *z.shape), torch.empty_like(z)
    _norm[(len(z),)](*(z, branch, weight, bias, total, values, scale, z.shape[1], eps), ADD=True, **_form(z.shape[1]))
    return total, values, scale


def norm_backward(
    grad: Tensor, to_normed: Tensor, z: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return grad plus the gradient through the layer norm of z, also quantised."""
    (values, scale), out = _room(z, *z.shape), torch.empty_like(z)
    _norm_backward[(len(z),)](
        *(grad.contiguous(), to_normed, z, weight, out, values, scale, z.shape[1], eps), **_form(z.shape[1])
    )
    return out, values, scale


def gelu(hidden: Tensor, grad: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the activation of the rows of `hidden`, or the gradient of its input if there is one, quantised."""
    values, scale = _room(hidden, *hidden.shape)
    columns = hidden.shape[1]
    third, rest = divmod(columns, 3)
    # a row in three pieces of a power of two wastes no lanes, and the usual widths are such
    parts, block = (3, third) if not rest and third & (third - 1) == 0 else (1, triton.next_power_of_2(columns))
    _gelu[(len(hidden),)](
        *(hidden, hidden if grad is None else grad, values, scale, columns),
        BACK=grad is not None,
        PARTS=parts,
        BLOCK=block,
        num_warps=max(1, min(8, block // 256)),
    )
    return values, scale


def joined(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return three parts [N, heads, T, d] side by side, a row per token, quantised."""
    count, heads, tokens, d = query.shape
    parts = [part if part.stride(-1) == 1 else part.contiguous() for part in (query, key, value)]
    steps = [part.stride(side) for part in parts for side in range(3)]
    values, scale = _room(query, count * tokens, 3 * heads * d)
    _join[(count * tokens,)](*parts, values, scale, tokens, heads * d, d, *steps, **_form(heads * d))
    return values, scale
