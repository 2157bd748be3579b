"""Prompts before class names: context vectors in place of a text tower's words; images matched with them."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core.tree import Tree

SPREAD = 0.02  # of fresh context vectors, as in CoOp


def init_context(width: int, count: int, generator: torch.Generator, classes: int = 0) -> Tensor:
    """Return `count` vectors N(0, 0.02²) for all classes together [s, W], or for each its own [classes, s, W]."""
    shape = (classes, count, width) if classes else (count, width)
    return SPREAD * torch.randn(shape, generator=generator)


def match(features: Tensor, text: Tensor, scale: Tensor) -> Tensor:
    """Return the scaled cosines of image features [..., B, D] with unit text features [..., classes, D]."""
    return scale * F.normalize(features, dim=-1) @ text.mT


def match_each(features: Tensor, text: Tensor, scale: Tensor) -> Tensor:
    """Return scaled cosines [..., B, classes] where every image has text features of its own [..., B, classes, D]."""
    return match(features.unsqueeze(-2), text, scale).squeeze(-2)


def init_map(name: str, shape: tuple[int, int], generator: torch.Generator) -> Tree:
    """Return `name.weight` [out, in] and `name.bias` [out], uniform in ±1/√in: an adapter behind an image tower."""
    bound = 1 / math.sqrt(shape[1])
    weight = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    return {
        f"{name}.weight": weight,
        f"{name}.bias": torch.empty(shape[0]).uniform_(-bound, bound, generator=generator),
    }
