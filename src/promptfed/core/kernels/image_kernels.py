"""Triton kernels of images that lie channels last: bytes to normalised numbers, and those to patches."""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 4096  # of an image that a program normalises


@triton.jit
def _normalised(images, index, scale, shift, out, length, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    keep = at < length
    chosen = images + tl.load(index + row).to(tl.int64) * length
    value = tl.load(chosen + at, mask=keep, other=0).to(tl.float32)
    channel = at % CHANNELS
    tl.store(out + row * length + at, value * tl.load(scale + channel) + tl.load(shift + channel), mask=keep)


@triton.jit
def _patches(images, out, high, wide, SIDE: tl.constexpr, LINE: tl.constexpr, BLOCK: tl.constexpr):
    image = tl.program_id(0).to(tl.int64)
    down, across = tl.program_id(1) // wide, tl.program_id(1) % wide
    at = tl.arange(0, BLOCK)
    keep = at < SIDE * LINE
    place = ((image * high + down) * SIDE + at // LINE) * wide * LINE + across * LINE + at % LINE
    value = tl.load(images + place, mask=keep, other=0.0)
    first = (image * high * wide + tl.program_id(1)) * SIDE * LINE
    tl.store(out + first + at, value.to(tl.bfloat16), mask=keep)


def normalised(images: Tensor, index: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return the chosen ones of images [N, H, W, C], which are bytes, times `scale` plus `shift` [C]: [M, H, W, C]."""
    out = torch.empty(len(index), *images.shape[1:], device=images.device)
    length = images[0].numel()
    programs, constants = (len(index), triton.cdiv(length, NUMBERS)), {"CHANNELS": images.shape[-1], "NUMBERS": NUMBERS}
    _normalised[programs](images, index.contiguous(), scale, shift, out, length, **constants)
    return out


def patches(images: Tensor, side: int) -> Tensor:
    """Return square patches of images [N, H, W, C] in bf16, row by row, channels last: [N, patches, side² · C]."""
    count, height, width, channels = images.shape
    high, wide, length = height // side, width // side, side * side * channels
    out = torch.empty(count, high * wide, length, dtype=torch.bfloat16, device=images.device)
    constants = {"SIDE": side, "LINE": side * channels, "BLOCK": triton.next_power_of_2(length)}
    _patches[count, high * wide](images, out, high, wide, **constants, num_warps=2)
    return out
