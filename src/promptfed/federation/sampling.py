"""Which clients take part in a round."""

from collections.abc import Sequence

import torch
from torch import Tensor

from promptfed.core import keys


def choose(seed: int, round: int, clients: int, per_round: int, groups: Sequence[int] = ()) -> Tensor:  # noqa: A002
    """Return exactly `per_round` different clients in ascending order; all of them if `per_round` is 0.

    With `groups`, the group of each client, one client of every group is drawn instead.
    """
    if per_round in (0, clients):
        return torch.arange(clients)
    shuffled = in_order(seed, round, clients)
    if groups:
        first = {groups[client]: client for client in reversed(shuffled.tolist())}
        return torch.tensor(sorted(first.values()))
    return shuffled[:per_round].sort().values


def in_order(seed: int, round: int, clients: int) -> Tensor:  # noqa: A002
    """Return all clients in the order in which a round draws them."""
    return torch.randperm(clients, generator=keys.generator(seed, "sampling", round))
