"""Clipping: no client moves the server by more than a fixed length."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core.tree import Tree
from promptfed.federation.guards.guard import Guard, Handed, shortened


@dataclass(frozen=True)
class Clip(Guard):
    """Scale a client's whole change down to length `bound`, on the client."""

    name: ClassVar[str] = "clip"
    side: ClassVar[Literal["client", "server"]] = "client"

    bound: float
    even: bool = False  # every client counts the same: with noise, how much data it has must not show either

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Clip all tensors together, as one vector."""
        weights = torch.ones_like(weights) if self.even else weights
        return clients, shortened(clients, down, up, self.bound), weights
