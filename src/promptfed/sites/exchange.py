"""The interface between the round loop and the transport: the code above knows no engine, the code below no method.

An exchange moves bytes. It promises that

- it returns when every asked site has answered or `timeout` seconds have passed, never later;
- a site that still owes an answer is not asked again before it has answered: it gets a `Silence`;
- an answer that comes after its exchange has closed is dropped and counted in `late`, never handed to another round;
- a second answer to the same request is dropped and counted in `repeated`.
"""

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Silence:
    """Why a site has not answered, in one sentence."""

    reason: str


class Exchange(Protocol):
    """Asks many sites at once."""

    late: Counter[str]
    repeated: Counter[str]

    def exchange(self, round: int, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Silence]:  # noqa: A002
        """Send each site its own request; return what each of them answered."""
        ...


Deliver = Callable[[bytes | Silence], None]
Send = Callable[[str, bytes, Deliver], None]
"""Sends one site its request and returns at once; calls `deliver` with the answer, or with why there is none."""


@dataclass(eq=False)
class _Opened:
    """One exchange, while answers to it count."""

    round: int
    came: "queue.Queue[tuple[str, bytes | Silence]]" = field(default_factory=queue.Queue)
    closed: bool = False


class PendingRequests:
    """What all engines share: which sites owe an answer, and which answers are late or repeated."""

    def __init__(self) -> None:
        self.late, self.repeated = Counter[str](), Counter[str]()
        self._lock = threading.Lock()
        self._busy: dict[str, _Opened] = {}  # the exchange a site works for

    def exchange(
        self,
        round: int,  # noqa: A002
        requests: Mapping[str, bytes],
        timeout: float,
        send: Send,
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, bytes | Silence]:
        """Ask all sites that owe no answer, and close at the deadline; `check` may end the waiting by an exception."""
        mine, ends = _Opened(round), time.monotonic() + timeout
        answers: dict[str, bytes | Silence] = {}
        check()
        for site, request in requests.items():
            with self._lock:
                owed = self._busy.setdefault(site, mine)
            if owed is mine:
                send(site, request, partial(self._deliver, site, mine))
            else:
                answers[site] = Silence(f"it is still working on round {owed.round + 1}")
        while len(answers) < len(requests) and time.monotonic() < ends:
            check()
            with contextlib.suppress(queue.Empty):
                site, answer = mine.came.get(timeout=min(POLL_SECONDS, max(0.0, ends - time.monotonic())))
                answers[site] = answer
        with self._lock:
            mine.closed = True
        while not mine.came.empty():
            site, answer = mine.came.get()
            answers[site] = answer
        for site in requests.keys() - answers.keys():
            answers[site] = Silence(f"it gave no answer within {timeout:g} seconds")
        return answers

    def _deliver(self, site: str, mine: _Opened, answer: bytes | Silence) -> None:
        with self._lock:
            if self._busy.get(site) is not mine:
                self.repeated[site] += 1
                return
            del self._busy[site]
            if not mine.closed:
                mine.came.put((site, answer))
            elif not isinstance(answer, Silence):
                self.late[site] += 1
