"""Which clients take part in a round."""

import torch
from torch import Tensor

from promptfed import keys


def choose(seed: int, round: int, clients: int, per_round: int) -> Tensor:  # noqa: A002
    """Return exactly `per_round` different clients in ascending order; all of them if `per_round` is 0."""
    if per_round in (0, clients):
        return torch.arange(clients)
    shuffled = torch.randperm(clients, generator=keys.generator(seed, "sampling", round))
    return shuffled[:per_round].sort().values
