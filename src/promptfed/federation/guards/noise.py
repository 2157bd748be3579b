"""Gaussian noise: on every client's own answer before it leaves (local), or on the mean of all answers (central).

Both follow a clip to `clip`. Keyed noise is a function of the seed, the client and the round, so that a resumed run is
exact; whoever knows the seed can take it off again. A real deployment draws from the operating system.
"""

import math
import os
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from promptfed.core import keys, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.federation.guards.guard import Guard, Handed

Entropy = Literal["keyed", "system"]


@dataclass(frozen=True)
class LocalNoise(Guard):
    """Add noise of deviation `noise` × `clip` to each client's answer, on the client, before it is sent."""

    name: ClassVar[str] = "noise"
    side: ClassVar[Literal["client", "server"]] = "client"

    clip: float
    noise: float
    seed: int
    entropy: Entropy = "keyed"

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Give every client its own noise."""
        _refuse_whole_numbers(up)
        scale, who = self.noise * self.clip, clients.reshape(-1).tolist()

        def noisy(name: str, value: Tensor) -> Tensor:
            shape = tuple(value.shape[clients.ndim :])
            rows = [keys.key(self.seed, "noise", client, round, name) for client in who]
            return value + scale * _draw(rows, shape, self.entropy, value).reshape(value.shape)

        return clients, {name: noisy(name, value) for name, value in up.items()}, weights


@dataclass(frozen=True)
class CentralNoise(Guard):
    """Add noise of deviation `noise` × `clip` to the sum of all answers, on a server that clients trust."""

    name: ClassVar[str] = "noise"
    side: ClassVar[Literal["client", "server"]] = "server"
    leaves: ClassVar[Literal["rows", "mean"]] = "mean"

    clip: float
    noise: float
    seed: int
    entropy: Entropy = "keyed"

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Hand over the noisy mean as one row; the sum's noise, divided by the number of clients, is the mean's."""
        _refuse_whole_numbers(up)
        scale = self.noise * self.clip / len(clients)

        def noisy(name: str, value: Tensor) -> Tensor:
            row = [keys.key(self.seed, "noise", "server", round, name)]
            return value + scale * _draw(row, tuple(value.shape), self.entropy, value)[0]

        mean = {name: noisy(name, value) for name, value in tree.mean(up, weights).items()}
        return clients, tree.repeat(mean, 1), weights.sum().unsqueeze(0)


def _refuse_whole_numbers(up: Tree) -> None:
    """Refuse to round noise to whole numbers, which would let most of them through as they are."""
    for name, value in up.items():
        if not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise PromptFedError(
                f'guards.noise cannot hide "{name}", which clients send as {kind}; send it as float32.'
            )


def _draw(rows: list[int], shape: tuple[int, ...], entropy: Entropy, like: Tensor) -> Tensor:
    """Return standard normal numbers [rows, *shape], of the type and on the device of `like`."""
    if entropy == "system":
        return torch.from_numpy(system_normal((len(rows), *shape))).to(like)
    return keys.normal(torch.tensor(rows, device=like.device), shape).to(like)


def system_normal(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return standard normal numbers from the operating system's entropy, by Box and Muller's rule."""
    count = math.prod(shape)
    whole = np.frombuffer(os.urandom(16 * count), np.uint64) >> np.uint64(11)
    uniform = (whole.astype(np.float64) + 0.5) * 2.0**-53
    normal: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.sqrt(-2 * np.log(uniform[:count])) * np.cos(
        2 * np.pi * uniform[count:]
    )
    return normal.reshape(shape)
