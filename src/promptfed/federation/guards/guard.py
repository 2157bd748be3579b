"""What a guard is: it stands between what a client sends and what the server makes of it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from promptfed.core.tree import Tree

Handed = tuple[Tensor, Tree, Tensor]
"""Clients, what they sent, and how much each counts: what the next guard, and at last the method, is handed."""


@dataclass(frozen=True)
class Guard:
    """The base of every guard: a value without state, and a pure function of one round.

    A guard on the client protects it: it knows only its own row, and works without the leading C (`clients` is then a
    number, `clients.shape` empty). A guard on the server sees all rows; one that leaves only their mean hands over a
    single row, with `clients` whole.
    """

    name: ClassVar[str]
    side: ClassVar[Literal["client", "server"]]
    leaves: ClassVar[Literal["rows", "mean"]] = "rows"

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Return (clients, up, weights) after the guard has done its work."""
        raise NotImplementedError


def changes(down: Tree, up: Tree) -> Tree:
    """Return how far each tensor moved since `down`, or the contribution itself where `down` has none of that name."""
    return {name: value - down[name] if name in down else value for name, value in up.items()}


def norms(clients: Tensor, change: Tree) -> Tensor:
    """Return the length of each client's whole change, in the shape of `clients`."""
    squares = [value.reshape(*clients.shape, -1).square().sum(-1) for value in change.values()]
    return sum(squares[1:], squares[0]).sqrt()


def shortened(clients: Tensor, down: Tree, up: Tree, bound: float | Tensor) -> Tree:
    """Return `up` with every client's change scaled down to length `bound`; one within it stays bit for bit."""
    change = changes(down, up)
    length = norms(clients, change)
    factor = bound / length

    def scaled(name: str) -> Tensor:
        ones = (1,) * (up[name].ndim - clients.ndim)
        moved = change[name] * factor.reshape(*clients.shape, *ones)
        whole = down[name] + moved if name in down else moved
        # a length that is not a number must not let the rest pass unchanged: everything becomes NaN
        return up[name].where((length <= bound).reshape(*clients.shape, *ones), whole)

    return {name: scaled(name) for name in up}
