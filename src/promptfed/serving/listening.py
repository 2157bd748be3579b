"""What every server of ours has: a socket, names it answers to, patience with slow clients, signals and an end.

Nothing here needs torch.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from promptfed.core.errors import PromptFedError
from promptfed.serving.limits import ServingLimits
from promptfed.serving.recorder import JsonLines

PARTING = 30  # seconds that requests under way have left when the server is asked to end
IDLE = 15  # seconds a connection may wait for its next request
Certificate = tuple[Path, Path]  # and its key


def names(host: str, *, everyone: bool, risk: str) -> frozenset[str] | None:
    """Return the names that a server at `host` answers to, None for any.

    Unless it is for everyone, a place that other machines can reach is refused with the sentence `risk`.
    """
    if everyone:
        return None
    if not _loopback(host):
        raise PromptFedError(risk)
    return frozenset({"localhost", "127.0.0.1", "::1", host.lower()})


def names_of_server(host: str, *, tokens: bool, everyone: bool) -> frozenset[str] | None:
    """Return the names that promptfed serve answers to; without tokens it is for this machine, unless that is said."""
    risk = (
        f"Without tokens anyone who reaches {host} could ask any client's model; "
        "make tokens with promptfed token, or say --open."
    )
    return names(host, everyone=tokens or everyone, risk=risk)


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections; 0 is any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise PromptFedError(f"Cannot listen on {host}, port {port}: {os.strerror(error.errno or 0)}.") from error


def place(host: str, port: int, *, secure: bool = False) -> str:
    """Return the address of a server's page."""
    return f"http{'s' if secure else ''}://{f'[{host}]' if ':' in host else host}:{port}/"


def configure(app: ASGIApp, limits: ServingLimits, certificate: Certificate | None = None) -> uvicorn.Config:
    """Return how an application is served."""
    files: dict[str, Any] = {}
    if certificate is not None:
        files = {"ssl_certfile": str(certificate[0]), "ssl_keyfile": str(certificate[1])}
    ImpatientProtocol.patience = limits.patience
    return uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=PARTING,
        h11_max_incomplete_event_size=2**15,
        **files,
    )


class ImpatientProtocol(H11Protocol):
    """HTTP that hangs up on a client which takes too long to send the head of a request."""

    patience = 20.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start waiting for a first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head; once it is there, the body has a limit of its own."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._late is None:
            self._wait()

    def on_response_complete(self) -> None:
        """Go back to waiting without a limit but the idle connection's."""
        self._stop()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._late = self.loop.call_later(self.patience, self._hang_up)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _hang_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class PoliteServer(uvicorn.Server):
    """A server that ends with exit code 0 when asked to; `ready`, `hung_up` (SIGHUP) and `ending` are told when."""

    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[], None],
        hung_up: Callable[[], None] | None = None,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self.ready, self.hung_up, self.ending = ready, hung_up, ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say so, and end when the requests under way have been answered."""
        self.ending()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Listen to signals, without raising them again at the end."""
        loop = asyncio.get_running_loop()
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.handle_exit, number, None)
            if self.hung_up is not None:
                loop.add_signal_handler(signal.SIGHUP, self.hung_up)
        except (NotImplementedError, AttributeError):  # Windows
            with super().capture_signals():
                yield
            return
        yield


def log_json(level: int = logging.INFO, worker: int | None = None) -> None:
    """Send our own lines, and what uvicorn has to say, to standard error as JSON, each with its worker's number."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines({} if worker is None else {"worker": worker}))
    for name, least in (("promptfed.serving", level), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)
