"""A fleet whose clients are dealt to several processes: each trains and tests its own, and all learn what came back."""

import heapq
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.method import Method
from promptfed.core.ranks import Ranks
from promptfed.core.tree import Tree
from promptfed.data.batches import Shards
from promptfed.federation.answers import Answers
from promptfed.federation.beyond import OtherImages
from promptfed.federation.fleet import QUIET, Download, Fitted, Fleet

# The bytes of all answers of a round up to which every process gets them and aggregates by itself. Beyond, only the
# leader does, and hands the server's tree to the others: see benchmarks/ranks.py.
EVERYWHERE = 2**22


def deal(sizes: Sequence[int], ranks: int, width: int = 1) -> list[int]:
    """Return the process of each client, so that all have about as much: the largest first, to who has least.

    `width` neighbours, a stack, stay together if there is a stack for every process: rounding depends on who is in it.
    """
    width = width if ranks * width <= len(sizes) else 1
    stacks = [sum(sizes[first : first + width]) for first in range(0, len(sizes), width)]
    held = [(0, 0, rank) for rank in range(ranks)]  # how much, how many stacks, and who
    owner = [0] * len(stacks)
    for stack in sorted(range(len(stacks)), key=lambda one: -stacks[one]):
        much, count, rank = heapq.heappop(held)
        owner[stack] = rank
        heapq.heappush(held, (much + stacks[stack], count + 1, rank))
    return [owner[client // width] for client in range(len(sizes))]


class RankedFleet:
    """The clients of all processes, in front of `inner`, which has those of this one.

    A client that keeps a personal tree stays with its process, its `owner`; where none does, `owner` is empty, and each
    round's clients are dealt anew.
    """

    def __init__(
        self,
        inner: Fleet,
        ranks: Ranks,
        method: Method,
        shards: Shards,
        owner: Sequence[int],
        together: int = 1,  # clients that are dealt together
        limit: float = EVERYWHERE,
    ) -> None:
        self.inner, self.ranks, self.method, self.shards = inner, ranks, method, shards
        self.owner, self.together, self.limit = owner, together, limit if ranks.alike else -1
        self.width, self.tick = inner.width, QUIET
        self._all = 0  # clients of the work under way
        inner.tick = self._ticked

    def _ticked(self, more: float, of: int) -> None:
        """Pass on how far this process is as if all were as far."""
        self.ranks.check()
        self.tick(more * self._all / of, self._all)

    def fit(self, round: int, clients: Tensor, down: Tree, *, keep: bool = True, test: bool = True) -> Fitted:  # noqa: A002
        """Train the clients from `down` [C, ...]; their personal trees change only if `keep`."""
        places = self._places(clients, "train")
        mine, up = places[self.ranks.rank], Tree()
        told: tuple[dict[str, Any], dict[str, Any], int] = ({}, {}, 0)  # measures, tested, images
        self._all = len(clients)
        with self.ranks.together():
            if len(mine):
                own = self.inner.fit(round, clients[mine], _rows(down, mine), keep=keep, test=test)
                up = own.up if keep else {}  # what is not kept has no further use: only the tests count
                told = _hosted(own.measures), _hosted(own.tested), own.images
            else:
                self.tick(len(clients), len(clients))
        found = self.ranks.gathered(up, told, self.limit)
        measures, tested, images = zip(*found.notes, strict=True)
        return Fitted(
            _merged(found.trees, places),
            self.method.weight(self.shards.facts(clients.tolist())),
            tree.to(_joined(measures, places), self.shards.pool.x.device),
            _joined(tested, places),
            sum(images),
            found.everywhere,
        )

    def evaluate(
        self,
        round: int,  # noqa: A002
        clients: Tensor,
        download: Download,
        *,
        adapt: bool,
        answers: Answers | None = None,
        sets: Sequence[OtherImages] = (),
    ) -> Tree:
        """Return sums [C] of every client's model over its own test images; `answers` of the leader hears all."""
        places = self._places(clients, "test")
        mine, sums = places[self.ranks.rank], {}
        self._all = len(clients)
        with self.ranks.together():
            if len(mine):
                sums = self.inner.evaluate(round, clients[mine], download, adapt=adapt, answers=answers, sets=sets)
            elif adapt:
                self.tick(len(clients), len(clients))
        found = _joined(self.ranks.told(_hosted(sums)), places)
        if answers is not None:
            answers.parts = [part for heard in self.ranks.collected(answers.parts) for part in heard]
        return found

    def _places(self, clients: Tensor, split: str) -> list[Tensor]:
        """Return for every process which of these clients are its own, as places in `clients`."""
        asked = clients.tolist()
        if self.owner:
            owner = torch.tensor([self.owner[client] for client in asked])
        else:
            sizes = [len(self.shards.rows[split][client]) for client in asked]
            owner = torch.tensor(deal(sizes, self.ranks.size, self.together))
        return [(owner == rank).nonzero().flatten() for rank in range(self.ranks.size)]


def _rows(down: Tree, places: Tensor) -> Tree:
    """Return the chosen rows; where all rows are one, which is stored once, it still is."""
    return {
        name: value[: len(places)] if value.stride(0) == 0 else value[places.to(value.device)]
        for name, value in down.items()
    }


def _hosted(some: Tree) -> dict[str, Any]:
    """Return a tree of few numbers as arrays, to travel beside a message."""
    return {name: value.detach().cpu().numpy() for name, value in some.items()}


def _joined(parts: Sequence[dict[str, Any]], places: Sequence[Tensor]) -> Tree:
    """Return what every process said of its clients as one tree [C, ...], in the order of clients."""
    return _merged([{name: torch.from_numpy(value) for name, value in part.items()} for part in parts], places)


def _merged(parts: Sequence[Tree], places: Sequence[Tensor]) -> Tree:
    """Return all processes' trees as one [C, ...], in the order of clients; without numbers if they have none."""
    parts = [one for one in parts if one]
    if not parts:
        return {}
    if next(iter(parts[0].values())).is_meta:
        return {name: value.new_empty((sum(map(len, places)), *value.shape[1:])) for name, value in parts[0].items()}
    order = torch.cat([some for some in places if len(some)]).argsort()
    return tree.rows({name: torch.cat([one[name] for one in parts]) for name in parts[0]}, order)
