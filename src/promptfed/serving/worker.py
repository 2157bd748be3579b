"""One of several processes that answer at one address: `python -m promptfed.serving.worker PLAN SOCKET LINK NUMBER`.

Its parent has bound the socket. The worker ends when it is told to by SIGTERM, or when its parent has gone.
"""

import asyncio
import socket
import sys
from contextlib import suppress
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.serving import listening
from promptfed.serving.app import make_app
from promptfed.serving.crew import Hired, plain
from promptfed.serving.link import AskedError, Link
from promptfed.serving.plan import ServingPlan
from promptfed.serving.server import opened
from promptfed.serving.service import Service


def main() -> None:
    """Answer until told to end."""
    text, taken, end, number = sys.argv[1:]
    listening.log_json(worker=int(number))
    with socket.socket(fileno=int(taken)) as accepting, socket.socket(fileno=int(end)) as linked:
        sys.exit(asyncio.run(_work(ServingPlan.from_json(text), accepting, linked)))


async def _work(plan: ServingPlan, accepting: socket.socket, linked: socket.socket) -> int:
    answers: dict[str, Any] = {}
    link = await Link(linked, answers).open()
    reading = asyncio.create_task(link.run())
    try:
        service = opened(plan)
    except (PromptFedError, OSError) as error:
        reason = f"{error.strerror}: {error.filename}." if isinstance(error, OSError) else str(error)
        with suppress(ConnectionError):
            await link.ask("failed", reason)
        return 2
    service.crew = Hired(service, link)
    answers |= _answers(service)
    server = _server(service, plan, link)
    reading.add_done_callback(lambda _: setattr(server, "should_exit", True))  # nobody is left to work for
    await server.serve(sockets=[accepting])
    return 0


def _answers(service: Service) -> dict[str, Any]:
    """Return what the parent may ask for."""

    async def state(_: object) -> dict[str, Any]:
        return plain(service.state())

    async def prepare(_: object) -> None:
        try:
            await service.prepare()
        except (PromptFedError, OSError) as error:
            raise AskedError(type(error).__name__) from error

    async def swap(_: object) -> None:
        service.swap()

    async def discard(_: object) -> None:
        service.discard()

    return {"state": state, "prepare": prepare, "swap": swap, "discard": discard}


def _server(service: Service, plan: ServingPlan, link: Link) -> listening.PoliteServer:
    tasks: set[asyncio.Task[Any]] = set()

    def tell(what: str, value: object = None) -> None:
        async def told() -> None:
            with suppress(AskedError, ConnectionError):
                await link.ask(what, value)

        task = asyncio.get_running_loop().create_task(told())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return listening.PoliteServer(
        listening.configure(make_app(service), plan.limits, plan.certificate),
        ready=lambda: tell("ready", len(service.opened.clients)),
        hung_up=lambda: tell("reload"),
    )


if __name__ == "__main__":
    main()
