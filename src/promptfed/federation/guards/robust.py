"""Robust aggregation: a few poisoned answers do not decide where the server goes.

Every client counts once here: a poisoned one may lie about how much data it has.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.tree import Tree
from promptfed.federation.guards.guard import Guard, Handed, changes, norms, shortened


@dataclass(frozen=True)
class TrimmedMean(Guard):
    """Leave out the share `trim` at either end of every number, and average the rest (Yin et al. ICML 2018)."""

    name: ClassVar[str] = "trimmed-mean"
    side: ClassVar[Literal["client", "server"]] = "server"
    leaves: ClassVar[Literal["rows", "mean"]] = "mean"

    trim: float

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Hand over one row."""
        count = trimmed(len(clients), self.trim)
        kept = tree.map(lambda value: value.sort(0).values[count : len(clients) - count].mean(0, keepdim=True), up)
        return clients, kept, torch.ones_like(weights[:1])


def trimmed(clients: int, trim: float) -> int:
    """Return how many clients are left out at either end; at least one stays."""
    return min(int(clients * trim + 1e-9), (clients - 1) // 2)


@dataclass(frozen=True)
class Median(Guard):
    """Take the median of every number (Yin et al. ICML 2018); of an even number of clients, the middle of the two."""

    name: ClassVar[str] = "median"
    side: ClassVar[Literal["client", "server"]] = "server"
    leaves: ClassVar[Literal["rows", "mean"]] = "mean"

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Hand over one row."""
        return TrimmedMean(0.5)(round, clients, down, up, weights)


@dataclass(frozen=True)
class Krum(Guard):
    """Keep the `keep` answers closest to their neighbours, with `byzantine` poisoned ones (Blanchard et al. 2017)."""

    name: ClassVar[str] = "krum"
    side: ClassVar[Literal["client", "server"]] = "server"

    byzantine: int
    keep: int = 1

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Hand over the kept rows, in their order; the score of a row is the sum over its C − f − 2 nearest others."""
        flat = torch.cat([value.reshape(len(clients), -1) for value in changes(down, up).values()], 1)
        # a difference at a time: the faster ‖a‖² + ‖b‖² − 2ab loses near neighbours beside one that is far off
        distance = torch.stack([(flat - row).square().sum(1) for row in flat])
        others = distance.sort(1).values[:, 1:]  # the nearest of all is the row itself
        score = others[:, : len(clients) - self.byzantine - 2].sum(1)
        kept = score.argsort(stable=True)[: self.keep].sort().values
        return clients[kept.to(clients.device)], tree.rows(up, kept), torch.ones_like(weights[kept.to(weights.device)])


@dataclass(frozen=True)
class NormBound(Guard):
    """Scale changes longer than `bound` down to it, on the server (Sun et al. 2019); 0: the round's median length."""

    name: ClassVar[str] = "norm-bound"
    side: ClassVar[Literal["client", "server"]] = "server"

    bound: float = 0.0

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Hand over all rows; what is not finite counts as no change."""
        up = {name: value.where(value.isfinite(), down.get(name, value.new_zeros(()))) for name, value in up.items()}
        bound: float | Tensor = self.bound
        if not self.bound:
            bound = norms(clients, changes(down, up)).quantile(0.5)
        return clients, shortened(clients, down, up, bound), torch.ones_like(weights)
