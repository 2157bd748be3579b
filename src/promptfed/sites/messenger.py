"""Asks sites until enough of them have given a valid answer, and records everything else that happened."""

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from promptfed.core.errors import PromptFedError
from promptfed.sites import wire
from promptfed.sites.exchange import Exchange, Silence
from promptfed.sites.oversight import Oversight
from promptfed.sites.revocations import OUT
from promptfed.sites.settings import Federation
from promptfed.sites.versions import PACKED_BY, SENT, find_mismatch
from promptfed.sites.wire import Header, Message, NotFinite, Refused

RETRY_SECONDS = 0.5  # between two attempts at a round with too few answers
MOST_LETTERS = 300  # of a site's error message


@dataclass(frozen=True)
class RunHeader:
    """What every request of a run repeats: the run, its recipe and its classes."""

    run: str
    recipe: str
    classes: tuple[str, ...] = ()


@dataclass
class Events:
    """What happened in a round besides valid answers, by site."""

    silent: dict[str, str] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)


Checked = Callable[[str, Message], None]


class Messenger:
    """Asks sites until enough of them have given a valid answer."""

    def __init__(
        self, exchange: Exchange, federation: Federation, header: RunHeader, oversight: Oversight | None = None
    ) -> None:
        self.exchange, self.federation, self.header = exchange, federation, header
        self.oversight = oversight or Oversight()
        self.limit = federation.answer_bytes
        self.events = Events()
        self._late, self._repeated = dict(exchange.late), dict(exchange.repeated)

    def gather(
        self,
        requests: Mapping[int, Message],
        needed: int,
        checked: Checked,
        round: int,  # noqa: A002
    ) -> dict[int, Message]:
        """Return the valid answers by client; ask again while there are fewer than `needed` and more may come."""
        sites, good, diverged = self.federation.sites, dict[int, Message](), set[str]()
        ends = time.monotonic() + self.federation.patience_seconds
        while True:
            out = self.leave_out(requests, needed, round)
            sent = {
                sites[client]: self._address(client, message)
                for client, message in requests.items()
                if client not in good and sites[client] not in out
            }
            data = {site: wire.pack(message) for site, message in sent.items()}
            answers = self.exchange.exchange(round, data, self.federation.round_seconds)
            out = self.oversight.revoked()
            for site, answer in answers.items():
                if site in out:
                    self.events.silent[site] = OUT
                    continue
                if isinstance(answer, Silence):
                    self.events.silent[site] = answer.reason
                    continue
                try:
                    good[sites.index(site)] = self._opened(site, answer, sent[site].head, checked)
                except Refused as refusal:
                    self.events.refused.setdefault(site, []).append(str(refusal))
                    if isinstance(refusal, NotFinite):
                        diverged.add(site)
            self._count_dropped()
            if len(good) >= needed:
                return dict(sorted(good.items()))
            if len(requests) - len(diverged) < needed:
                raise PromptFedError(
                    f"Training diverged in round {round + 1} at {', '.join(sorted(diverged))}: {self.complaints()} "
                    "Lower method.lr or, where there is noise, guards.clip."
                )
            self.wait(ends, f"Round {round + 1} has {len(good)} of the {needed} answers it needs")

    def leave_out(self, clients: Collection[int], needed: int, round: int) -> frozenset[str]:  # noqa: A002
        """Return the sites whose certificate is revoked; give up if too few others are left of `clients`."""
        asked = {self.federation.sites[client] for client in clients}
        out = self.oversight.revoked() & asked
        self.events.silent |= dict.fromkeys(sorted(out), OUT)
        if out and len(asked - out) < needed:
            who = " and ".join(sorted(out))
            raise PromptFedError(
                f"Round {round + 1} needs {needed} answers, and without {who}, now revoked, there are only "
                f"{len(asked - out)} sites left. Lower min_sites in fed.toml, or let {who} in again with: promptfed "
                f"sites renew {' '.join(sorted(out))}"
            )
        return out

    def wait(self, ends: float, trouble: str) -> None:
        """Wait a moment before asking again, or give up if the patience is exhausted."""
        if time.monotonic() > ends:
            patience = self.federation.patience_seconds
            raise PromptFedError(f"{trouble} after {patience:g} seconds: {self.complaints()}")
        time.sleep(RETRY_SECONDS)

    def complaints(self) -> str:
        """Return what was wrong, site by site."""
        said = self.events.silent | {site: reasons[-1] for site, reasons in self.events.refused.items()}
        return " ".join(f"{site}: {reason}." for site, reason in sorted(said.items()))

    def take_events(self) -> Events:
        """Return what has happened since the last call."""
        events, self.events = self.events, Events()
        return events

    def _address(self, client: int, message: Message) -> Message:
        common: Header = {
            "run": self.header.run,
            "recipe": self.header.recipe,
            "classes": list(self.header.classes),
            "site": self.federation.sites[client],
            "client": client,
            "nonce": secrets.token_hex(16),
            SENT: time.time(),
        }
        return Message(self.oversight.signed(common | message.head), message.tree)

    def _opened(self, site: str, data: bytes, request: Header, checked: Checked) -> Message:
        """Return the answer if it belongs to this very request and is valid."""
        answer = wire.unpack(data, self.limit)
        if "error" in answer.head and "nonce" not in answer.head:  # it could not read the request, nor repeat it
            raise Refused(f"it says: {_printable(str(answer.head['error']))}")
        if trouble := find_mismatch(answer.head.get(PACKED_BY), "it"):
            raise Refused(trouble)
        for key in ("run", "round", "nonce", "kind", "site"):
            if answer.head.get(key) != request[key]:
                raise Refused(f"its {key} differs from the request's: a replayed or forged answer")
        self.oversight.note(site, answer.head)
        if "error" in answer.head:
            raise Refused(f"it says: {_printable(str(answer.head['error']))}")
        checked(site, answer)
        return answer

    def _count_dropped(self) -> None:
        """Record the answers that were dropped since the last call."""
        for site, count in self.exchange.late.items():
            if more := count - self._late.get(site, 0):
                self.events.late[site] = self.events.late.get(site, 0) + more
        for site, count in self.exchange.repeated.items():
            if more := count - self._repeated.get(site, 0):
                self.events.refused.setdefault(site, []).extend(["it answered a request that was not pending"] * more)
        self._late, self._repeated = dict(self.exchange.late), dict(self.exchange.repeated)


def _printable(text: str) -> str:
    """Return a site's message for a terminal: without control characters, and shortened."""
    return "".join(letter for letter in text[:MOST_LETTERS] if letter.isprintable())
