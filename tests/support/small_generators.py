"""pFedPG's generators by name, and servers so small that their prompts are worked out by hand."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from promptfed.core.tree import Tree
from support.toys import FrozenTokens, task

TASK = task(FrozenTokens())
BOTH = torch.arange(2)
LN3 = math.log(3)
GENERATORS: dict[str, dict[str, Any]] = {
    "cross-attention": {"generator": "cross-attention"},
    "cross-attention, zero out": {"generator": "cross-attention", "zero_out": True},
    "cross-attention, narrow": {"generator": "cross-attention", "width": 2},
    "cross-attention, each": {"generator": "cross-attention", "descriptor_tokens": "each"},
    "adain": {"generator": "adain"},
    "adain, each": {"generator": "adain", "descriptor_tokens": "each"},
    "mlp": {"generator": "mlp"},
    "mlp, each": {"generator": "mlp", "descriptor_tokens": "each"},
    "none": {"generator": "none"},
}


@dataclass(frozen=True)
class Tokens8(FrozenTokens):
    """Tokens of width 8, for what happens on the server alone."""

    token_width: ClassVar[int] = 8


def eye(*diagonal: float) -> Tensor:
    return torch.tensor(diagonal, dtype=torch.float32).diag()


def attending() -> Tree:
    """Return a server of two clients and two tokens of width 2: the first client asks for the first token."""
    return {
        "basis": eye(1, 1),
        "descriptor": torch.tensor([[[math.sqrt(2) * LN3, 0.0]], [[0.0, 0.0]]]),
        "query": eye(1, 1),
        "key": eye(1, 1),
        "value": eye(4, 8),
        "out": torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
    }


def single() -> Tree:
    """Return a server of two clients and one token of width 1, which gets all attention: P = b (1 + v o)."""
    numbers = {"basis": 2.0, "query": 5.0, "key": 7.0, "value": 3.0, "out": 0.5}
    return {name: torch.tensor([[x]]) for name, x in numbers.items()} | {"descriptor": torch.ones(2, 1, 1)}
