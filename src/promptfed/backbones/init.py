"""Fresh weights in PyTorch's own distributions, drawn from a keyed generator."""

import math

import torch

from promptfed.core import memory
from promptfed.core.tree import Tree


def affine(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tree:
    """Return `name.weight` of `shape` and `name.bias`, both uniform in ±1/sqrt(fan in)."""
    memory.require(4 * math.prod(shape))
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    weight = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(shape[0]).uniform_(-bound, bound, generator=generator)
    return {f"{name}.weight": weight, f"{name}.bias": bias}
