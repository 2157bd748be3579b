"""Triton kernels of `patches.py`: patches out of images, and back into them, without copies in between."""

import triton
import triton.language as tl
from torch import Tensor

PIXELS = 16  # that a program does
NUMBERS = 128  # of each pixel's patch that a program does


@triton.jit
def _columns(
    x,
    out,
    each,
    of_client,
    of_image,
    of_channel,
    of_row,
    of_column,
    length,
    width,
    row,
    CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr,
    PIXELS: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)[:, None]
    number = tl.program_id(2) * NUMBERS + tl.arange(0, NUMBERS)[None, :]
    within = number // CHANNELS  # a patch lies row by row, and channels last
    down, across = pixel // width + within // KERNEL, pixel % width + within % KERNEL
    place = image // each * of_client + image % each * of_image
    place += number % CHANNELS * of_channel + down * of_row + across * of_column
    keep = (pixel < length) & (number < KERNEL * KERNEL * CHANNELS)
    value = tl.load(x + place, mask=keep, other=0.0) + (number == KERNEL * KERNEL * CHANNELS)
    tl.store(out + (image * length + pixel) * row + number, value, mask=(pixel < length) & (number < row))


@triton.jit
def _overlapped(
    patches,
    out,
    high,
    wide,
    height,
    width,
    row,
    CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr,
    PIXELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)[:, None]
    channel = tl.arange(0, BLOCK)[None, :]
    keep = (pixel < height * width) & (channel < CHANNELS)
    total = tl.zeros([PIXELS, BLOCK], tl.float32)
    for number in range(KERNEL * KERNEL):
        down, across = pixel // width - number // KERNEL, pixel % width - number % KERNEL
        inside = keep & (down >= 0) & (down < high) & (across >= 0) & (across < wide)
        place = ((image * high + down) * wide + across) * row + number * CHANNELS + channel
        total += tl.load(patches + place, mask=inside, other=0.0)
    tl.store(out + (image * height * width + pixel) * CHANNELS + channel, total, mask=keep)


def columns(x: Tensor, kernel: int, aligned: int) -> Tensor:
    """Every k×k patch as a row, then a one: x [C, B, I, H, W] -> [C, B·H'·W', k·k·I + 1], filled up to aligned rows."""
    clients, each, channels = x.shape[:3]
    high, wide = (side - kernel + 1 for side in x.shape[3:])
    row = triton.cdiv(kernel * kernel * channels + 1, aligned) * aligned
    out = x.new_empty(clients, each * high * wide, row)
    programs = clients * each, triton.cdiv(high * wide, PIXELS), triton.cdiv(row, NUMBERS)
    _columns[programs](
        *(x, out, each, *x.stride(), high * wide, wide, row),
        CHANNELS=channels,
        KERNEL=kernel,
        PIXELS=PIXELS,
        NUMBERS=NUMBERS,
    )
    return out


def overlapped(patches: Tensor, shape: tuple[int, ...], kernel: int) -> Tensor:
    """Add up patches [C, B·H'·W', k·k·I + …] where they lie in images of shape [C, B, I, H, W]: [C, B, H, W, I]."""
    clients, each, channels, height, width = shape
    out = patches.new_empty(clients, each, height, width, channels)
    programs = clients * each, triton.cdiv(height * width, PIXELS)
    _overlapped[programs](
        *(patches, out, height - kernel + 1, width - kernel + 1, height, width, patches.shape[-1]),
        CHANNELS=channels,
        KERNEL=kernel,
        PIXELS=PIXELS,
        BLOCK=triton.next_power_of_2(channels),
    )
    return out
