"""Keyed randomness: every draw is a function of its key, so there is no hidden state to save or to share.

A key is made from (seed, purpose, client, round, …). `generator` serves what is drawn once on the host;
`uniform` and `normal` compute noise from keys by integer hashing, the same on every device and inside captured steps.
"""

import hashlib
import math

import torch
from torch import Tensor

from promptfed.core.kernels import gpus

# SplitMix64 (Steele, Lea, Flood 2014) in two's complement, since torch has no unsigned 64-bit arithmetic.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX2 = 0x94D049BB133111EB - 2**64


def key(*parts: int | str) -> int:
    """Hash the parts into one 63-bit number."""
    digest = hashlib.blake2b("\x1f".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """Return the host generator of this key."""
    return torch.Generator().manual_seed(key(*parts))


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Shift without copying the sign bit in."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def bits(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return 64 hashed bits per element: keys [...] -> int64 [..., *shape]."""
    count = math.prod(shape)
    index = torch.arange(1, count + 1, device=keys.device) * _GAMMA
    mixed = keys.unsqueeze(-1) + index
    mixed = (mixed ^ _shift_right(mixed, 30)) * _MIX1
    mixed = (mixed ^ _shift_right(mixed, 27)) * _MIX2
    return (mixed ^ _shift_right(mixed, 31)).reshape((*keys.shape, *shape))


def uniform(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return numbers in [0, 1): keys [...] -> float32 [..., *shape]; 64 hashed bits make two of them."""
    count = math.prod(shape)
    if gpus.runs_triton(keys):
        from promptfed.core.kernels import draw_kernels

        return draw_kernels.uniform(keys, count, (_GAMMA, _MIX1, _MIX2)).reshape((*keys.shape, *shape))
    halves = bits(keys, (-(-count // 2),)).view(torch.int32)[..., :count]
    return (((halves >> 8) & 0xFFFFFF).float() * 2.0**-24).reshape((*keys.shape, *shape))


def normal(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return standard normal numbers by Box and Muller's rule: keys [...] -> float32 [..., *shape]."""
    radius = uniform(keys, shape)
    angle = uniform(keys ^ _MIX1, shape)
    return (-2 * (1 - radius).log()).sqrt() * (2 * math.pi * angle).cos()
