"""Sites without machines: each answers in a thread of this process."""

import threading
from collections.abc import Callable, Mapping

from promptfed.sites.exchange import Deliver, PendingRequests, Silence


class Threads:
    """An exchange with sites that are function calls or local processes: a thread waits for each of them."""

    def __init__(self, sites: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self.sites, self.pending = dict(sites), PendingRequests()
        self.late, self.repeated = self.pending.late, self.pending.repeated

    def exchange(self, round: int, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Silence]:  # noqa: A002
        """Send each site its own request; return what each of them answered."""
        return self.pending.exchange(round, requests, timeout, self._send)

    def _send(self, site: str, request: bytes, deliver: Deliver) -> None:
        threading.Thread(target=self._ask, args=(site, request, deliver), daemon=True).start()

    def _ask(self, site: str, request: bytes, deliver: Deliver) -> None:
        try:
            deliver(self.sites[site](request))
        except OSError as error:  # the site's process has died
            deliver(Silence(str(error)))
