"""Secure aggregation over sites: the coordinator carries keys and sealed shares, and learns the sum of all answers.

    coordinator                       site
    keys                          →   public keys, of secrets drawn for this session, signed
    shares: everyone's keys       →   a sealed share of its secrets for everyone, if all keys are signed by their sites
    open: the shares for it       →   whose shares do not open
    fit                           →   its answer under masks
    reveal: who has answered      →   of each of them a share of its own mask,
                                      of who is gone a share of its private key

The secrets live in the memory of the site's worker and serve for one answer and one opening. A session that fails is
repeated with new ones; but once sites have been asked to reveal, the round has no other sum than that of the same
sites: two sums that differ by one site would reveal its answer. The protocol itself is in
`promptfed.federation.guards.secure`.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.federation.guards import Guards, secure
from promptfed.federation.guards.secure import FRACTION, NONCE, SHARE, TAG, Held, Keys, SecureSum
from promptfed.sites import wire
from promptfed.sites.identity import Identity, check_claim
from promptfed.sites.messenger import Checked, Messenger
from promptfed.sites.wire import Header, Message, Refused, Shapes

KEYS = 64  # bytes of a client's two public keys
SEALED = NONCE + 2 * SHARE + TAG
MASKED = "masked"  # the name of an answer under masks


def of_guards(guards: Guards) -> SecureSum | None:
    """Return the secure sum among the guards, if the recipe asks for it."""
    return next((guard for guard in guards.guards if isinstance(guard, SecureSum)), None)


def _bytes(rows: Sequence[bytes]) -> Tensor:
    return torch.tensor([list(row) for row in rows], dtype=torch.uint8)


def _row(value: Tensor) -> bytes:
    return bytes(value.tolist())


def _keys(row: Tensor) -> Keys:
    data = _row(row)
    return Keys(data[: KEYS // 2], data[KEYS // 2 :])


@dataclass(frozen=True)
class Trust:
    """Among whom a site's owner lets its answers be hidden."""

    least: int  # sites in a sum
    members: Mapping[str, str]  # their public signing keys by name; none: any sites of this federation


# -- a site ------------------------------------------------------------------------------------------------------------


@dataclass
class Masks:
    """A site's part in one session: each step once, and in order."""

    session: str
    round: int
    client: int
    own: secure.Secrets
    share: float  # more than this share of the clients must stay, whatever the coordinator says
    identity: Identity
    trusts: Trust
    context: str  # of what is signed: a signature is good for one session of one run
    keys: dict[int, Keys] = field(default_factory=dict)  # of all who began
    held: dict[int, Held] = field(default_factory=dict)  # shares of who has shared
    members: list[int] = field(default_factory=list)  # who has shared
    _begun: set[str] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)

    @classmethod
    def begin(cls, head: Header, client: int, guard: SecureSum, identity: Identity, trusts: Trust) -> "Masks":
        """Draw secrets for a session, which is for one round."""
        recipe = hashlib.sha256(head["recipe"].encode()).hexdigest()
        context = json.dumps([head["run"], head["round"], head["session"], recipe])
        own = secure.fresh(client)
        return cls(head["session"], head["round"], client, own, guard.threshold, identity, trusts, context)

    @property
    def threshold(self) -> int:
        """Return how many sites must stay to the end to open masks."""
        return secure.needed(len(self.keys), self.share)

    @property
    def enough(self) -> int:
        """Return among how many sites an answer must be hidden."""
        return max(self.threshold, self.trusts.least)

    def public(self) -> Message:
        """Tell the others this site's keys, signed."""
        keys = secure.public(self.own)
        data = keys.sealing + keys.masking
        return Message(
            {"identity": self.identity.sign(self._statement(self.client, data))}, {"keys": _bytes([data])[0]}
        )

    def shares(self, message: Message, clients: int) -> Message:
        """Seal a share of this site's secrets for everyone whose keys have come."""
        with self._once("shares"):
            members = _members(message.head["members"], range(clients))
            wire.check(message.tree, {"keys": (torch.uint8, (len(members), KEYS))})
            keys = {member: _keys(row) for member, row in zip(members, message.tree["keys"], strict=True)}
            if keys.get(self.client) != secure.public(self.own) or len(members) < 2:
                raise Refused("an answer would not be hidden among these sites")
            if len(members) < self.trusts.least:
                raise Refused(
                    f"its owner's terms ask for {self.trusts.least} sites in a sum, and these are {len(members)}"
                )
            self._identify(members, message.head.get("identities"), message.tree["keys"])
            self.keys = keys
            sealed = secure.share(self.own, keys, self.threshold)
            return Message({}, {"sealed": _bytes([sealed[member] for member in members])})

    def _identify(self, members: list[int], claims: object, keys: Tensor) -> None:
        """Refuse keys that their sites have not signed: a coordinator could put its own in their place."""
        if not isinstance(claims, list) or len(claims) != len(members):
            raise Refused("the keys of the other sites are not signed")
        met = dict(
            self.identity.verify(claim, self._statement(member, _row(row)))
            for member, claim, row in zip(members, claims, keys, strict=True)
        )
        if len(met) < len(members):
            raise Refused("one site takes part as several")
        self.identity.recognise(met, self.trusts.members)

    def _statement(self, client: int, keys: bytes) -> bytes:
        return f"masks of client {client} in {self.context}\n".encode() + keys

    def open(self, message: Message) -> Message:
        """Open the shares of all who have shared, this site among them; say whose do not open."""
        with self._once("open", "shares"):
            members = _members(message.head["members"], self.keys)
            wire.check(message.tree, {"sealed": (torch.uint8, (len(members), SEALED))})
            if self.client not in members or len(members) < self.enough:
                raise Refused(f"an answer is hidden among {self.enough} sites or more")
            sealed = {member: _row(row) for member, row in zip(members, message.tree["sealed"], strict=True)}
            self.members, self.held = members, secure.unseal(self.own, self.keys, sealed)
            return Message({"unopened": [member for member in members if member not in self.held]}, {})

    def masked(self, up: Tree, weight: Tensor) -> Tree:
        """Return this site's answer under masks that cancel in the sum of all members."""
        with self._once("fit", "open"):
            try:
                numbers = secure.encode(
                    secure.weighted({name: value.unsqueeze(0) for name, value in up.items()}, weight.unsqueeze(0)),
                    len(self.members),
                )[0]
            except PromptFedError as error:
                raise Refused(str(error)) from error
            row = secure.masked(self.own, {member: self.keys[member] for member in self.members}, numbers)
            return {MASKED: torch.from_numpy(row.astype(np.uint64).view(np.int64))}

    def survivors(self, head: Header) -> list[int]:
        """Return whose answers are to be summed, if this site's is hidden among them."""
        survivors = _members(head["survivors"], self.members)
        if self.client not in survivors or len(survivors) < self.enough:
            raise Refused(f"masks are opened only for {self.enough} answers or more, this site's among them")
        return survivors

    def reveal(self, survivors: list[int]) -> Message:
        """Tell the shares this site holds, of one kind for those who have answered and of the other for the rest."""
        with self._once("reveal", "fit"):
            opened = secure.reveal(self.held, survivors, self.threshold)
            rows = [opened.get(member, 0).to_bytes(SHARE, "big") for member in self.members]
            return Message({}, {"opened": _bytes(rows)})

    @contextmanager
    def _once(self, step: str, after: str | None = None) -> Iterator[None]:
        """Refuse a step out of order or a second time: two answers under one mask would tell their difference.

        A step that was refused is over, and so is the session: no other step can follow it.
        """
        if step in self._begun or (after is not None and after not in self._done):
            raise Refused(f'step "{step}" of secure aggregation is out of turn')
        self._begun.add(step)
        yield
        self._done.add(step)


def _members(given: object, known: Sequence[int] | Mapping[int, Keys] | range) -> list[int]:
    """Return the named clients, if they are some of those known, each once, in ascending order."""
    if not isinstance(given, list) or any(type(one) is not int or one not in known for one in given):
        raise Refused("it names unknown clients")
    if sorted(set(given)) != given:
        raise Refused("it names clients twice or out of order")
    return given


# -- the coordinator ---------------------------------------------------------------------------------------------------


class Unfinished(Exception):  # noqa: N818  (the round is repeated)
    """A session that failed; the sentence says why."""


@dataclass(frozen=True)
class OpenedSum:
    """A finished session: the answers that are in the sum, and their weighted mean [1, ...] with its weight [1]."""

    answers: dict[int, Message]
    mean: Tree
    weight: Tensor


class MaskingSession:
    """One attempt at a round: whoever is lost on the way is left out of the sum, while enough stay."""

    def __init__(self, messenger: Messenger, round: int, guard: SecureSum, enough: int) -> None:  # noqa: A002
        self.messenger, self.round, self.guard = messenger, round, guard
        self.enough = max(2, enough)  # one answer alone is not hidden
        self.name = secrets.token_hex(16)
        self.keys: dict[int, Keys] = {}  # of all who began
        self.sealed: dict[int, Tensor] = {}  # of who has shared, a row per key
        self.unopened: dict[int, list[int]] = {}  # of who has tried, whose shares do not open
        self.spoilt: set[int] = set()  # sites whose shares most others cannot open

    @property
    def threshold(self) -> int:
        """Return how many sites must stay to the end."""
        return secure.needed(len(self.keys), self.guard.threshold)

    def agree(self, clients: Sequence[int]) -> list[int]:
        """Let the clients exchange keys and shares; return those who are ready to answer."""
        asked = {client: self._message("keys") for client in clients}
        found = self._ask(asked, self._check_keys, self.enough)
        self.keys = {client: _keys(answer.tree["keys"]) for client, answer in found.items()}
        everyone, rows = list(self.keys), torch.stack([answer.tree["keys"] for answer in found.values()])
        more = {"members": everyone, "identities": [answer.head["identity"] for answer in found.values()]}
        asked = {client: self._message("shares", {"keys": rows}, **more) for client in everyone}
        expected: Shapes = {"sealed": (torch.uint8, (len(everyone), SEALED))}
        found = self._ask(asked, lambda site, answer: wire.check(answer.tree, expected), self.threshold)
        self.sealed = {client: answer.tree["sealed"] for client, answer in found.items()}
        members = list(self.sealed)
        places = {client: place for place, client in enumerate(self.keys)}
        columns = {client: torch.stack([row[places[client]] for row in self.sealed.values()]) for client in members}
        asked = {client: self._message("open", {"sealed": columns[client]}, members=members) for client in members}
        found = self._ask(asked, self._check_unopened, self.threshold)
        self.unopened = {client: answer.head["unopened"] for client, answer in found.items()}
        self._blame()
        return list(found)

    def conclude(self, answers: dict[int, Message], like: Tree, weight: float) -> OpenedSum:
        """Open the masks of the sum; `weight` is what the answers' weights add up to, as the sites said at first."""
        asked = {client: self._message("reveal", survivors=list(answers)) for client in answers}
        expected: Shapes = {"opened": (torch.uint8, (len(self.sealed), SHARE))}
        found = self._ask(asked, lambda site, answer: wire.check(answer.tree, expected), self.threshold)
        opened = {
            client: {
                member: int.from_bytes(_row(row), "big")
                for member, row in zip(self.sealed, answer.tree["opened"], strict=True)
                if member not in self.unopened[client]
            }
            for client, answer in found.items()
        }
        rows = {client: answer.tree[MASKED].numpy().view(np.uint64) for client, answer in answers.items()}
        try:
            total = secure.unmask({client: self.keys[client] for client in self.sealed}, rows, opened, self.threshold)
        except PromptFedError as error:
            raise Unfinished(str(error)) from error
        numbers = secure.decode(total)
        if abs(float(numbers[-1]) - weight) > len(answers) * 2.0**-FRACTION:
            raise Unfinished("the weights in the sum are not those of its sites: some answer or share is wrong")
        return OpenedSum(answers, *secure.averaged(numbers, like))

    def _blame(self) -> None:
        """Give up if most of the others cannot open a site's shares, or too few can, and note which site that is."""
        for member in self.sealed:
            others = [unopened for client, unopened in self.unopened.items() if client != member]
            failed = sum(member in unopened for unopened in others)
            able = sum(member not in unopened for unopened in self.unopened.values())
            if 2 * failed > len(others) or able < self.threshold:
                self.spoilt.add(member)
                site = self.messenger.federation.sites[member]
                self.messenger.events.refused.setdefault(site, []).append("the others cannot open its shares")
        if self.spoilt:
            raise Unfinished("some shares do not open")

    def _check_keys(self, site: str, answer: Message) -> None:
        wire.check(answer.tree, {"keys": (torch.uint8, (KEYS,))})
        if not secure.sound(_keys(answer.tree["keys"])):
            raise Refused("its keys are not valid")
        if check_claim(answer.head.get("identity"))["site"] != site:
            raise Refused("it says that it is another site")

    def _check_unopened(self, site: str, answer: Message) -> None:
        wire.check(answer.tree, {})
        unopened = answer.head.get("unopened")
        if not isinstance(unopened, list) or any(
            type(member) is not int or member not in self.sealed for member in unopened
        ):
            raise Refused("it does not say which shares it cannot open")

    def _message(self, kind: str, content: Tree | None = None, **more: object) -> Message:
        return Message({"kind": kind, "round": self.round, "session": self.name, **more}, content or {})

    def _ask(self, asked: Mapping[int, Message], checked: Checked, enough: int) -> dict[int, Message]:
        found = self.messenger.gather(asked, 0, checked, self.round)
        if len(found) < enough:
            raise Unfinished(f"{len(found)} of {enough} sites reached step {next(iter(asked.values())).head['kind']}")
        return found
