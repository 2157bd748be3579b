"""Running the server: one process that answers until it is asked to end."""

import asyncio
import logging
from collections.abc import Callable

from promptfed.core.errors import PromptFedError
from promptfed.serving import listening
from promptfed.serving.app import make_app
from promptfed.serving.listening import Certificate, PoliteServer
from promptfed.serving.service import Service

log = logging.getLogger("promptfed.serving")


def check_exposure(host: str, service: Service, *, everyone: bool) -> None:
    """Refuse to be reachable from other machines without tokens, unless that is said."""
    risk = (
        f"Without tokens anyone who reaches {host} could ask any client's model; "
        "make tokens with promptfed token, or say --open."
    )
    service.hosts = listening.names(host, everyone=service.tokens.used or everyone, risk=risk)


def serve(
    service: Service, host: str, port: int, ready: Callable[[int], None], certificate: Certificate | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C; requests under way are still answered. `ready` is told the port."""
    with listening.listen(host, port) as taken:
        listening.log_json()
        config = listening.configure(make_app(service), service.limits, certificate)
        reloading = Reloading(service)
        PoliteServer(config, lambda: ready(taken.getsockname()[1]), reloading.start).run(sockets=[taken])


class Reloading:
    """Opens the bundles again, in a task of its own."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin."""
        task = asyncio.get_running_loop().create_task(self._reload())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _reload(self) -> None:
        try:
            await self.service.reload()
        except (PromptFedError, OSError) as error:
            log.error("reload failed", extra={"fields": {"kind": type(error).__name__}})
        else:
            log.info("reloaded", extra={"fields": {"clients": len(self.service.opened.clients)}})
