"""The processes that answer together: one alone, or one of several workers, which reaches the others by its parent."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from promptfed.core.errors import PromptFedError
from promptfed.serving.link import AskedError, Link
from promptfed.serving.metrics import Monitor


@dataclass(frozen=True)
class WorkerState:
    """What one process has counted, and whether it has room."""

    counted: dict[str, Any]  # of its monitor
    waiting: int = 0  # images in its queue
    clients: int = 0
    room: bool = False


class Crew(Protocol):
    """What a process asks of all that answer at its address."""

    async def states(self) -> Sequence[WorkerState]:
        """Return the state of every process, and what those counted that have ended."""
        ...

    async def reload(self) -> None:
        """Open the bundles again, everywhere or nowhere."""
        ...


class Served(Protocol):
    """What a crew needs of a service."""

    def state(self) -> WorkerState:
        """Return what this process has counted."""
        ...

    async def reload(self) -> None:
        """Open this process's bundles again."""
        ...


class Alone:
    """The crew of a process that answers alone."""

    def __init__(self, service: Served) -> None:
        self.service = service

    async def states(self) -> Sequence[WorkerState]:
        """Return its own state."""
        return [self.service.state()]

    async def reload(self) -> None:
        """Open its own bundles again."""
        await self.service.reload()


class Hired:
    """The crew of a worker."""

    def __init__(self, service: Served, link: Link) -> None:
        self.service, self.link = service, link

    async def states(self) -> Sequence[WorkerState]:
        """Return all workers' states, as the parent knows them."""
        try:
            return [WorkerState(**one) for one in await self.link.ask("states")]
        except ConnectionError:  # the parent has gone, and this worker is about to end
            return [self.service.state()]

    async def reload(self) -> None:
        """Have all workers open their bundles again."""
        try:
            await self.link.ask("reload")
        except (AskedError, ConnectionError) as error:
            raise PromptFedError(str(error)) from error


def together(states: Sequence[WorkerState]) -> str:
    """Return what all have counted, as Prometheus reads it."""
    everyone = Monitor()
    for one in states:
        everyone.absorb(one.counted)
    waiting, clients = sum(one.waiting for one in states), max((one.clients for one in states), default=0)
    return everyone.text(waiting, clients)


def plain(state: WorkerState) -> dict[str, Any]:
    """Return a state for JSON."""
    return asdict(state)
