"""The clients of the round loop at real sites: `Remote` is a fleet like any other, above an exchange of messages."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from promptfed import tree
from promptfed.errors import PromptFedError
from promptfed.federation.fleet import Download, Fitted
from promptfed.sites import wire
from promptfed.sites.place import Place
from promptfed.sites.seam import Exchange, Silence
from promptfed.sites.settings import Federation
from promptfed.sites.wire import Head, Message, Refused, Shapes
from promptfed.sites.worker import joined, version
from promptfed.tree import Tree

RETRY_SECONDS = 0.5  # between two askings of a round with too few answers


@dataclass(frozen=True)
class Terms:
    """What every request of a run says: which run, by which recipe, with which classes."""

    run: str
    recipe: str
    classes: tuple[str, ...] = ()


@dataclass
class Events:
    """What a round met besides answers, by site."""

    silent: dict[str, str] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)


Checked = Callable[[str, Message], None]


class Post:
    """Asks sites until enough of them have given an answer that can be used."""

    def __init__(self, exchange: Exchange, federation: Federation, terms: Terms) -> None:
        self.exchange, self.federation, self.terms = exchange, federation, terms
        self.limit = int(federation.answer_mb * 2**20)
        self.events = Events()
        self._late = dict(exchange.late)

    def gather(
        self,
        requests: Mapping[int, Message],
        needed: int,
        checked: Checked,
        round: int,  # noqa: A002
    ) -> dict[int, Message]:
        """Return the good answers by client; ask again while there are fewer than `needed`."""
        sites, good = self.federation.sites, dict[int, Message]()
        ends = time.monotonic() + self.federation.patience_seconds
        while True:
            sent = {
                sites[client]: self._address(client, message)
                for client, message in requests.items()
                if client not in good
            }
            data = {site: wire.pack(message) for site, message in sent.items()}
            answers = self.exchange.exchange(round, data, self.federation.round_seconds)
            for site, answer in answers.items():
                if isinstance(answer, Silence):
                    self.events.silent[site] = answer.reason
                    continue
                try:
                    good[sites.index(site)] = self._opened(site, answer, sent[site].head, checked)
                except Refused as refusal:
                    self.events.refused.setdefault(site, []).append(str(refusal))
            self._count_late()
            if len(good) >= needed:
                return dict(sorted(good.items()))
            if time.monotonic() > ends:
                raise PromptFedError(
                    f"Round {round + 1} has {len(good)} of the {needed} answers it needs after "
                    f"{self.federation.patience_seconds:g} seconds: {self.complaints()}"
                )
            time.sleep(RETRY_SECONDS)

    def complaints(self) -> str:
        """Say what was wrong, site by site."""
        said = self.events.silent | {site: reasons[-1] for site, reasons in self.events.refused.items()}
        return " ".join(f"{site}: {reason}." for site, reason in sorted(said.items()))

    def take_events(self) -> Events:
        """Return what has happened since this was last asked."""
        events, self.events = self.events, Events()
        return events

    def _address(self, client: int, message: Message) -> Message:
        common: Head = {
            "run": self.terms.run,
            "recipe": self.terms.recipe,
            "classes": list(self.terms.classes),
            "site": self.federation.sites[client],
            "client": client,
            "nonce": secrets.token_hex(16),
        }
        return Message(common | message.head, message.tree)

    def _opened(self, site: str, data: bytes, request: Head, checked: Checked) -> Message:
        """Return the answer if it is one to this very request, and sound."""
        answer = wire.unpack(data, self.limit)
        for key in ("run", "round", "nonce", "kind", "site"):
            if answer.head.get(key) != request[key]:
                raise Refused(f"its {key} is not the request's: a replayed or forged answer")
        if "error" in answer.head:
            raise Refused(f"it says: {answer.head['error']}")
        checked(site, answer)
        return answer

    def _count_late(self) -> None:
        for site, count in self.exchange.late.items():
            if more := count - self._late.get(site, 0):
                self.events.late[site] = self.events.late.get(site, 0) + more
        self._late = dict(self.exchange.late)


@dataclass(frozen=True)
class Expected:
    """What sound answers look like: learned by letting the method work on blank images here."""

    fit: Shapes
    evaluate: Shapes
    weights: tuple[float, ...]  # of every site, as it said at first

    @classmethod
    def of(cls, place: Place, down: Tree, weights: Sequence[float]) -> "Expected":
        """Try the method on the blank place, from `down` [1, ...] as client 0 receives it."""
        fitted = place.fleet.fit(0, torch.tensor([0]), down, keep=False)
        parts = {"up": fitted.up, "measures": fitted.measures, "tested": fitted.tested}
        whole = tree.row(joined(parts) | {"weight": fitted.weights}, 0)
        place.shards.pool.seen = 0
        tested = {name: value for name, value in whole.items() if name.startswith("tested.")}
        return cls(wire.shapes(whole), wire.shapes(tested), tuple(weights))

    @property
    def up_floats(self) -> int:
        """Return how many numbers a site sends in a round."""
        shapes = [shape for name, (_, shape) in self.fit.items() if name.startswith("up.")]
        return sum(torch.Size(shape).numel() for shape in shapes)


class Remote:
    """The sites as a fleet. A site that gives no sound answer in time has not taken part in the round."""

    def __init__(self, post: Post, place: Place, expected: Expected, base: Callable[[int], str]) -> None:
        self.post, self.place, self.expected, self.base = post, place, expected, base
        self.answered = torch.arange(0)
        self.versions: dict[int, str] = {}  # the personal trees the last round has made, by client
        self.final = False  # the next evaluation is the run's last: sites write their model and report
        self._holds: set[int] = set()  # the clients that have what is sent once

    def fit(self, round: int, clients: Tensor, down: Tree, *, keep: bool = True, test: bool = True) -> Fitted:  # noqa: A002
        """Train the clients from `down` [C, ...]; those who did it in time are in `answered`."""
        asked = clients.tolist()
        requests = {
            client: self._request("fit", round, client, tree.row(down, number), keep=keep, test=test)
            for number, client in enumerate(asked)
        }
        needed = min(self.post.federation.needed, len(asked)) if keep else 0
        good = self.post.gather(requests, needed, self._check_fit(keep, test), round)
        self._remember(requests, good)
        self.place.shards.pool.seen += sum(answer.head["images"] for answer in good.values())
        if not keep:  # only the tests count, and nothing else has come
            return Fitted({}, torch.zeros(0), {}, self._sums(asked, good))
        self.answered = torch.tensor(list(good), dtype=torch.long)
        self.versions = {client: version(round, answer.head["nonce"]) for client, answer in good.items()}
        parts = {name: [_part(answer.tree, name) for answer in good.values()] for name in ("up", "measures")}
        weights = torch.stack([answer.tree["weight"] for answer in good.values()])
        tested = self._sums(asked, good) if test else {}
        return Fitted(tree.stack(parts["up"]), weights, tree.stack(parts["measures"]), tested)

    def evaluate(self, round: int, clients: Tensor, download: Download, *, adapt: bool) -> Tree:  # noqa: A002
        """Return sums [C] of every client's model over its own test images; zero for one that gives no answer."""
        down = download(clients)
        requests = {
            client: self._request("evaluate", round, client, tree.row(down, number), adapt=adapt, final=self.final)
            for number, client in enumerate(clients.tolist())
        }
        good = self.post.gather(requests, 0, self._check_evaluate, round)
        self._remember(requests, good)
        return self._sums(clients.tolist(), good)

    def _request(self, kind: str, round: int, client: int, down: Tree, **more: object) -> Message:  # noqa: A002
        sent = tree.drop(down, self.place.method.once) if client in self._holds else down
        settled = self.base(client)
        versions = {"base": self.versions.get(client, settled), "settled": settled}
        return Message({"kind": kind, "round": round, "names": list(down), **versions, **more}, sent)

    def _remember(self, requests: Mapping[int, Message], good: Mapping[int, Message]) -> None:
        """Note who now holds what is sent once; whoever failed gets it again."""
        self._holds = (self._holds - requests.keys()) | good.keys()

    def _check_fit(self, keep: bool, test: bool) -> Checked:
        wanted = {"tested.": test}
        expected = {
            name: shape for name, shape in self.expected.fit.items() if wanted.get(name[: len("tested.")], keep)
        }

        def check(site: str, answer: Message) -> None:
            wire.check(answer.tree, expected)
            declared = self.expected.weights[self.post.federation.sites.index(site)]
            if keep and float(answer.tree["weight"]) != declared:
                raise Refused(f"its weight is {float(answer.tree['weight']):g}, at first it was {declared:g}")
            images: Any = answer.head.get("images")
            if type(images) is not int or images < 0:
                raise Refused("it does not say how many images it has used")
            _check_sums(answer.tree)

        return check

    def _check_evaluate(self, site: str, answer: Message) -> None:
        wire.check(answer.tree, self.expected.evaluate)
        _check_sums(answer.tree)

    def _sums(self, asked: Sequence[int], good: Mapping[int, Message]) -> Tree:
        zero = {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in self.expected.evaluate.items()}
        rows = [good[client].tree if client in good else zero for client in asked]
        return tree.stack([_part(row, "tested") for row in rows])


def _part(whole: Tree, name: str) -> Tree:
    return {key.removeprefix(f"{name}."): value for key, value in whole.items() if key.startswith(f"{name}.")}


def _check_sums(answer: Tree) -> None:
    """Refuse counts that cannot be."""
    sums = _part(answer, "tested")
    if "count" in sums and "correct" in sums and not 0 <= float(sums["correct"]) <= float(sums["count"]):
        raise Refused(f"it counts {float(sums['correct']):g} right answers of {float(sums['count']):g}")
