"""Triton kernels of `convolved.py`: convolution, ReLU and pooling in one.

A convolution is a matrix product whose left side, the patches of the images, is read from the images as it is needed,
and never stored. Numbers of a patch lie row by row, and channels last. A byte for every result says which pixel of its
window gave it, and CLOSED if the ReLU let nothing through.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from promptfed.core.kernels.tiles import Cut

CLOSED = tl.constexpr(4)


@triton.jit
def pixel(row, wide, area):
    """Return image, row and column of pixels that are numbered through all images of a client."""
    inside = row % area
    return row // area, inside // wide, inside % wide


@triton.jit
def _convolved(
    x,
    filters,
    bias,
    out,
    code,
    each,
    of_client,
    of_image,
    of_channel,
    of_row,
    of_column,
    high,
    wide,
    outputs,
    CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr,
    POOL: tl.constexpr,
    ROWS: tl.constexpr,
    NUMBERS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    client, count = tl.program_id(1).to(tl.int64), KERNEL * KERNEL * CHANNELS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    image, down, across = pixel(row, wide, high * wide)
    real, used = row < each * high * wide, output < outputs
    start = x + client * of_client + image * of_image + down * POOL * of_row + across * POOL * of_column
    filters += client * outputs * count + output[None, :] * count
    first = tl.zeros([ROWS, OUTPUTS], tl.float32)
    second, third, fourth = first, first, first
    for begin in range(0, count, NUMBERS):
        number = begin + tl.arange(0, NUMBERS)
        within = number // CHANNELS
        offset = number % CHANNELS * of_channel + within // KERNEL * of_row + within % KERNEL * of_column
        places, keep = start[:, None] + offset[None, :], real[:, None] & (number < count)[None, :]
        b = tl.load(filters + number[:, None], mask=(number < count)[:, None] & used[None, :], other=0.0)
        first = tl.dot(tl.load(places, mask=keep, other=0.0), b, first, input_precision=PRECISION)
        if POOL == 2:
            a = tl.load(places + of_column, mask=keep, other=0.0)
            second = tl.dot(a, b, second, input_precision=PRECISION)
            a = tl.load(places + of_row, mask=keep, other=0.0)
            third = tl.dot(a, b, third, input_precision=PRECISION)
            a = tl.load(places + of_row + of_column, mask=keep, other=0.0)
            fourth = tl.dot(a, b, fourth, input_precision=PRECISION)
    own = tl.load(bias + client * outputs + output, mask=used, other=0.0)[None, :]
    best, which = first + own, tl.zeros([ROWS, OUTPUTS], tl.int8)
    if POOL == 2:
        best, which = _larger(best, which, second + own, 1)
        best, which = _larger(best, which, third + own, 2)
        best, which = _larger(best, which, fourth + own, 3)
    closed = best <= 0.0  # what is not a number goes through, so that it is noticed
    place = (client * each * high * wide + row[:, None]) * outputs + output[None, :]
    tl.store(out + place, tl.where(closed, 0.0, best), mask=real[:, None] & used[None, :])
    tl.store(code + place, tl.where(closed, CLOSED, which).to(tl.int8), mask=real[:, None] & used[None, :])


@triton.jit
def _larger(best, which, other, number):
    better = (other > best) | (other != other)
    return tl.where(better, other, best), tl.where(better, number, which).to(tl.int8)


def precision() -> str:
    """Return what products are rounded to."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def block(count: int, most: int) -> int:
    """Return a power of two for so many channels; a program does no more than `most`."""
    return min(most, max(16, 1 << (count - 1).bit_length()))


def convolved(x: Tensor, filters: Tensor, bias: Tensor, pool: int, tile: Cut, most: int = 64) -> tuple[Tensor, Tensor]:
    """Convolve, pool windows of pool × pool and cut at zero: x [C, B, I, H, W], filters [C, O, k, k, I], bias [C, O].

    Returns [C, B, H', W', O] and the same in bytes, which say where it came from.
    """
    (clients, each, channels), (outputs, kernel) = x.shape[:3], filters.shape[1:3]
    high, wide = ((side - kernel + 1) // pool for side in x.shape[3:])
    out = x.new_empty(clients, each, high, wide, outputs)
    code = torch.empty_like(out, dtype=torch.int8)
    width = block(outputs, most)
    programs = triton.cdiv(each * high * wide, tile.rows), clients, triton.cdiv(outputs, width)
    _convolved[programs](
        *(x, filters, bias, out, code, each, *x.stride(), high, wide, outputs),
        CHANNELS=channels,
        KERNEL=kernel,
        POOL=pool,
        ROWS=tile.rows,
        NUMBERS=tile.numbers,
        OUTPUTS=width,
        PRECISION=precision(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out, code
