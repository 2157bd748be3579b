"""Triton kernels of attention in bf16 between the 8-bit products of `float8.py`.

One program does one head of one image, all of whose keys fit on the chip. Queries, keys and values are read from the
rows that one product gave, [images · tokens, 3 · heads · d], and their gradients are written as such rows.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH = 64  # of a head
LONGEST = 256  # tokens whose keys, values and gradients of both fit on the chip
LOG2_E = 1.4426950408889634


@triton.jit
def _read(of_head, step, start, tokens, SIZE: tl.constexpr, D: tl.constexpr):
    """Return some tokens' numbers of a head [SIZE, D], zero beyond the last token."""
    at = start + tl.arange(0, SIZE)
    return tl.load(of_head + at[:, None] * step + tl.arange(0, D)[None, :], mask=(at < tokens)[:, None], other=0.0)


@triton.jit
def _put(of_head, step, start, tokens, numbers, SIZE: tl.constexpr, D: tl.constexpr):
    at = start + tl.arange(0, SIZE)
    place = of_head + at[:, None] * step + tl.arange(0, D)[None, :]
    tl.store(place, numbers.to(of_head.dtype.element_ty), mask=(at < tokens)[:, None])


@triton.jit
def _attend(
    qkv,
    out,
    norms,
    scale,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    SOME: tl.constexpr,
    ALL: tl.constexpr,
):
    program, width = tl.program_id(0), HEADS * D
    first, inside = (program // HEADS).to(tl.int64) * TOKENS, program % HEADS * D
    queries = qkv + first * 3 * width + inside
    k = _read(queries + width, 3 * width, 0, TOKENS, ALL, D)
    v = _read(queries + 2 * width, 3 * width, 0, TOKENS, ALL, D)
    real = tl.arange(0, ALL)[None, :] < TOKENS
    for start in range(0, TOKENS, SOME):
        q = _read(queries, 3 * width, start, TOKENS, SOME, D)
        scores = tl.where(real, tl.dot(q, tl.trans(k)), float("-inf"))
        top = tl.max(scores, 1) * scale
        shares = tl.exp2(scores * scale - top[:, None])
        total = tl.sum(shares, 1)
        mixed = tl.dot(shares.to(tl.bfloat16), v) / total[:, None]
        _put(out + first * width + inside, width, start, TOKENS, mixed, SOME, D)
        at = start + tl.arange(0, SOME)
        tl.store(norms + program * TOKENS + at, top + tl.log2(total), mask=at < TOKENS)


@triton.jit
def _attend_backward(
    qkv,
    grad,
    norms,
    to_qkv,
    scale,
    factor,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    SOME: tl.constexpr,
    ALL: tl.constexpr,
):
    program, width = tl.program_id(0), HEADS * D
    first, inside = (program // HEADS).to(tl.int64) * TOKENS, program % HEADS * D
    queries, to_queries = qkv + first * 3 * width + inside, to_qkv + first * 3 * width + inside
    k = _read(queries + width, 3 * width, 0, TOKENS, ALL, D)
    v = _read(queries + 2 * width, 3 * width, 0, TOKENS, ALL, D)
    to_k = tl.zeros([ALL, D], tl.float32)
    to_v = tl.zeros([ALL, D], tl.float32)
    for start in range(0, TOKENS, SOME):
        q = _read(queries, 3 * width, start, TOKENS, SOME, D)
        g = _read(grad + first * width + inside, width, start, TOKENS, SOME, D)
        at = start + tl.arange(0, SOME)
        norm = tl.load(norms + program * TOKENS + at, mask=at < TOKENS, other=0.0)
        # a share is at most 1; what keys beyond the last get is not stored, and does nothing, as they are zero
        shares = tl.exp2(tl.minimum(tl.dot(k, tl.trans(q)) * scale - norm[None, :], 0.0))
        to_shares = tl.dot(v, tl.trans(g))
        mean = tl.sum(shares * to_shares, 0)
        to_v += tl.dot(shares.to(tl.bfloat16), g)
        to_scores = (shares * (to_shares - mean[None, :])).to(tl.bfloat16)
        to_k += tl.dot(to_scores, q)
        to_q = tl.trans(tl.dot(tl.trans(k), to_scores))
        _put(to_queries, 3 * width, start, TOKENS, to_q * factor, SOME, D)
    _put(to_queries + width, 3 * width, 0, TOKENS, to_k * factor, ALL, D)
    _put(to_queries + 2 * width, 3 * width, 0, TOKENS, to_v, ALL, D)


@cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


def fit(qkv: Tensor, heads: int, tokens: int) -> bool:
    """Say whether these kernels can do attention of so many heads and tokens: their sizes are those of one chip."""
    return tokens <= LONGEST and qkv.shape[1] == 3 * heads * WIDTH and _is_hopper(qkv.device)


def _form(qkv: Tensor, heads: int, tokens: int) -> tuple[tuple[int], dict[str, int]]:
    """Return the programs, and what they need to know."""
    block = max(WIDTH, triton.next_power_of_2(tokens))
    return (len(qkv) // tokens * heads,), {"TOKENS": tokens, "HEADS": heads, "D": WIDTH, "ALL": block}


def attend(qkv: Tensor, heads: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Return what every token gathers [B · T, heads · d] in e4m3, and the logarithms (base 2) of its shares' sums."""
    programs, constants = _form(qkv, heads, tokens)
    out = qkv.new_empty(len(qkv), heads * WIDTH, dtype=torch.float8_e4m3fn)
    norms = torch.empty(len(qkv) * heads, dtype=torch.float32, device=qkv.device)
    scale = LOG2_E * WIDTH**-0.5
    how = {"num_warps": 4, "num_stages": 1, "maxnreg": 168}  # few enough that a processor holds three programs
    _attend[programs](qkv, out, norms, scale, SOME=64, **constants, **how)
    return out, norms


def attend_backward(qkv: Tensor, grad: Tensor, norms: Tensor, heads: int, tokens: int) -> Tensor:
    """Return the gradient of qkv [B · T, 3 · heads · d], given that of what `attend` returned."""
    programs, constants = _form(qkv, heads, tokens)
    out, factor = torch.empty_like(qkv), WIDTH**-0.5
    _attend_backward[programs](
        *(qkv, grad, norms, out, LOG2_E * factor, factor),
        **({"SOME": 32} | constants),
        num_warps=8,
        num_stages=3,
    )
    return out
