"""The processes that share one run: `ALONE` is the only one of its run, `core.group` has those that are several.

All do the same, in the same order. Each trains and tests its part of the clients; the server's tree and the record of
rounds are known to all. What only one may do, such as writing the record and talking to people, the leader does.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

Value = TypeVar("Value")


class LostError(PromptFedError):
    """Another process of the run has ended, or no longer answers."""


@dataclass(frozen=True)
class Gathered:
    """Every process's tree and note, in the order of processes."""

    trees: list[Tree]
    notes: list[Any]
    everywhere: bool = True  # False: only the leader has numbers; the others have names, shapes and types


class Ranks:
    """One of the processes of a run; here the only one."""

    rank, size = 0, 1
    first_here = True  # of the processes on its machine
    alike = True  # the processes compute alike, to the last bit

    @property
    def leads(self) -> bool:
        """Say whether this process writes the record and talks to people."""
        return self.rank == 0

    def told(self, value: Value) -> list[Value]:
        """Return what every process says, in their order; all wait for each other."""
        return [value]

    def unanimous(self, value: object) -> bool:
        """Say whether all processes say the same, and that not None; without a word from one of them they do not."""
        return value is not None

    def together(self) -> AbstractContextManager[None]:
        """Let an error that ends the block in one process end it in all."""
        return nullcontext()

    def in_turn(self) -> AbstractContextManager[None]:
        """Let the first process of each machine through the block before the others of that machine."""
        return nullcontext()

    def check(self) -> None:
        """Raise KeyboardInterrupt if this process was asked to end."""

    def gathered(self, own: Tree, note: object = None, limit: float = float("inf")) -> Gathered:
        """Return all processes' trees and notes; beyond `limit` bytes only the leader gets the trees' numbers."""
        return Gathered([own], [note])

    def collected(self, value: Value) -> list[Value]:
        """Return what every process says to the leader, in their order; the others get nothing."""
        return [value]

    def concluded(self, work: Callable[[], Tree], everywhere: bool) -> Tree:
        """Return the tree that `work` makes, on every process or on the leader, who hands it to the others."""
        return work()


ALONE = Ranks()
