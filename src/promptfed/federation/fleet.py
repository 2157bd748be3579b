"""The clients, wherever they are. `OneByOne` is the readable reference and fast on a CPU; `Stacked` fills a GPU.

Both see the same batches, since every draw is keyed by client and round, and agree up to rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from promptfed.core import extensions, memory, tree
from promptfed.core.method import Method, Task
from promptfed.core.protocols import Batch
from promptfed.core.ranks import ALONE, Ranks
from promptfed.core.tree import Tree
from promptfed.data.batches import ClientData, PlannedBatches, Shards
from promptfed.federation.answers import Answers
from promptfed.federation.beyond import OtherImages
from promptfed.federation.store import Store

SHARED = 16  # test images that share what is drawn once for a batch, about as many as in training
Download = Callable[[Tensor], Tree]
Tick = Callable[[float, int], None]
"""Is told how many more clients have been trained, and of how many."""


def _silent(more: float, of: int) -> None:
    """Report nothing."""


QUIET: Tick = _silent


@dataclass(frozen=True)
class Fitted:
    """What came back from a round's clients, in their order; every tensor has a leading C."""

    up: Tree
    weights: Tensor
    measures: Tree
    tested: Tree  # sums over each client's own test images right after its training
    images: int  # training images seen, each as often as it was
    everywhere: bool = True  # False: where several processes share the run, only the leader has the numbers of `up`


class Fleet(Protocol):
    """What the round loop knows of the clients."""

    width: int  # clients that are trained at a time
    tick: Tick

    def fit(self, round: int, clients: Tensor, down: Tree, *, keep: bool = True, test: bool = True) -> Fitted:  # noqa: A002
        """Train the clients from `down` [C, ...]; their personal trees change only if `keep`."""
        ...

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
        """Return sums [C] of every client's deployed (`adapt`) or received model over its own test images.

        `answers` hears every single answer, and the models are tested on `sets` as well, under "SET.NAME", where the
        clients are on this machine.
        """
        ...


class OneByOne:
    """One client after another, without a leading dimension."""

    def __init__(self, method: Method, task: Task, shards: Shards, store: Store) -> None:
        self.method, self.task, self.shards, self.store = method, task, shards, store
        self.width, self.tick = 1, QUIET

    def fit(self, round: int, clients: Tensor, down: Tree, *, keep: bool = True, test: bool = True) -> Fitted:  # noqa: A002
        """Train the clients from `down` [C, ...]; their personal trees change only if `keep`."""
        rows, images, count = list[tuple[Tree, Tree, Tree]](), 0, len(clients)
        for number, client in enumerate(clients.tolist()):
            own, before = tree.settled(tree.row(down, number)), _to(self.store.get(client), self.shards)
            data = self.shards.data([client], round, stacked=False)
            seen = self.shards.pool.seen
            up, after = self.method.fit(self.task, own, before, data)
            images += self.shards.pool.seen - seen
            tested = {}
            if test:
                params = self.method.trained(self.task, own, after, up)
                tested = _test(self.method, self.task, params, self.shards.data([client], round, "test", stacked=False))
            if not rows and not self.shards.pool.x.is_cuda:
                # every answer, and all of them stacked
                memory.require(2 * count * tree.nbytes(up), "per_round", "clients")
            rows.append((up, extensions.measures(self.method, self.task, before, after), tested))
            if keep:
                self.store.put(client, after)
            self.tick(1, count)
        up, measures, tested = (tree.stack(part) for part in zip(*rows, strict=True))
        return Fitted(up, self.method.weight(self.shards.facts(clients.tolist())), measures, tested, images)

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
        """Return sums [C] of every client's model over its own test images, and over those of the sets."""
        sums = []
        for client in clients.tolist():
            own = tree.settled(tree.row(download(torch.tensor([client])), 0))
            personal = _to(self.store.get(client), self.shards)
            params = own | personal
            if adapt:
                data = self.shards.data([client], round, stacked=False)
                params = self.method.adapt(self.task, own, personal, data)
                self.tick(1, len(clients))
            data = self.shards.data([client], round, "test", stacked=False)
            own = _test(self.method, self.task, params, data, answers)
            sums.append(own | _test_sets(self.method, sets, params, data))
        return tree.stack(sums)


class Stacked:
    """`width` clients at a time as one tensor program; every tensor has a leading C."""

    def __init__(self, method: Method, task: Task, shards: Shards, store: Store, width: int) -> None:
        self.method, self.task, self.shards, self.store, self.width = method, task, shards, store, width
        self.tick = QUIET

    def fit(self, round: int, clients: Tensor, down: Tree, *, keep: bool = True, test: bool = True) -> Fitted:  # noqa: A002
        """Train the clients from `down` [C, ...]; their personal trees change only if `keep`."""
        groups, images = [], 0
        for first in range(0, len(clients), self.width):
            places = slice(first, first + self.width)
            members = clients[places].tolist()
            own, before = tree.rows(down, places), self._personal(members)
            seen = self.shards.pool.seen
            up, after = self.method.fit(self.task, own, before, self._data(members, round))
            images += self.shards.pool.seen - seen
            tested = {}
            if test:
                params = self.method.trained(self.task, own, after, up)
                tested = _test(self.method, self.task, params, self._data(members, round, "test"))
            groups.append((up, extensions.measures(self.method, self.task, before, after), tested))
            if keep and after:
                for number, client in enumerate(members):
                    self.store.put(client, tree.map(torch.clone, tree.row(after, number)))
            self.tick(len(members), len(clients))
        up, measures, tested = (tree.cat(part) for part in zip(*groups, strict=True))
        return Fitted(up, self.method.weight(self.shards.facts(clients.tolist())), measures, tested, images)

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
        """Return sums [C] of every client's model over its own test images, and over those of the sets."""
        sums, order = [], self._by_size(clients)
        for places in order.split(self.width):
            members = clients[places].tolist()
            own, personal = download(clients[places]), self._personal(members)
            params = own | personal
            if adapt:
                params = self.method.adapt(self.task, own, personal, self._data(members, round))
                self.tick(len(members), len(clients))
            data = self._data(members, round, "test")
            tested = _test(self.method, self.task, params, data, answers)
            sums.append(tested | _test_sets(self.method, sets, params, data))
        return tree.rows(tree.cat(sums), order.argsort())

    def _by_size(self, clients: Tensor) -> Tensor:
        """Order clients by the size of their test set: neighbours pad each other least."""
        return torch.tensor([len(self.shards.rows["test"][client]) for client in clients.tolist()]).argsort(stable=True)

    def _personal(self, members: Sequence[int]) -> Tree:
        return tree.stack([_to(self.store.get(client), self.shards) for client in members])

    def _data(self, members: Sequence[int], round: int, split: str = "train") -> ClientData:  # noqa: A002
        return self.shards.data(members, round, split, stacked=True)


def _to(value: Tree, shards: Shards) -> Tree:
    return tree.to(value, shards.pool.x.device)


def _test_sets(method: Method, sets: Sequence[OtherImages], params: Tree, data: ClientData) -> Tree:
    """Return right answers and images of every set, under "SET.correct" and "SET.count"."""
    found: Tree = {}
    for one in sets:
        sums = _test(method, one.task, params, one.of(data), one)
        found |= {f"{one.name}.{what}": sums[what] for what in ("correct", "count")}
    return found


class Listener(Protocol):
    """Counts what a method answers for a batch; some look at the answers themselves."""

    def evaluate(self, method: Method, task: Task, params: Tree, batch: Batch, clients: Sequence[int]) -> Tree:
        """Return sums over the batch per client."""
        ...


def _test(method: Method, task: Task, params: Tree, data: ClientData, listener: Listener | None = None) -> Tree:
    """Return what `method.evaluate` counts, summed over all batches, on the host; a `listener` hears each answer."""
    data, batches = _to_test(task, data)
    with torch.no_grad():
        params = method.prepare(task, params)
        if listener is None:
            return tree.to(_sum(method.evaluate(task, params, batch) for batch in batches), "cpu")
        return tree.to(_sum(listener.evaluate(method, task, params, batch, data.clients) for batch in batches), "cpu")


def _to_test(task: Task, data: ClientData) -> tuple[ClientData, PlannedBatches]:
    """Return the data as they are tested, and their batches."""
    data = data.without_dropout(task.backbone)
    room = max(256, 4096 // len(data.rows)) if data.pool.x.is_cuda else 256
    if data.draws:  # neither the device nor those tested beside a client may decide what it draws
        room = SHARED if any(draw.per == "batch" for draw in data.draws.values()) else 256
    return data, data.batches("test", size=min(room, max(len(rows) for rows in data.rows) or 1), ordered=True)


def score_deployed(
    method: Method, task: Task, params: Tree, shards: Shards, domain_names: Sequence[str], ranks: Ranks = ALONE
) -> dict[str, float]:
    """Return the accuracy of a model without a client on all test images, and on each domain's if there are several.

    Where several processes share the run, each tests every so many batches.
    """
    rows = shards.tested()
    domains = shards.pool.domains[rows]
    each = {name: rows[domains == number] for number, name in enumerate(domain_names)}
    sets, sums = each if len(each) > 1 else {"all": rows}, {}
    for name, chosen in sets.items():
        if len(chosen):
            data = shards.data([0], 0, "test", stacked=False)
            sums[name] = _tested_by_all(method, task, params, replace(data, rows=(chosen,)), ranks)
    if sums and "all" not in sums:  # every image is in one domain
        sums = {"all": _sum(iter(sums.values())), **sums}
    return {name: float(found["correct"] / found["count"]) for name, found in sums.items()}


def _tested_by_all(method: Method, task: Task, params: Tree, data: ClientData, ranks: Ranks) -> Tree:
    """Return what `method.evaluate` counts, added up in the order of batches, whoever has tested them."""
    batches, own = _to_test(task, data)[1], []
    with ranks.together(), torch.no_grad():
        if ranks.rank < batches.steps:
            params = method.prepare(task, params)
        for step in range(ranks.rank, batches.steps, ranks.size):
            batch = batches.at(batches.tensors, torch.tensor(step, device=data.pool.x.device))
            own.append(method.evaluate(task, params, batch))
        counted = tree.to(tree.stack(own), "cpu") if own else {}
    told = ranks.told({name: value.numpy() for name, value in counted.items()})
    rows = (tree.row(_opened(told[step % ranks.size]), step // ranks.size) for step in range(batches.steps))
    return _sum(rows)


def _opened(arrays: dict[str, NDArray[Any]]) -> Tree:
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


def _sum(parts: Iterator[Tree]) -> Tree:
    total: Tree = {}
    for part in parts:
        total = {name: total[name] + value if total else value for name, value in part.items()}
    return total
