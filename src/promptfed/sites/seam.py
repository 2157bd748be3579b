"""The seam between the round loop and whatever carries messages: above it nobody knows an engine, below it a method.

An exchange moves bytes. It promises that

- it returns when every asked site has answered or `timeout` seconds have passed, never later;
- a site that still owes an answer is not asked again before it has given it: its place holds a `Silence`;
- an answer that comes after its exchange has closed is dropped and counted in `late`, never handed to another round.
"""

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Silence:
    """Why a site has given no answer, in one sentence."""

    reason: str


class Exchange(Protocol):
    """Asks many sites at once."""

    late: Counter[str]

    def exchange(self, round: int, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Silence]:  # noqa: A002
        """Send each site its own request; return what each of them answered."""
        ...


Deliver = Callable[[bytes | Silence], None]
Send = Callable[[str, bytes, Deliver], None]
"""Sends one site its request and returns at once; calls `deliver` when there is an answer, or a reason for none."""


class Desk:
    """What all engines share: who owes an answer, and which answers come too late."""

    def __init__(self) -> None:
        self.late = Counter[str]()
        self._lock = threading.Lock()
        self._busy: dict[str, tuple[object, int]] = {}  # the exchange a site works for, and its round

    def exchange(
        self,
        round: int,  # noqa: A002
        requests: Mapping[str, bytes],
        timeout: float,
        send: Send,
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, bytes | Silence]:
        """Ask all sites that owe no answer, and close at the deadline; `check` may end the waiting by an exception."""
        mine, ends = object(), time.monotonic() + timeout
        came: queue.Queue[tuple[str, bytes | Silence]] = queue.Queue()
        answers: dict[str, bytes | Silence] = {}
        check()
        for site, request in requests.items():
            with self._lock:
                owed = self._busy.setdefault(site, (mine, round))
            if owed[0] is mine:
                send(site, request, partial(self._deliver, site, mine, came))
            else:
                answers[site] = Silence(f"it is still at work on round {owed[1] + 1}")
        while len(answers) < len(requests) and time.monotonic() < ends:
            check()
            with contextlib.suppress(queue.Empty):
                site, answer = came.get(timeout=min(POLL_SECONDS, max(0.0, ends - time.monotonic())))
                answers[site] = answer
        with self._lock:  # from here on an answer is late
            self._busy = {site: (None if owed[0] is mine else owed[0], owed[1]) for site, owed in self._busy.items()}
        while not came.empty():
            site, answer = came.get()
            answers[site] = answer
        for site in requests.keys() - answers.keys():
            answers[site] = Silence(f"it gave no answer within {timeout:g} seconds")
        return answers

    def _deliver(
        self, site: str, mine: object, came: "queue.Queue[tuple[str, bytes | Silence]]", answer: bytes | Silence
    ) -> None:
        with self._lock:
            owed = self._busy.pop(site, None)
            if owed is not None and owed[0] is mine:
                came.put((site, answer))
            elif not isinstance(answer, Silence):
                self.late[site] += 1


class Threads:
    """An exchange with sites that are function calls or local processes: a thread waits for each of them."""

    def __init__(self, sites: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self.sites, self.desk = dict(sites), Desk()
        self.late = self.desk.late

    def exchange(self, round: int, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Silence]:  # noqa: A002
        """Send each site its own request; return what each of them answered."""
        return self.desk.exchange(round, requests, timeout, self._send)

    def _send(self, site: str, request: bytes, deliver: Deliver) -> None:
        threading.Thread(target=self._ask, args=(site, request, deliver), daemon=True).start()

    def _ask(self, site: str, request: bytes, deliver: Deliver) -> None:
        try:
            deliver(self.sites[site](request))
        except OSError as error:  # the site's process has died
            deliver(Silence(str(error)))
