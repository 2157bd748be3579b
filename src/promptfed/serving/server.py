"""Running the server: its socket, its patience with slow clients, its signals and its end."""

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
from uvicorn.protocols.http.h11_impl import H11Protocol

from promptfed.core.errors import PromptFedError
from promptfed.serving.app import make_app
from promptfed.serving.recorder import JsonLines
from promptfed.serving.service import Service

log = logging.getLogger("promptfed.serving")
PARTING = 30  # seconds that requests under way have left when the server is asked to end
IDLE = 15  # seconds a connection may wait for its next request


def check_exposure(host: str, service: Service, *, everyone: bool) -> None:
    """Refuse to be reachable from other machines without tokens, unless that is said."""
    if service.tokens.used or everyone:
        return
    if not _loopback(host):
        raise PromptFedError(
            f"Without tokens anyone who reaches {host} could ask any client's model; "
            "make tokens with promptfed token, or say --open."
        )
    service.hosts = frozenset({"localhost", "127.0.0.1", "::1", host.lower()})


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    service: Service,
    host: str,
    port: int,
    ready: Callable[[int], None],
    certificate: tuple[Path, Path] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; requests under way are still answered. `ready` is told the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise PromptFedError(f"Cannot listen on {host}, port {port}: {os.strerror(error.errno or 0)}.") from error
    _log_json()
    files: dict[str, Any] = {}
    if certificate is not None:
        files = {"ssl_certfile": str(certificate[0]), "ssl_keyfile": str(certificate[1])}
    settings = uvicorn.Config(
        make_app(service),
        http=ImpatientProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=service.limits.connections,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=PARTING,
        h11_max_incomplete_event_size=2**15,
        **files,
    )
    ImpatientProtocol.patience = service.limits.patience
    with listening:
        _Server(settings, service, lambda: ready(listening.getsockname()[1])).run(sockets=[listening])


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


class _Server(uvicorn.Server):
    """A server that ends with exit code 0 when asked to, and opens its bundles again on SIGHUP."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.service, self.ready = service, ready
        self.tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.handle_exit, number, None)
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        except (NotImplementedError, AttributeError):  # Windows
            with super().capture_signals():
                yield
            return
        yield

    def _reload(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reloaded())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _reloaded(self) -> None:
        try:
            await self.service.reload()
        except (PromptFedError, OSError) as error:
            log.error("reload failed", extra={"fields": {"kind": type(error).__name__}})
        else:
            log.info("reloaded", extra={"fields": {"clients": len(self.service.opened.clients)}})


def _log_json() -> None:
    """Send our own lines, and what uvicorn has to say, to standard error as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name, level in (("promptfed.serving", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
