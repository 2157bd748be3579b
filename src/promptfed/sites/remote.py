"""Real sites as the clients of the round loop: `RemoteFleet` is a fleet like any other, above an exchange."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_sealed
from promptfed.core.tree import Tree
from promptfed.federation.answers import Answers
from promptfed.federation.beyond import OtherImages
from promptfed.federation.fleet import QUIET, Download, Fitted
from promptfed.results.folder import names
from promptfed.results.folder.parts import read_json
from promptfed.sites import wire
from promptfed.sites.client_run import ClientRun
from promptfed.sites.introductions import MOST
from promptfed.sites.masking import MaskingSession, OpenedSum, Unfinished
from promptfed.sites.masks import MASKED, find_secure_sum
from promptfed.sites.messenger import Checked, Messenger
from promptfed.sites.plausibility import Plausibility
from promptfed.sites.protocol import join_parts, pick_part, version
from promptfed.sites.wire import Message, Refused, Shapes


@dataclass(frozen=True)
class Expected:
    """What valid answers look like: learned by running the method on blank images here."""

    fit: Shapes
    evaluate: Shapes
    weights: tuple[float, ...]  # of every site, as it said at first
    tests: tuple[int | None, ...] = ()  # test images of every site, as it said at first

    @classmethod
    def of(cls, run: ClientRun, down: Tree, weights: Sequence[float], tests: Sequence[int | None]) -> "Expected":
        """Try the method on the blank run, from `down` [1, ...] as client 0 receives it."""
        fitted = run.fleet.fit(0, torch.tensor([0]), down, keep=False)
        parts = {"up": fitted.up, "measures": fitted.measures, "tested": fitted.tested}
        whole = tree.row(join_parts(parts) | {"weight": fitted.weights}, 0)
        tested = {name: value for name, value in whole.items() if name.startswith("tested.")}
        return cls(wire.shapes(whole), wire.shapes(tested), tuple(weights), tuple(tests))

    @property
    def up(self) -> Tree:
        """Return a tree of zeros in the form of a site's answer."""
        return {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in pick_part(self.fit, "up").items()}

    @property
    def masked(self) -> Shapes:
        """Return what an answer under masks looks like: one row of numbers instead of `up` and its weight."""
        plain = {name: shape for name, shape in self.fit.items() if not name.startswith("up.") and name != "weight"}
        return {MASKED: (torch.int64, (tree.floats(self.up) + 1,))} | plain


COUNTS = ("correct", "count")  # of the sums over test images


class RemoteFleet:
    """The sites as a fleet. A site without a valid answer in time has not taken part in the round."""

    def __init__(
        self, messenger: Messenger, run: ClientRun, expected: Expected, base: Callable[[int], str], folder: Path
    ) -> None:
        self.messenger, self.run, self.expected, self.base, self.folder = messenger, run, expected, base, folder
        self.answered = torch.arange(0)
        self.width, self.tick = len(run.shards), QUIET
        self.versions: dict[int, str] = {}  # the personal trees the last round has made, by client
        self.final = False  # the next evaluation is the run's last: sites write their model and report
        self.guard = find_secure_sum(run.guards)  # answers come under masks, if the recipe says so
        self.plausibility = Plausibility(messenger.federation.max_change)
        self._holds: set[int] = set()  # the clients that have what is sent once

    def fit(self, round: int, clients: Tensor, down: Tree, *, keep: bool = True, test: bool = True) -> Fitted:  # noqa: A002
        """Train the clients from `down` [C, ...]; those that did so in time are in `answered`."""
        asked = clients.tolist()
        if keep and self.guard is not None and self.expected.up:
            return self._fit_masked(round, asked, down, test)
        requests = {
            client: self._request("fit", round, client, tree.row(down, number), keep=keep, test=test)
            for number, client in enumerate(asked)
        }
        needed = min(self.messenger.federation.needed, len(asked)) if keep else 0
        good = self.messenger.gather(requests, needed, self._check_fit(keep, test), round)
        self._remember(requests, good)
        if not keep:  # only the tests count, and nothing else has come
            return Fitted({}, torch.zeros(0), {}, self._sums(asked, good), _images(good))
        good = self._plausible(round, {client: tree.row(down, n) for n, client in enumerate(asked)}, good, needed)
        up = tree.stack([pick_part(answer.tree, "up") for answer in good.values()])
        weights = torch.stack([answer.tree["weight"] for answer in good.values()])
        return self._fitted(round, asked, good, up, weights, test)

    def _plausible(
        self,
        round: int,  # noqa: A002
        down: Mapping[int, Tree],
        good: Mapping[int, Message],
        needed: int,
    ) -> dict[int, Message]:
        """Return the answers that moved plausibly far, unless a robust rule sees to it; asking again would not help."""
        if self.run.recipe.guards.get("robust", "mean") != "mean":
            return dict(good)
        sites = self.messenger.federation.sites
        up = {client: pick_part(answer.tree, "up") for client, answer in good.items()}
        refused = self.plausibility.refused(down, up)
        for client, reason in refused.items():
            self.messenger.events.refused.setdefault(sites[client], []).append(reason)
        left = {client: answer for client, answer in good.items() if client not in refused}
        if refused and len(left) < max(1, needed):
            said = " ".join(f"{sites[client]}: {reason}." for client, reason in refused.items())
            raise PromptFedError(f"Round {round + 1} has {len(left)} of the {needed} answers it needs: {said}")
        return left

    def _fit_masked(self, round: int, asked: list[int], down: Tree, test: bool) -> Fitted:  # noqa: A002
        """Train the clients and learn only the mean of their answers; a session that fails is repeated."""
        rows = {client: tree.row(down, number) for number, client in enumerate(asked)}
        ends, barred = time.monotonic() + self.messenger.federation.patience_seconds, set[int]()
        assert self.guard is not None
        while True:
            fixed = self._summed(round)
            wanted = fixed or [client for client in asked if client not in barred]
            enough = len(fixed) or min(self.messenger.federation.needed, len(asked))
            session = MaskingSession(self.messenger, round, self.guard, enough)
            try:
                done = self._attempt(session, {client: rows[client] for client in wanted}, test)
                return self._fitted(round, asked, done.answers, done.mean, done.weight, test)
            except Unfinished as trouble:
                barred |= session.spoilt
                self.messenger.wait(ends, f"Round {round + 1} could not be summed ({trouble})")

    def _attempt(self, session: MaskingSession, rows: Mapping[int, Tree], test: bool) -> OpenedSum:
        more = {"keep": True, "test": test, "session": session.name}
        ready = session.agree(list(rows))
        requests = {client: self._request("fit", session.round, client, rows[client], **more) for client in ready}
        good = self.messenger.gather(requests, 0, self._check_fit(True, test), session.round)
        self._remember(requests, good)
        if len(good) < max(session.enough, session.threshold):
            raise Unfinished(f"{len(good)} sites have answered")
        # from here on a site may have helped to open this sum, and will open no other one of this round
        write_sealed(self.folder / names.SUMMED, {"round": session.round, "clients": list(good)})
        like = {name: value.unsqueeze(0) for name, value in self.expected.up.items()}
        return session.conclude(good, like, sum(self.expected.weights[client] for client in good))

    def _summed(self, round: int) -> list[int]:  # noqa: A002
        """Return the clients whose sum was about to be opened when this round was last tried."""
        found = read_json(self.folder / names.SUMMED)
        return list(found["clients"]) if found and found["round"] == round else []

    def _fitted(
        self,
        round: int,  # noqa: A002
        asked: Sequence[int],
        good: Mapping[int, Message],
        up: Tree,
        weights: Tensor,
        test: bool,
    ) -> Fitted:
        self.answered = torch.tensor(list(good), dtype=torch.long)
        self.versions = {client: version(round, answer.head["nonce"]) for client, answer in good.items()}
        told = [part for answer in good.values() if (part := pick_part(answer.tree, "measures"))]
        measures = tree.stack(told) if told else {}
        return Fitted(up, weights, measures, self._sums(asked, good) if test else {}, _images(good))

    def suspects(self) -> list[int]:
        """Return whose answers of the last round may have broken the server's model; masks hide which."""
        return self.answered.tolist() if self.guard is not None else self.plausibility.suspects()

    def evaluate(
        self,
        round: int,  # noqa: A002
        clients: Tensor,
        download: Download,
        *,
        adapt: bool,
        answers: Answers | None = None,  # hears nothing: answers for single images never leave a site
        sets: Sequence[OtherImages] = (),  # other images than its own are not there to test on
    ) -> Tree:
        """Return sums [C] of every client's model over its own test images; zero for one that gives no answer."""
        down = download(clients)
        requests = {
            client: self._request("evaluate", round, client, tree.row(down, number), adapt=adapt, final=self.final)
            for number, client in enumerate(clients.tolist())
        }
        good = self.messenger.gather(requests, 0, self._check_evaluate, round)
        self._remember(requests, good)
        return self._sums(clients.tolist(), good)

    def _request(self, kind: str, round: int, client: int, down: Tree, **more: object) -> Message:  # noqa: A002
        sent = tree.drop(down, self.run.method.traits.once) if client in self._holds else down
        settled = self.base(client)
        versions = {"base": self.versions.get(client, settled), "settled": settled}
        return Message({"kind": kind, "round": round, "names": list(down), **versions, **more}, sent)

    def _remember(self, requests: Mapping[int, Message], good: Mapping[int, Message]) -> None:
        """Record who now has what is sent once; whoever failed gets it again."""
        self._holds = (self._holds - requests.keys()) | good.keys()

    def _check_fit(self, keep: bool, test: bool) -> Checked:
        masked = keep and self.guard is not None and bool(self.expected.up)
        whole, wanted = self.expected.masked if masked else self.expected.fit, {"tested.": test}
        expected = {name: shape for name, shape in whole.items() if wanted.get(name[: len("tested.")], keep)}

        def check(site: str, answer: Message) -> None:
            wire.check(answer.tree, _told(answer.tree, expected))
            declared = self.expected.weights[self._number(site)]
            if keep and not masked and float(answer.tree["weight"]) != declared:
                raise Refused(f"its weight is {float(answer.tree['weight']):g}, but it declared {declared:g}")
            images: Any = answer.head.get("images")
            if type(images) is not int or not 0 <= images < MOST:
                raise Refused("it does not say how many images it used")
            _check_sums(answer.tree, self.expected.tests[self._number(site)])

        return check

    def _check_evaluate(self, site: str, answer: Message) -> None:
        wire.check(answer.tree, _told(answer.tree, self.expected.evaluate))
        _check_sums(answer.tree, self.expected.tests[self._number(site)])

    def _number(self, site: str) -> int:
        return self.messenger.federation.sites.index(site)

    def _sums(self, asked: Sequence[int], good: Mapping[int, Message]) -> Tree:
        """Return sums [C], zero for a site that tells none; beside the counts only what all others tell."""
        told = {client: part for client, answer in good.items() if (part := pick_part(answer.tree, "tested"))}
        zero = {
            name: torch.zeros(shape, dtype=dtype)
            for name, (dtype, shape) in pick_part(self.expected.evaluate, "tested").items()
            if name in COUNTS or all(name in part for part in told.values())
        }
        return tree.stack([tree.pick(told[client], list(zero)) if client in told else zero for client in asked])


def _told(answer: Tree, expected: Shapes) -> Shapes:
    """Return what of `expected` must be in an answer: a site may keep measures and test results to itself.

    Of the results it tells all, or none but the counts, or none.
    """
    groups = [
        [name for name in expected if name.startswith("measures.")],
        [f"tested.{name}" for name in COUNTS if f"tested.{name}" in expected],
        [name for name in expected if name.startswith("tested.") and name.removeprefix("tested.") not in COUNTS],
    ]
    untold = {name for group in groups if not answer.keys() & set(group) for name in group}
    return {name: shape for name, shape in expected.items() if name not in untold}


def _images(good: Mapping[int, Message]) -> int:
    """Return how many training images the sites say they have seen."""
    return sum(answer.head["images"] for answer in good.values())


def _check_sums(answer: Tree, declared: int | None) -> None:
    """Refuse impossible counts, and more test images than the site declared."""
    sums = pick_part(answer, "tested")
    if declared is not None and "count" in sums and float(sums["count"]) > declared:
        raise Refused(f"it counts {float(sums['count']):g} test images, but it declared {declared:,}")
    if "count" in sums and "correct" in sums and not 0 <= float(sums["correct"]) <= float(sums["count"]):
        raise Refused(f"it counts {float(sums['correct']):g} correct predictions of {float(sums['count']):g}")
