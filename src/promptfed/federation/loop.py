"""The round loop: a straight line, the same for every method and every fleet."""

import math
import signal
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from promptfed.core import extensions, keys, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task, adapts, classifies
from promptfed.core.protocols import Rng
from promptfed.core.ranks import ALONE, Ranks
from promptfed.core.tree import Tree
from promptfed.data.batches import Shards
from promptfed.federation.answers import Answers
from promptfed.federation.beyond import Beyond
from promptfed.federation.evaluate import Score, local_score, score
from promptfed.federation.examples_privacy import spent_on_examples
from promptfed.federation.finite import FiniteCheck
from promptfed.federation.fleet import Fitted, Fleet, score_deployed
from promptfed.federation.guards import Guards
from promptfed.federation.guards.guard import Handed
from promptfed.federation.sampling import choose
from promptfed.federation.stopping import Stopping
from promptfed.federation.store import Store, read_tree, verify, write_tree
from promptfed.federation.traffic import count_traffic
from promptfed.results.folder import names
from promptfed.results.folder.predictions import Predictions
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
        stopping: Stopping | None = None,
        validation: Fleet | None = None,  # the same clients, tested on validation images; None: `fleet` tests on them
        beyond: Beyond | None = None,  # what else every client's model is tested on
        ranks: Ranks = ALONE,
    ) -> None:
        self.stopping, self.validation, self.beyond = stopping, validation, beyond or Beyond()
        self.ranks = ranks
        self.method, self.task, self.fleet, self.shards, self.store = method, task, fleet, shards, store
        self.record, self.settings, self.guards = record, settings, guards or Guards()
        self.device = shards.pool.x.device
        self.everyone = torch.arange(len(shards))
        self.founders = self.everyone[: len(shards) - settings.newcomers]
        self.finished = 0
        self._saved = 0
        self._sealing = False  # the round's personal trees are being taken over
        self._pending_check: FiniteCheck | None = None
        self._answers: Answers | None = None  # of the models that the clients deploy
        server = method.init_server(task, rng_for(settings.seed, "server"))
        self.server: Tree = tree.settled(tree.to(server, self.device))

    @property
    def ended(self) -> bool:
        """Say whether there is no round left, be it for want of patience."""
        lines = self.record.rounds
        stopped = self.stopping is not None and bool(lines) and self.stopping.exhausted(lines)
        return self.finished >= self.settings.total or stopped

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
        with self.ranks.together():
            manifests = self.ranks.told(self.store.commit())  # every process has written its own files
            if self.ranks.leads:
                checksum = write_tree(self.record.checkpoint / file, tree.to(self.server, "cpu"))
                state = {"round": self.finished, **known, "server": {"file": file, "crc32": checksum}} | self._state()
                self.record.commit(state | {"personal": dict(ChainMap(*manifests))})
            self.ranks.told(None)  # a file that the last state does not name is removed: write no new one before
        self._saved = self.finished

    def _state(self) -> Line:
        """Write what a checkpoint has besides, and return what its state says of it."""
        return {}

    def run(self, save: Callable[[], None], progress: Callable[[Line], None]) -> None:
        """Run the rounds that are left, saving every `checkpoint_seconds` and when it ends, however it ends."""
        try:
            self._run(save, progress)
        finally:
            self.store.discard()
            whole = self._saved < self.finished and self._finite() and not self._sealing
            if self.ranks.unanimous(self.finished if whole else None):
                save()

    def _run(self, save: Callable[[], None], progress: Callable[[Line], None]) -> None:
        next_save = time.monotonic() + self.settings.checkpoint_seconds
        while not self.ended:
            with self.ranks.together():
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
            began = time.monotonic()
            if self.ranks.unanimous(self.finished if began >= next_save else None):
                save()
                done = time.monotonic()
                # large models take long to write: no more than a twentieth of the time goes into it
                next_save = done + max(self.settings.checkpoint_seconds, SAVING * (done - began))

    def _keep(self, server: Tree, finished: int) -> None:
        """Write what the method keeps of every round: it is small, and people want to see it grow."""
        for name in self.method.traits.keeps if self.ranks.leads else ():
            path = self.record.kept(name, finished)
            path.parent.mkdir(exist_ok=True)
            write_tree(path, {name: server[name]}, sealed=True)

    def round(self, t: int) -> tuple[Tree, Line]:
        """Run round `t`; return the next server tree and the round's line of the record."""
        began = time.monotonic()
        clients, server, conclude = self._next(t)
        last = t + 1 in (self.settings.rounds, self.settings.total)
        evaluated = last or (t + 1) % self.settings.every == 0
        personal = last or (evaluated and self.settings.personal)
        down, fitted = self._exchanged(t, server, clients, personal)

        def aggregated() -> Tree:
            heard, up, weights = self._guarded(t, server, clients, down, fitted)
            return conclude(self.task, server, heard, up, weights)

        server = self.ranks.concluded(aggregated, fitted.everywhere)
        scores: Line = dict.fromkeys(("loss", "received", "trained", "local", "deployed"))
        if personal:
            scores |= self._personal_scores(server, t, clients, fitted)
            scores |= self._validation_score(server, t, scores)
            last = last or self._exhausted(t, scores)
        if last or (evaluated and not personal):
            scores["deployed"] = self._deployed_score(server)
        self._check_finite(server, t, scores["loss"])
        privacy = self.guards.privacy((line["clients"] for line in self.record.rounds[:t]), clients.tolist())
        taken = [line["clients"] for line in self.record.rounds[:t]]
        examples = spent_on_examples(self.method, [*taken, clients.tolist()], clients.tolist())
        return server, {
            "round": t + 1,
            "clients": clients.tolist(),
            **scores,
            "measures": {name: float(value.mean()) for name, value in fitted.measures.items()}
            | ({"epsilon": max(privacy["epsilon"])} if privacy else {})
            | ({"epsilon of an example": max(examples["epsilon"])} if examples else {}),
            **({"privacy": privacy} if privacy else {}),
            **({"examples": examples} if examples else {}),
            "traffic": self._traffic(down, fitted.up, clients),
            "images": fitted.images,
            "seconds": round(time.monotonic() - began, 4),
        }

    def participants(self, t: int) -> Tensor:
        """Return who takes part in round `t`, in ascending order."""
        settings = self.settings
        if t >= settings.rounds:
            return self.everyone[len(self.founders) :]
        return choose(settings.seed, t, len(self.founders), settings.per_round, settings.groups)

    def _exchanged(self, t: int, server: Tree, clients: Tensor, test: bool) -> tuple[Tree, Fitted]:
        """Return what the clients of round `t` received, and what came back."""
        down = self.method.download(self.task, server, clients)
        return down, self.fleet.fit(t, clients, down, test=test)

    def _guarded(self, t: int, server: Tree, clients: Tensor, down: Tree, fitted: Fitted) -> Handed:
        """Return what the guards of round `t` leave of what came back."""
        return self.guards(t, clients, down, fitted.up, fitted.weights)

    def _next(self, t: int) -> tuple[Tensor, Tree, Aggregate]:
        """Return the participants of round `t`, the server's tree they start from, and the function that updates it."""
        settings = self.settings
        if t < settings.rounds:
            return self.participants(t), self.server, self.method.aggregate
        newcomers, server = self.participants(t), self.server
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
        # a single round may be run without a record of those before it
        before = self.record.rounds[t - 1]["received"] if 0 < t <= len(self.record.rounds) else None
        return {
            "loss": _mean_loss(received),
            "received": score(received["correct"].tolist(), count),
            "trained": trained,
            "local": local_score(trained, before, count),
            **self.beyond.scores(received),
        }

    def _validation_score(self, server: Tree, t: int, scores: Line) -> Line:
        """Return the received models' score on validation images, if it decides when the run ends."""
        if self.stopping is None:
            return {}
        if self.validation is None:
            return {"validation": scores["received"] | {"loss": scores["loss"]}}
        download = partial(self.method.download, self.task, server)
        sums = self.validation.evaluate(t, self._present(t), download, adapt=False)
        scored = score(sums["correct"].tolist(), sums["count"].tolist())
        return {"validation": scored | {"loss": _mean_loss(sums)}}

    def _exhausted(self, t: int, scores: Line) -> bool:
        lines = [*self.record.rounds[:t], scores | {"round": t + 1}]
        return self.stopping is not None and self.stopping.exhausted(lines)

    def reevaluated(self, line: Line) -> Line:
        """Return the last round's line with the scores of the final state as this loop's method tests it."""
        received = self._evaluate(self.server, self.finished - 1, adapt=False)
        return line | {
            "loss": _mean_loss(received),
            "received": score(received["correct"].tolist(), received["count"].tolist()),
            **self.beyond.scores(received),
            **dict.fromkeys(("trained", "local")),  # what the clients sent is gone
            "deployed": self._deployed_score(self.server),
        }

    def _deployed_score(self, server: Tree) -> dict[str, float] | None:
        """Test the model that needs no client, if the method has one."""
        model = self.method.deploy(self.task, server)
        if not model:
            return None
        return score_deployed(self.method, self.task, model, self.shards, self.settings.domain_names, self.ranks)

    def adapted(self) -> Line | None:
        """Return the score of the models the clients deploy, if the method adapts what a client received."""
        if not adapts(self.method):
            return None
        sums = self._evaluate(self.server, self.finished, adapt=True)
        return score(sums["correct"].tolist(), sums["count"].tolist()) | self.beyond.scores(sums)

    def predictions(self) -> Predictions | None:
        """Return what the models of the last test answer on the clients' images; `adapted` comes first."""
        if self._answers is None and classifies(self.method):  # resumed after the last round
            self._evaluate(self.server, self.finished - 1, adapt=False)
        return self._answers.predictions() if self._answers else None

    def after(self) -> Score | None:
        """Return the score of every client's model after one more local training from the final state."""
        if not self.settings.after:
            return None
        download = partial(self.method.download, self.task, self.server)
        parts = [
            self.fleet.fit(self.finished, some, download(some), keep=False).tested
            for some in self.everyone.split(self.settings.per_round or len(self.everyone))
        ]
        sums = tree.cat(parts)
        return score(sums["correct"].tolist(), sums["count"].tolist())

    def _traffic(self, down: Tree, up: Tree, clients: Tensor) -> dict[str, int]:
        """Count what the round sent."""
        once = self.method.traits.once
        seen = {client for line in self.record.rounds for client in line["clients"]} if once else set()
        first = sum(client not in seen for client in clients.tolist())
        return count_traffic(down, up, len(clients), first, once, self.guards)

    def _check_finite(self, server: Tree, t: int, loss: float | None) -> None:
        """Refuse numbers that are not finite. The check lags one round, so that the host need not wait for a GPU."""
        self._await_check()
        if loss is not None and not math.isfinite(loss):
            raise self._diverged(t)
        if server:
            self._pending_check = FiniteCheck.begin(
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
        answers = None
        if (t + 1 >= self.settings.total or self.ended) and adapt == adapts(self.method):  # what the clients deploy
            answers = self._answers = Answers(self.shards.rows["test"], len(self.task.classes))
        return self.fleet.evaluate(t, self._present(t), download, adapt=adapt, answers=answers, sets=self.beyond.sets)


def _mean_loss(sums: Tree) -> float | None:
    """Return the mean loss over all test images; real sites may keep their losses to themselves."""
    known = "loss" in sums and sums["count"].any()
    return float(sums["loss"].sum() / sums["count"].sum()) if known else None


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the block is done; then it acts as it would have."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed and callable(before):
        before(signal.SIGINT, None)
