"""Triton kernels beside 8-bit products: each reads a row once, computes in float32 and writes it, mostly as e4m3.

One program works on one row. Rows are numbered in 64 bits, as a large batch has more than 2³¹ numbers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

NORMED = 1024  # numbers of a row that a warp norms: it holds several times as many


@triton.jit
def _write(y, keep, at, values, scale, row, COLUMNS: tl.constexpr):
    top = tl.maximum(tl.max(tl.abs(y), 0), 1e-12)
    tl.store(scale + row, top / 448.0)
    tl.store(values + row * COLUMNS + at, (y * (448.0 / top)).to(tl.float8e4nv), mask=keep)


@triton.jit
def _quantise(x, values, scale, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    keep = at < COLUMNS
    y = tl.load(x + row * COLUMNS + at, mask=keep, other=0.0).to(tl.float32)
    _write(y, keep, at, values, scale, row, COLUMNS)


@triton.jit
def _norm(
    z, branch, weight, bias, total, values, scale, eps, ADD: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    keep = at < COLUMNS
    x = tl.load(z + row * COLUMNS + at, mask=keep, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(branch + row * COLUMNS + at, mask=keep, other=0.0).to(tl.float32)
    if ADD:
        rounded = x.to(tl.bfloat16)
        tl.store(total + row * COLUMNS + at, rounded, mask=keep)
        x = rounded.to(tl.float32)  # backward reads it back as it was stored
    centred = tl.where(keep, x - tl.sum(x, 0) / COLUMNS, 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / COLUMNS + eps)
    w = tl.load(weight + at, mask=keep, other=0.0)
    b = tl.load(bias + at, mask=keep, other=0.0)
    _write(centred * rate * w + b, keep, at, values, scale, row, COLUMNS)


@triton.jit
def _plain_norm(z, weight, bias, out, means, rates, eps, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    keep = at < COLUMNS
    x = tl.load(z + row * COLUMNS + at, mask=keep, other=0.0).to(tl.float32)
    w = tl.load(weight + at, mask=keep, other=0.0).to(tl.float32)
    b = tl.load(bias + at, mask=keep, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / COLUMNS
    centred = tl.where(keep, x - mean, 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / COLUMNS + eps)
    tl.store(means + row, mean)
    tl.store(rates + row, rate)
    tl.store(out + row * COLUMNS + at, (centred * rate * w + b).to(tl.bfloat16), mask=keep)


@triton.jit
def _in_order(first, prompts, patches, position, out, some, count, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    image, token = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    keep = at < COLUMNS
    if token == 0:
        x = tl.load(first + at, mask=keep, other=0.0)
    elif token <= some:
        x = tl.load(prompts + (image * some + token - 1) * COLUMNS + at, mask=keep, other=0.0)
    else:
        patch = token - 1 - some
        x = tl.load(patches + (image * count + patch) * COLUMNS + at, mask=keep, other=0.0).to(tl.float32)
        place = tl.load(position + patch * COLUMNS + at, mask=keep, other=0.0).to(tl.float32)
        x = (x + place).to(tl.bfloat16)
    tl.store(out + (image * (1 + some + count) + token) * COLUMNS + at, x, mask=keep)


@triton.jit
def _norm_backward(grad, inner, z, weight, out, values, scale, eps, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    keep = at < COLUMNS
    x = tl.load(z + row * COLUMNS + at, mask=keep, other=0.0).to(tl.float32)
    y = tl.load(inner + row * COLUMNS + at, mask=keep, other=0.0).to(tl.float32)
    g = tl.load(grad + row * COLUMNS + at, mask=keep, other=0.0)
    y *= tl.load(weight + at, mask=keep, other=0.0)
    centred = tl.where(keep, x - tl.sum(x, 0) / COLUMNS, 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / COLUMNS + eps)
    plain = centred * rate
    through = (y - tl.sum(y, 0) / COLUMNS - plain * (tl.sum(y * plain, 0) / COLUMNS)) * rate
    rounded = (g.to(tl.float32) + through).to(tl.bfloat16)
    tl.store(out + row * COLUMNS + at, rounded, mask=keep)
    _write(tl.where(keep, rounded.to(tl.float32), 0.0), keep, at, values, scale, row, COLUMNS)


@triton.jit
def _gate(x):
    # ½ (1 + tanh(√(2/π) (x + 0.044715 x³))): these kernels compute as much as they read, and erf would cost twice that;
    # a division that gets the last bit right would cost a third more
    over = 1.0 + tl.exp2(x * (-2.302208198144325 - 0.1029432395800235 * x * x))
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [over], tl.float32, is_pure=True, pack=1)


@triton.jit
def _gelu(hidden, grad, values, scale, BACK: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    keep = at < COLUMNS
    x = tl.load(hidden + row * COLUMNS + at, mask=keep, other=0.0).to(tl.float32)
    if BACK:
        y = tl.load(grad + row * COLUMNS + at, mask=keep, other=0.0).to(tl.float32)
        gate = _gate(x)
        y *= gate * (1.0 + (1.0 - gate) * (x * (1.5957691216057308 + 0.21406444881780073 * x * x)))
    else:
        y = x * _gate(x)
    _write(y, keep, at, values, scale, row, COLUMNS)


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


def _form(columns: int, each: int = 2048) -> dict[str, int]:
    """Return how a program covers one row: a warp does up to so many numbers, as warps wait for each other's sums."""
    block = triton.next_power_of_2(columns)
    return {"COLUMNS": columns, "BLOCK": block, "num_warps": max(1, min(8, block // each))}


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of x [R, N] as e4m3 and their scales."""
    x, (values, scale) = x.contiguous(), _room(x, *x.shape)
    _quantise[(len(x),)](x, values, scale, **_form(x.shape[1]))
    return values, scale


def normed(z: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the layer norm of the rows of z, quantised."""
    values, scale = _room(z, *z.shape)
    _norm[(len(z),)](z, z, weight, bias, z, values, scale, eps, ADD=False, **_form(z.shape[1], NORMED))
    return values, scale


def added_and_normed(
    z: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z + branch, and its layer norm quantised."""
    (values, scale), total = _room(z, *z.shape), torch.empty_like(z)
    _norm[(len(z),)](z, branch, weight, bias, total, values, scale, eps, ADD=True, **_form(z.shape[1], NORMED))
    return total, values, scale


def plain_norm(z: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the layer norm of z [..., N] in bf16, and what torch's gradient of it needs."""
    z, out = z.contiguous(), torch.empty_like(z, memory_format=torch.contiguous_format)
    mean, rate = (torch.empty(*z.shape[:-1], 1, dtype=torch.float32, device=z.device) for _ in range(2))
    _plain_norm[(mean.numel(),)](z, weight, bias, out, mean, rate, eps, **_form(z.shape[-1], NORMED))
    return out, mean, rate


def in_order(first: Tensor, prompts: Tensor, patches: Tensor, position: Tensor) -> Tensor:
    """Return [first, prompts, patches + their position] as one sequence in bf16, see `sequence.py`."""
    some, (images, count, width) = prompts.shape[1], patches.shape
    out = torch.empty(images, 1 + some + count, width, dtype=torch.bfloat16, device=patches.device)
    parts = (part.contiguous() for part in (first, prompts, patches, position))
    _in_order[images, 1 + some + count](*parts, out, some, count, **_form(width))
    return out


def norm_backward(
    grad: Tensor, to_normed: Tensor, z: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return grad plus the gradient through the layer norm of z, also quantised."""
    (values, scale), out = _room(z, *z.shape), torch.empty_like(z)
    _norm_backward[(len(z),)](
        *(grad.contiguous(), to_normed, z, weight, out, values, scale, eps), **_form(z.shape[1], NORMED)
    )
    return out, values, scale


def gelu(hidden: Tensor, grad: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the activation of the rows of `hidden`, or the gradient of its input if there is one, quantised."""
    values, scale = _room(hidden, *hidden.shape)
    second = hidden if grad is None else grad
    _gelu[(len(hidden),)](hidden, second, values, scale, BACK=grad is not None, **_form(hidden.shape[1]))
    return values, scale


def joined(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return three parts [N, heads, T, d] side by side, a row per token, quantised."""
    count, heads, tokens, d = query.shape
    parts = [part if part.stride(-1) == 1 else part.contiguous() for part in (query, key, value)]
    steps = [part.stride(side) for part in parts for side in range(3)]
    values, scale = _room(query, count * tokens, 3 * heads * d)
    block = triton.next_power_of_2(heads * d)
    form = {"BLOCK": block, "num_warps": max(1, min(8, block // 512))}
    _join[(count * tokens,)](*parts, values, scale, tokens, heads * d, d, *steps, **form)
    return values, scale
