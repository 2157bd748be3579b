"""Triton kernels of hashed numbers and of dropout: the same bits as the plain operations, in one pass over memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

PAIRS = 512  # of numbers that a program makes
PIXELS, CHANNELS = 64, 32  # that a program drops from


@triton.jit
def _uniform(keys, out, count, GAMMA: tl.constexpr, MIX1: tl.constexpr, MIX2: tl.constexpr, PAIRS: tl.constexpr):
    row, pair = tl.program_id(1).to(tl.int64), (tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)).to(tl.int64)
    mixed = tl.load(keys + row) + (pair + 1) * GAMMA
    mixed = (mixed ^ ((mixed >> 30) & 0x3FFFFFFFF)) * MIX1
    mixed = (mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)) * MIX2
    mixed = mixed ^ ((mixed >> 31) & 0x1FFFFFFFF)
    both = tl.interleave((mixed >> 8) & 0xFFFFFF, (mixed >> 40) & 0xFFFFFF)
    at = tl.program_id(0) * PAIRS * 2 + tl.arange(0, PAIRS * 2)
    tl.store(out + row * count + at, both.to(tl.int32).to(tl.float32) * 5.9604644775390625e-08, mask=at < count)


@triton.jit
def _dropped(
    x,
    noise,
    out,
    rate,
    scale,
    channels,
    pixels,
    of_row,
    of_channel,
    of_pixel,
    to_row,
    to_channel,
    to_pixel,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)[None, :]
    keep = (channel < channels) & (pixel < pixels)
    drawn = tl.load(noise + row * channels * pixels + channel * pixels + pixel, mask=keep, other=0.0)
    value = tl.load(x + row * of_row + channel * of_channel + pixel * of_pixel, mask=keep, other=0.0)
    value = value * tl.where(drawn >= rate, scale, 0.0)
    tl.store(out + row * to_row + channel * to_channel + pixel * to_pixel, value, mask=keep)


def uniform(keys: Tensor, count: int, constants: tuple[int, int, int]) -> Tensor:
    """Return so many numbers in [0, 1) for every key: keys [...] -> [..., count]."""
    flat = keys.reshape(-1)
    out = torch.empty(len(flat), count, device=keys.device)
    gamma, first, second = constants
    _uniform[triton.cdiv(count, 2 * PAIRS), len(flat)](
        *(flat, out, count), GAMMA=gamma, MIX1=first, MIX2=second, PAIRS=PAIRS
    )
    return out.view(*keys.shape, count)


def dropped(x: Tensor, noise: Tensor, rate: float, out: Tensor) -> Tensor:
    """Write x [N, O, P] to `out`, of the same shape, without what `noise` [N, O·P] drops; both lie in any order."""
    rows, channels, pixels = x.shape
    programs = rows, triton.cdiv(pixels, PIXELS), triton.cdiv(channels, CHANNELS)
    if pixels == 1:  # plain rows
        x, out, channels, pixels, programs = x.mT, out.mT, 1, channels, (rows, triton.cdiv(channels, 1024), 1)
    _dropped[programs](
        *(x, noise, out, rate, 1 / (1 - rate), channels, pixels, *x.stride(), *out.stride()),
        PIXELS=PIXELS if channels > 1 else 1024,
        CHANNELS=CHANNELS if channels > 1 else 1,
    )
    return out
