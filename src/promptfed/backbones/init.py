"""Fresh weights in PyTorch's own distributions, drawn from a keyed generator."""

import math
import os
from functools import cache

import torch

from promptfed.core.tree import Tree


def check_size(size: int) -> None:
    """Refuse a tensor of more bytes than the machine has, before any of it is allocated."""
    if size > machine_bytes():
        raise MemoryError(f"one of its weights has {size / 1e9:,.1f} GB")


@cache
def machine_bytes() -> float:
    """Return the machine's memory in bytes, or infinity where it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # on Windows
        return math.inf


def affine(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tree:
    """Return `name.weight` of `shape` and `name.bias`, both uniform in ±1/sqrt(fan in)."""
    check_size(4 * math.prod(shape))
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    weight = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(shape[0]).uniform_(-bound, bound, generator=generator)
    return {f"{name}.weight": weight, f"{name}.bias": bias}
