"""A site waits for its next task at the server, which answers once there is one.

By itself FLARE tells a site at once that there is nothing yet, and the site asks again: many times in a round.
"""

import threading
from collections.abc import Callable
from typing import Any

from nvflare.private.fed.server.server_runner import ServerRunner

from promptfed.sites.flare_letters import fits

HOLD_SECONDS = 5.0  # after which a site is told that there is nothing yet, and asks again
MOST_HELD = 40  # sites that wait at once; FLARE has 64 threads for all that arrives, and the answers need some too
Found = tuple[str, str, Any]  # the name, number and data of a task; the name is empty if there is none


class Waiting:
    """The sites that wait for a task: one request of each, and no more than `most`."""

    def __init__(self, seconds: float = HOLD_SECONDS, most: int = MOST_HELD) -> None:
        self.seconds, self.most = seconds, most
        self._held: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._closed = False

    def find(self, site: str, look: Callable[[], Found]) -> Found:
        """Return the site's task as `look` finds it: now, or when there is one, or none after some seconds."""
        bell = threading.Event()
        with self._lock:
            held = not self._closed and site not in self._held and len(self._held) < self.most
            if held:
                self._held[site] = bell  # before the first look: a task that comes after it rings
        try:
            found = look()
            if not held or found[0] or not bell.wait(self.seconds):
                return found
        finally:
            if held:
                with self._lock:
                    del self._held[site]
        return look()

    def ring(self, site: str) -> None:
        """Tell a waiting site that there is a task."""
        with self._lock:
            bell = self._held.get(site)
        if bell is not None:
            bell.set()

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._lock:
            self._closed = True
            bells = list(self._held.values())
        for bell in bells:
            bell.set()


def let_sites_wait(waiting: Waiting) -> None:
    """Let sites wait for their tasks in this process, the server's job."""
    honest = ServerRunner._try_to_get_task

    def try_to_get_task(runner: Any, client: Any, *given: Any, **named: Any) -> Found:
        found = waiting.find(client.name, lambda: honest(runner, client, *given, **named))
        return found if fits(found[2]) else ("", "", None)

    ServerRunner._try_to_get_task = try_to_get_task
