"""Secure aggregation over sites: the coordinator carries keys and sealed shares, and learns the sum of all answers.

    coordinator                       site
    keys                          →   public keys, of secrets drawn for this session, signed
    shares: everyone's keys       →   a sealed share of its secrets for everyone, if all keys are signed by their sites
    open: the shares for it       →   whose shares do not open
    fit                           →   its answer under masks
    confirm: who has answered     →   its signature under that list
    reveal: the signatures        →   of each who has answered a share of its own mask,
                                      of who is gone a share of its private key

The secrets live in the memory of the site's worker and serve for one answer and one opening. A session that fails is
repeated with new ones; but once sites have been asked to reveal, the round has no other sum than that of the same
sites: two sums that differ by one site would reveal its answer. The protocol itself is in
`promptfed.federation.guards.secure`, a site's part in it in `promptfed.sites.masks`.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.federation.guards import secure
from promptfed.federation.guards.secure import FRACTION, SHARE, Keys, SecureSum
from promptfed.sites import wire
from promptfed.sites.identity import LONGEST, check_claim
from promptfed.sites.masks import KEYS, MASKED, SEALED, unpack_keys, unpack_row
from promptfed.sites.messenger import Checked, Messenger
from promptfed.sites.wire import Message, Refused, Shapes


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
        self.keys = {client: unpack_keys(answer.tree["keys"]) for client, answer in found.items()}
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
        asked = {client: self._message("confirm", survivors=list(answers)) for client in answers}
        found = self._ask(asked, _check_confirmed, self.threshold)
        signed = {str(client): answer.head["confirmed"] for client, answer in found.items()}
        asked = {client: self._message("reveal", confirmed=signed) for client in found}
        expected: Shapes = {"opened": (torch.uint8, (len(self.sealed), SHARE))}
        found = self._ask(asked, lambda site, answer: wire.check(answer.tree, expected), self.threshold)
        opened = {
            client: {
                member: int.from_bytes(unpack_row(row), "big")
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
        if not secure.sound(unpack_keys(answer.tree["keys"])):
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


def _check_confirmed(site: str, answer: Message) -> None:
    wire.check(answer.tree, {})
    if not isinstance(answer.head.get("confirmed"), str) or len(answer.head["confirmed"]) > LONGEST:
        raise Refused("it does not sign the list of those who have answered")
