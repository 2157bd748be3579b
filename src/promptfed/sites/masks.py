"""A site's part in secure aggregation: it hides its answer among sites that have signed, and helps to open one sum."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.federation.guards import Guards, secure
from promptfed.federation.guards.secure import NONCE, SHARE, TAG, Held, Keys, SecureSum
from promptfed.sites import wire
from promptfed.sites.identity import Identity, confirmed_by
from promptfed.sites.wire import Header, Message, Refused

KEYS = 64  # bytes of a client's two public keys
SEALED = NONCE + 2 * SHARE + TAG
MASKED = "masked"  # the name of an answer under masks


def find_secure_sum(guards: Guards) -> SecureSum | None:
    """Return the secure sum among the guards, if the recipe asks for it."""
    return next((guard for guard in guards.guards if isinstance(guard, SecureSum)), None)


def pack_rows(rows: Sequence[bytes]) -> Tensor:
    """Return byte strings of one length as they travel."""
    return torch.tensor([list(row) for row in rows], dtype=torch.uint8)


def unpack_row(value: Tensor) -> bytes:
    """Return one of them."""
    return bytes(value.tolist())


def unpack_keys(row: Tensor) -> Keys:
    """Return a client's public keys."""
    data = unpack_row(row)
    return Keys(data[: KEYS // 2], data[KEYS // 2 :])


@dataclass(frozen=True)
class Trust:
    """Among whom a site's owner lets its answers be hidden."""

    least: int  # sites in a sum
    members: Mapping[str, str]  # their public signing keys by name; none: any sites of this federation
    company: Callable[[Collection[str]], None] = lambda names: None  # refuses other sites than the run began with


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
    met: dict[int, str] = field(default_factory=dict)  # the signing keys of all who began
    agreed: list[int] = field(default_factory=list)  # whose answers are summed, as this site was told
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
            {"identity": self.identity.sign(self._statement(self.client, data))}, {"keys": pack_rows([data])[0]}
        )

    def shares(self, message: Message, clients: int) -> Message:
        """Seal a share of this site's secrets for everyone whose keys have come."""
        with self._once("shares"):
            members = _members(message.head["members"], range(clients))
            wire.check(message.tree, {"keys": (torch.uint8, (len(members), KEYS))})
            keys = {member: unpack_keys(row) for member, row in zip(members, message.tree["keys"], strict=True)}
            if keys.get(self.client) != secure.public(self.own) or len(members) < 2:
                raise Refused("an answer would not be hidden among these sites")
            if len(members) < self.trusts.least:
                raise Refused(
                    f"its owner's terms ask for {self.trusts.least} sites in a sum, and these are {len(members)}"
                )
            self._identify(members, message.head.get("identities"), message.tree["keys"])
            self.keys = keys
            sealed = secure.share(self.own, keys, self.threshold)
            return Message({}, {"sealed": pack_rows([sealed[member] for member in members])})

    def _identify(self, members: list[int], claims: object, keys: Tensor) -> None:
        """Refuse keys that their sites have not signed: a coordinator could put its own in their place."""
        if not isinstance(claims, list) or len(claims) != len(members):
            raise Refused("the keys of the other sites are not signed")
        proven = [
            self.identity.verify(claim, self._statement(member, unpack_row(row)))
            for member, claim, row in zip(members, claims, keys, strict=True)
        ]
        if len({site for site, _ in proven}) < len(members):
            raise Refused("one site takes part as several")
        self.identity.recognise(dict(proven), self.trusts.members)
        self.trusts.company([site for site, _ in proven])
        self.met = {member: key for member, (_, key) in zip(members, proven, strict=True)}

    def _statement(self, client: int, keys: bytes) -> bytes:
        return f"masks of client {client} in {self.context}\n".encode() + keys

    def open(self, message: Message) -> Message:
        """Open the shares of all who have shared, this site among them; say whose do not open."""
        with self._once("open", "shares"):
            members = _members(message.head["members"], self.keys)
            wire.check(message.tree, {"sealed": (torch.uint8, (len(members), SEALED))})
            if self.client not in members or len(members) < self.enough:
                raise Refused(f"an answer is hidden among {self.enough} sites or more")
            sealed = {member: unpack_row(row) for member, row in zip(members, message.tree["sealed"], strict=True)}
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

    def confirm(self, survivors: list[int]) -> Message:
        """Sign whose answers are to be summed, as this site was told: no other list will have enough signatures."""
        with self._once("confirm", "fit"):
            self.agreed = survivors
            return Message({"confirmed": self.identity.confirm(self._list())}, {})

    def reveal(self, head: Header) -> Message:
        """Tell the shares this site holds, of one kind for those who have answered and of the other for the rest."""
        with self._once("reveal", "confirm"):
            given = head.get("confirmed")
            signed = [
                isinstance(given, dict) and confirmed_by(self.met[member], given.get(str(member)), self._list())
                for member in self.agreed
            ]
            if sum(signed) < self.threshold:
                raise Refused(f"fewer than {self.threshold} sites have signed the list of those who have answered")
            opened = secure.reveal(self.held, self.agreed, self.threshold)
            rows = [opened.get(member, 0).to_bytes(SHARE, "big") for member in self.members]
            return Message({}, {"opened": pack_rows(rows)})

    def _list(self) -> bytes:
        return f"answers of {self.agreed} among {list(self.keys)} in {self.context}".encode()

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
