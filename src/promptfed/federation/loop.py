"""The round loop: a straight line, the same for every method and every fleet."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from promptfed.core import extensions, keys, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task, adapts
from promptfed.core.protocols import Rng
from promptfed.core.tree import Tree
from promptfed.data.batches import Shards
from promptfed.federation.evaluate import Score, local_score, score
from promptfed.federation.fleet import Fitted, Fleet, score_deployed
from promptfed.federation.guards import Guards
from promptfed.federation.sampling import choose
from promptfed.federation.store import Store, read_tree, verify, write_tree
from promptfed.results.folder import names
from promptfed.results.folder.record import Line, Record


@dataclass(frozen=True)
class Settings:
    """The settings of the loop."""

    seed: int
    rounds: int
    per_round: int
    newcomers: int  # the last clients, which come after the last round
    join_rounds: int
    every: int  # rounds between evaluations; the last round is always evaluated
    personal: bool  # test every client's model each time, not only in the last round
    after: bool  # in the last round, also train every client once more and test it
    checkpoint_seconds: float
    domain_names: tuple[str, ...]
    groups: tuple[int, ...] = ()  # the group of each first client, if one client per group is drawn

    @property
    def total(self) -> int:
        """Return the number of rounds, those of the newcomers included."""
        return self.rounds + (self.join_rounds if self.newcomers else 0)


def rng_for(seed: int, who: int | str) -> Rng:
    """Return the initial randomness of one client (by number) or of the server."""

    def rng(purpose: str, shared: bool = False) -> torch.Generator:
        return keys.generator(seed, "init", purpose, "shared" if shared else who)

    return rng


SAVING = 20  # a checkpoint is written at most once in so many times as long as writing it takes

Aggregate = Callable[[Task, Tree, Tensor, Tree, Tensor], Tree]


class Loop:
    """One run: its method, clients, state and record."""

    def __init__(
        self,
        method: Method,
        task: Task,
        fleet: Fleet,
        shards: Shards,
        store: Store,
        record: Record,
        settings: Settings,
        guards: Guards | None = None,
    ) -> None:
        self.method, self.task, self.fleet, self.shards, self.store = method, task, fleet, shards, store
        self.record, self.settings, self.guards = record, settings, guards or Guards()
        self.device = shards.pool.x.device
        self.everyone = torch.arange(len(shards))
        self.founders = self.everyone[: len(shards) - settings.newcomers]
        self.finished = 0
        self._saved = 0
        self._sealing = False  # the round's personal trees are being taken over
        self._pending_check: _FiniteCheck | None = None
        server = method.init_server(task, rng_for(settings.seed, "server"))
        self.server: Tree = tree.settled(tree.to(server, self.device))

    def restore(self, state: Line, *, rewind: bool = True) -> None:
        """Restore a committed state; without `rewind` nothing is written, for readers."""
        path = self.record.checkpoint / state["server"]["file"]
        verify(path, state["server"]["crc32"])
        self.server = tree.to(read_tree(path), self.device)
        self.store.restore(state["personal"])
        self.finished = self._saved = state["round"]
        if rewind:
            self.record.rewind(self.finished)
        else:
            self.record.read(self.finished)

    def save(self, recipe_hash: str, partition_hash: str, sources: Mapping[str, str] | None = None) -> None:
        """Commit the state after the last finished round."""
        self._await_check()
        with uninterrupted():
            self._save({"recipe": recipe_hash, "partition": partition_hash} | ({"sources": sources} if sources else {}))

    def _save(self, known: Line) -> None:
        file = names.server_file(self.finished)
        checksum = write_tree(self.record.checkpoint / file, tree.to(self.server, "cpu"))
        state = {"round": self.finished, **known}
        self.record.commit(state | {"server": {"file": file, "crc32": checksum}, "personal": self.store.commit()})
        self._saved = self.finished

    def run(self, save: Callable[[], None], progress: Callable[[Line], None]) -> None:
        """Run the rounds that are left, saving every `checkpoint_seconds` and when it ends, however it ends."""
        try:
            self._run(save, progress)
        finally:
            self.store.discard()
            if self._saved < self.finished and self._finite() and not self._sealing:
                save()

    def _run(self, save: Callable[[], None], progress: Callable[[Line], None]) -> None:
        next_save = time.monotonic() + self.settings.checkpoint_seconds
        while self.finished < self.settings.total:
            server, line = self.round(self.finished)
            with uninterrupted():
                self._keep(server, self.finished + 1)
                self.record.append(line)  # first: if the disk is full, the round has not happened
                self._sealing = True
                self.store.seal()  # it may write and fail half-way: the state then belongs to no round
                self._sealing = False
                self.server = tree.settled(server)
                self.finished += 1
            progress(line)
            if (began := time.monotonic()) >= next_save:
                save()
                done = time.monotonic()
                # large models take long to write: no more than a twentieth of the time goes into it
                next_save = done + max(self.settings.checkpoint_seconds, SAVING * (done - began))

    def _keep(self, server: Tree, finished: int) -> None:
        """Write what the method keeps of every round: it is small, and people want to see it grow."""
        for name in self.method.traits.keeps:
            path = self.record.kept(name, finished)
            path.parent.mkdir(exist_ok=True)
            write_tree(path, {name: server[name]})

    def round(self, t: int) -> tuple[Tree, Line]:
        """Run round `t`; return the next server tree and the round's line of the record."""
        began = time.monotonic()
        clients, server, conclude = self._next(t)
        last = t + 1 in (self.settings.rounds, self.settings.total)
        evaluated = last or (t + 1) % self.settings.every == 0
        personal = last or (evaluated and self.settings.personal)
        down = self.method.download(self.task, server, clients)
        fitted = self.fleet.fit(t, clients, down, test=personal)
        heard, up, weights = self.guards(t, clients, down, fitted.up, fitted.weights)
        server = conclude(self.task, server, heard, up, weights)
        scores: Line = dict.fromkeys(("loss", "received", "trained", "local", "deployed"))
        if personal:
            scores |= self._personal_scores(server, t, clients, fitted)
        if last or (evaluated and not personal):
            scores["deployed"] = self._deployed_score(server)
        self._check_finite(server, t, scores["loss"])
        privacy = self.guards.privacy((line["clients"] for line in self.record.rounds[:t]), clients.tolist())
        return server, {
            "round": t + 1,
            "clients": clients.tolist(),
            **scores,
            "measures": {name: float(value.mean()) for name, value in fitted.measures.items()}
            | ({"epsilon": max(privacy["epsilon"])} if privacy else {}),
            **({"privacy": privacy} if privacy else {}),
            "traffic": self._traffic(down, fitted.up, clients),
            "images": fitted.images,
            "seconds": round(time.monotonic() - began, 4),
        }

    def _next(self, t: int) -> tuple[Tensor, Tree, Aggregate]:
        """Return the participants of round `t`, the server's tree they start from, and the function that updates it."""
        settings = self.settings
        if t < settings.rounds:
            clients = choose(settings.seed, t, len(self.founders), settings.per_round, settings.groups)
            return clients, self.server, self.method.aggregate
        newcomers, server = self.everyone[len(self.founders) :], self.server
        if t == settings.rounds:
            server = tree.to(
                extensions.admit(self.method, self.task, server, newcomers, rng_for(settings.seed, "admit")),
                self.device,
            )
        return newcomers, server, partial(extensions.join, self.method)

    def _present(self, t: int) -> Tensor:
        """Return the clients present in round `t`."""
        return self.founders if t < self.settings.rounds else self.everyone

    def _personal_scores(self, server: Tree, t: int, clients: Tensor, fitted: Fitted) -> Line:
        """Test every client's received model and the participants' trained models on their own test images."""
        received = self._evaluate(server, t, adapt=False)
        right, total = torch.zeros(len(self._present(t))), torch.zeros(len(self._present(t)))
        right[clients], total[clients] = fitted.tested["correct"].float(), fitted.tested["count"].float()
        trained, count = score(right.tolist(), total.tolist()), received["count"].tolist()
        before = [line["received"] for line in self.record.rounds[max(t - 1, 0) : t]]  # none where nothing is recorded
        return {
            "loss": _mean_loss(received),
            "received": score(received["correct"].tolist(), count),
            "trained": trained,
            "local": local_score(trained, before[0] if before else None, count),
        }

    def reevaluated(self, line: Line) -> Line:
        """Return the last round's line with the scores of the final state as this loop's method tests it."""
        received = self._evaluate(self.server, self.finished - 1, adapt=False)
        return line | {
            "loss": _mean_loss(received),
            "received": score(received["correct"].tolist(), received["count"].tolist()),
            **dict.fromkeys(("trained", "local")),  # what the clients sent is gone
            "deployed": self._deployed_score(self.server),
        }

    def _deployed_score(self, server: Tree) -> dict[str, float] | None:
        """Test the model that needs no client, if the method has one."""
        model = self.method.deploy(self.task, server)
        return score_deployed(self.method, self.task, model, self.shards, self.settings.domain_names) if model else None

    def adapted(self) -> Score | None:
        """Return the score of the models the clients deploy, if the method adapts what a client received."""
        if not adapts(self.method):
            return None
        sums = self._evaluate(self.server, self.settings.total, adapt=True)
        return score(sums["correct"].tolist(), sums["count"].tolist())

    def after(self) -> Score | None:
        """Return the score of every client's model after one more local training from the final state."""
        if not self.settings.after:
            return None
        download = partial(self.method.download, self.task, self.server)
        parts = [
            self.fleet.fit(self.settings.total, some, download(some), keep=False).tested
            for some in self.everyone.split(self.settings.per_round or len(self.everyone))
        ]
        sums = tree.cat(parts)
        return score(sums["correct"].tolist(), sums["count"].tolist())

    def _traffic(self, down: Tree, up: Tree, clients: Tensor) -> dict[str, int]:
        """Count numbers per client and bytes of the whole round; `down` and `up` are [C, ...].

        What a method sends `once` is in the bytes of a client's first round only.
        """
        once = self.method.traits.once
        count, often = len(clients), tree.drop(down, once)
        seen = {client for line in self.record.rounds for client in line["clients"]} if once else set()
        first = sum(client not in seen for client in clients.tolist())
        more_down, more_up = self.guards.traffic(up, count)
        return {
            "down_floats": tree.floats(often) // count,
            "up_floats": tree.floats(up) // count,
            "down_bytes": tree.nbytes(often) + tree.nbytes(tree.pick(down, once)) // count * first + more_down,
            "up_bytes": tree.nbytes(up) + more_up,
        }

    def _check_finite(self, server: Tree, t: int, loss: float | None) -> None:
        """Refuse numbers that are not finite. The check lags one round, so that the host need not wait for a GPU."""
        self._await_check()
        if loss is not None and not math.isfinite(loss):
            raise self._diverged(t)
        if server:
            self._pending_check = _FiniteCheck.begin(
                t, torch.stack([torch.isfinite(value).all() for value in server.values()])
            )

    def _await_check(self) -> None:
        if self._pending_check is not None and not self._finite():
            raise self._diverged(self._pending_check.round)

    def _diverged(self, t: int) -> PromptFedError:
        noisy = " or, since guards.noise is in units of it, guards.clip" if self.guards.accountant else ""
        return PromptFedError(
            f"Training diverged in round {t + 1}: some numbers are no longer finite; lower method.lr{noisy}."
        )

    def _finite(self) -> bool:
        return self._pending_check is None or self._pending_check.finite()

    def _evaluate(self, server: Tree, t: int, *, adapt: bool) -> Tree:
        download = partial(self.method.download, self.task, server)
        return self.fleet.evaluate(t, self._present(t), download, adapt=adapt)


def _mean_loss(sums: Tree) -> float | None:
    """Return the mean loss over all test images; real sites may keep their losses to themselves."""
    known = "loss" in sums and sums["count"].any()
    return float(sums["loss"].sum() / sums["count"].sum()) if known else None


@dataclass(frozen=True)
class _FiniteCheck:
    """Whether the numbers after a round are finite; the answer is on its way to the host."""

    round: int
    each: Tensor
    arrived: torch.cuda.Event | None  # waiting for it does not wait for what the GPU was given since

    @classmethod
    def begin(cls, t: int, each: Tensor) -> "_FiniteCheck":
        """Send the answer to the host without waiting for it."""
        if not each.is_cuda:
            return cls(t, each, None)
        host = torch.empty_like(each, device="cpu", pin_memory=True).copy_(each, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return cls(t, host, arrived)

    def finite(self) -> bool:
        """Wait for the answer and return it."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return bool(self.each.all())


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the block is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def summarise(record: Record, about: Line, adapted: Score | None, after: Score | None, newcomers: int = 0) -> Line:
    """Return summary.json's content from the lines of all rounds; the last `newcomers` clients get a mean of their own.

    The best round, by the plain mean and by the weighted one, is one in which all clients were there.
    """
    rounds = record.rounds
    last = rounds[-1]
    everyone = len((last["received"] or {}).get("per_client", ()))
    scored = [
        line
        for line in rounds
        if line["received"] and line["received"]["mean"] is not None and len(line["received"]["per_client"]) == everyone
    ]
    best = max(scored, key=lambda line: line["received"]["mean"], default=last)
    best_weighted = max(scored, key=lambda line: line["received"]["weighted"], default=last)
    local = max(
        (line for line in scored if line.get("local")), key=lambda line: line["local"]["weighted"], default=None
    )
    seconds = sum(line["seconds"] for line in rounds)
    return about | {
        "accuracy": {
            **(adapted or last["received"]),
            "round": last["round"],
            "best_round": best["round"],
            "best_mean": best["received"]["mean"],
            "best_weighted_round": best_weighted["round"],
            "best_weighted": best_weighted["received"]["weighted"],
            "best_local_round": local and local["round"],
            "best_local": local and local["local"]["weighted"],
            "before": last["received"],
            "trained": last["trained"],
            "after": after,
            "deployed": last["deployed"],
            **({"newcomers": _mean_of_last(adapted or last["received"], newcomers)} if newcomers else {}),
        },
        "traffic": {
            "down_floats": last["traffic"]["down_floats"],
            "up_floats": last["traffic"]["up_floats"],
            "down_bytes": sum(line["traffic"]["down_bytes"] for line in rounds),
            "up_bytes": sum(line["traffic"]["up_bytes"] for line in rounds),
        },
        "seconds": round(seconds, 3),
        "images_per_second": round(sum(line["images"] for line in rounds) / seconds, 1) if seconds else 0.0,
    }


def _mean_of_last(scored: Score, count: int) -> float | None:
    each = scored["per_client"]
    assert isinstance(each, list)
    known = [value for value in each[-count:] if value is not None]
    return sum(known) / len(known) if known else None
