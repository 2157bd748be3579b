"""The round loop by a simulated clock, whose server need not wait for everyone.

A round is one aggregation. A client's answer is computed when it counts, from the model that it started from; so what
is kept of clients at work is that model alone, once for all who have it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.federation.clock.arrivals import Arrivals, Sizes
from promptfed.federation.clock.links import alone
from promptfed.federation.clock.options import ClockOptions
from promptfed.federation.clock.rebasing import rebase
from promptfed.federation.fleet import Fitted
from promptfed.federation.guards.guard import Handed
from promptfed.federation.loop import Loop
from promptfed.federation.store import read_tree, verify, write_tree
from promptfed.results.folder import names
from promptfed.results.folder.record import Line


class ClockedLoop(Loop):
    """A run by a simulated clock: it waits for all, for a number of answers, or for so many minutes."""

    def __init__(self, clock: ClockOptions, *given: Any) -> None:
        super().__init__(*given)
        if not clock.waits and not self.server:
            raise PromptFedError(
                f"Method {self.method.name} sends nothing as it is set here, so nobody waits; set clock.mode=sync."
            )
        self.clock = clock
        self.versions: dict[int, Tree] = {}  # the models that clients at work started from
        self._written: dict[str, Line] = {}  # of these, what the last commit names

    @cached_property
    def arrivals(self) -> Arrivals:
        """Return who starts when and arrives when; the bytes are those of one client's first training."""
        rows = self.shards.rows["train"]
        images, once = [len(held) for held in rows], self.method.traits.once
        some = min(range(len(images)), key=images.__getitem__)
        down = self.method.download(self.task, self.server, torch.tensor([some]))
        own, personal = tree.settled(tree.row(down, 0)), tree.to(self.store.get(some), self.device)
        up, _ = self.method.fit(self.task, own, personal, self.shards.data([some], 0, stacked=False))
        first = tree.nbytes(tree.pick(down, once))
        clock = self.clock if down or up else alone(self.clock)
        sizes = Sizes(images, tree.nbytes(down) - first, first, tree.nbytes(up))
        return Arrivals(clock, sizes, self.settings.seed, self.settings.per_round, self.settings.groups)

    def participants(self, t: int) -> Tensor:
        """Return whose answers count in round `t`, in ascending order."""
        return torch.tensor([flight.client for flight in self.arrivals.moment(t).heard])

    def round(self, t: int) -> tuple[Tree, Line]:
        """Run round `t`; its line also records when it ended, and how old the models were that answers are to."""
        self.versions = {version: self.versions[version] for version in self._flying(t)} | {t: self.server}
        server, line = super().round(t)
        line["clock"] = self.arrivals.moment(t).ends
        if not self.clock.waits:
            late = self._staleness(t)
            line["measures"]["staleness"] = sum(late) / len(late)
        return server, line

    def _flying(self, t: int) -> list[int]:
        """Return the models that those started from who are at work when round `t` begins."""
        return sorted({flight.version for flight in self.arrivals.moment(t - 1).left}) if t else []

    def _staleness(self, t: int) -> list[int]:
        """Return by how many rounds each answer of round `t` is late."""
        return [t - flight.version for flight in self.arrivals.moment(t).heard]

    # -- one round, where it is not as any other loop's --------------------------
    def _exchanged(self, t: int, server: Tree, clients: Tensor, test: bool) -> tuple[Tree, Fitted]:
        """Train those who started from the same model together."""
        late = torch.tensor(self._staleness(t))
        if not late.any():
            return super()._exchanged(t, server, clients, test)
        places = [(late == old).nonzero().flatten() for old in late.unique(sorted=True).flip(0).tolist()]
        found = []
        with self._counted(len(clients)):
            for some in places:
                version = t - int(late[some[0]])
                found.append(super()._exchanged(version, self.versions[version], clients[some], test))
        order = torch.cat(places).argsort()
        return _joined(found, order)

    @contextmanager
    def _counted(self, clients: int) -> Iterator[None]:
        """Let the fleet count the clients of one version as a part of the round's."""
        tick = self.fleet.tick
        self.fleet.tick = lambda more, of: tick(more, clients)
        try:
            yield
        finally:
            self.fleet.tick = tick

    def _guarded(self, t: int, server: Tree, clients: Tensor, down: Tree, fitted: Fitted) -> Handed:
        """Guard a client by what it received, and the server by answers that are all to the present model."""
        late = self._staleness(t)
        if not any(late):
            return super()._guarded(t, server, clients, down, fitted)
        clients, up, weights = self.guards.of("client")(t, clients, down, fitted.up, fitted.weights)
        now = self.method.download(self.task, server, clients)
        up = rebase(down, now, up, [not old for old in late], [self.clock.weight(old) for old in late])
        return self.guards.of("server")(t, clients, now, up, weights)

    # -- checkpoints ---------------------------------------------------------------
    def restore(self, state: Line, *, rewind: bool = True) -> None:
        """Restore a committed state, with the models that clients at work started from."""
        self._written = state.get("versions", {})
        for file, known in self._written.items():
            path = self.record.checkpoint / file
            verify(path, known["crc32"])
            self.versions[known["version"]] = tree.to(read_tree(path), self.device)
        super().restore(state, rewind=rewind)

    def _state(self) -> Line:
        """Write the models that those at work started from; a file that the last commit names is not written again."""
        wanted = {names.version_file(version): version for version in self._flying(self.finished)}
        written = {file: self._written[file] for file in wanted if file in self._written}
        for file, version in wanted.items():
            if file not in written:
                content = tree.to(self.versions[version], "cpu")
                written[file] = {"version": version, "crc32": write_tree(self.record.checkpoint / file, content)}
        self._written = written
        return {"versions": written} if written else {}


def _joined(parts: list[tuple[Tree, Fitted]], order: Tensor) -> tuple[Tree, Fitted]:
    """Return what came from several models as one, in the order of clients."""
    downs, fitted = zip(*parts, strict=True)

    def rows(some: list[Tree]) -> Tree:
        return tree.rows(tree.cat(some), order)

    return rows(list(downs)), Fitted(
        rows([one.up for one in fitted]),
        torch.cat([one.weights for one in fitted])[order.to(fitted[0].weights.device)],
        rows([one.measures for one in fitted]),
        rows([one.tested for one in fitted]),
        sum(one.images for one in fitted),
    )
