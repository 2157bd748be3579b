"""One process that serves, until it is asked to end."""

import asyncio
import logging
from collections.abc import Callable

from promptfed.core.errors import PromptFedError
from promptfed.serving import listening
from promptfed.serving.app import make_app
from promptfed.serving.plan import ServingPlan
from promptfed.serving.service import Service, make_service

log = logging.getLogger("promptfed.serving")


def serve(plan: ServingPlan, host: str, port: int, ready: Callable[[int, int], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; requests under way are still answered.

    `ready` is told the port and how many clients there are.
    """
    service = opened(plan)
    with listening.listen(host, port) as taken:
        listening.log_json()
        chosen, reloading = taken.getsockname()[1], Reloading(service)
        config = listening.configure(make_app(service), plan.limits, plan.certificate)
        server = listening.PoliteServer(config, lambda: ready(chosen, len(service.opened.clients)), reloading.start)
        server.run(sockets=[taken])


def opened(plan: ServingPlan) -> Service:
    """Open what is to be served."""
    service = make_service(plan.bundles, plan.device, plan.precision, plan.tokens, plan.limits, graphs=plan.graphs)
    service.hosts = plan.hosts
    return service


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
