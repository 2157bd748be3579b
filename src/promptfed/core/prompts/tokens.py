"""Prompts in token space: learned tokens beside a transformer's patches."""

import math

import torch
from torch import Tensor

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

PATCH = 16  # the side of a patch in VPT's bound, whatever the network's own patch is


def init_tokens(width: int, count: int, generator: torch.Generator) -> Tree:
    """Return `count` tokens, N(0, 0.02²), the scale of a transformer's own embeddings."""
    if count < 1:
        raise PromptFedError(f"{count} prompt tokens were asked for; at least 1 is needed.")
    return {"tokens": 0.02 * torch.randn(count, width, generator=generator)}


def init_prompt(width: int, count: int, generator: torch.Generator, layers: int | None = None) -> Tensor:
    """Return `count` tokens [K, D], or as many for every layer [layers, K, D], uniform in ±v as in VPT.

    v = √(6 / (3·16² + D)): Xavier's bound of the patch embedding of a ViT-B/16, 0.0625 for its width of 768.
    """
    if count < 1:
        raise PromptFedError(f"{count} prompt tokens were asked for; at least 1 is needed.")
    bound = math.sqrt(6 / (3 * PATCH**2 + width))
    shape = (count, width) if layers is None else (layers, count, width)
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
