"""What is being served: the bundles, who is in them, who may ask, and how all of that is opened again while it runs."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.serving.batcher import Answer, Batcher
from promptfed.serving.crew import Alone, Crew, WorkerState
from promptfed.serving.graphs import Recorded
from promptfed.serving.limits import ServingLimits
from promptfed.serving.metrics import Monitor
from promptfed.serving.mixed import answer, rehearse
from promptfed.serving.opened import ServedBundle, open_served
from promptfed.serving.tokens import TokenFiles, token_files

DECODERS = 2  # images decoded at a time: each may take hundreds of megabytes


@dataclass(frozen=True)
class Address:
    """Where a client's model is."""

    served: ServedBundle
    home: Path  # its bundle, in full
    client: int
    row: int


@dataclass(frozen=True)
class Opened:
    """The bundles as they were opened together; a reload makes a new one."""

    bundles: tuple[ServedBundle, ...]
    clients: Mapping[str, Address]  # "3", or with several bundles "shops/3"

    @cached_property
    def names(self) -> Mapping[tuple[Path, int], str]:
        """Return what the client of a bundle is called."""
        return {(address.home, address.client): name for name, address in self.clients.items()}


def open_all(folders: Sequence[Path], device: str, precision: str, known: Sequence[ServedBundle] = ()) -> Opened:
    """Open and try every bundle; equal backbones are in memory once."""
    names = [folder.resolve().name for folder in folders]
    if twice := [name for name in names if names.count(name) > 1]:
        raise PromptFedError(f'Two bundles are called "{twice[0]}"; rename one, for clients are asked for by it.')
    bundles: list[ServedBundle] = []
    clients: dict[str, Address] = {}
    for folder, name in zip(folders, names, strict=True):
        served = open_served(folder, device, precision, (*known, *bundles))
        rehearse(served)
        bundles.append(served)
        start = f"{name}/" if len(folders) > 1 else ""
        clients |= {
            f"{start}{client}": Address(served, folder.resolve(), client, row) for client, row in served.order.items()
        }
    return Opened(tuple(bundles), clients)


@dataclass(eq=False)
class Service:
    """The state of a running server."""

    folders: tuple[Path, ...]
    opened: Opened
    tokens: TokenFiles
    limits: ServingLimits = field(default_factory=ServingLimits)
    device: str = "auto"
    precision: str = ""
    hosts: frozenset[str] | None = None  # the names it answers to; None: any
    compute: Answer = answer
    metrics: Monitor = field(default_factory=Monitor)
    held: int = 0  # bytes of the requests under way
    pending: int = 0  # images that are decoded, wait, or are answered
    batcher: Batcher = field(init=False)
    decoders: ThreadPoolExecutor = field(init=False)
    crew: Crew = field(init=False)  # all processes that answer at this address
    _fresh: Opened | None = None  # bundles that are opened, but not served yet
    _reloading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.crew = Alone(self)
        self.batcher = Batcher(self.compute, self.limits.batch, self.limits.queue, self.metrics.batch)
        self.decoders = ThreadPoolExecutor(DECODERS, "decoder")

    async def reload(self) -> None:
        """Open the bundles again and swap them in; who already waits is answered by what was there."""
        async with self._reloading:
            await self.prepare()
            self.swap()

    async def prepare(self) -> None:
        """Open the bundles again, beside those that are served."""
        known = self.opened.bundles
        self._fresh = await asyncio.to_thread(open_all, self.folders, self.device, self.precision, known)

    def swap(self) -> None:
        """Serve what was prepared."""
        if self._fresh is not None:
            self.opened, self._fresh = self._fresh, None
            self.metrics.reloads += 1

    def discard(self) -> None:
        """Let go of what was prepared."""
        self._fresh = None

    def state(self) -> WorkerState:
        """Return what this process has counted, and whether it has room."""
        room = self.pending < self.limits.queue
        return WorkerState(self.metrics.counted(), len(self.batcher.queue), len(self.opened.clients), room)


def make_service(
    folders: Sequence[Path],
    device: str = "auto",
    precision: str = "",
    tokens: Path | None = None,
    limits: ServingLimits | None = None,
    *,
    graphs: bool = True,
) -> Service:
    """Open the bundles for serving; on a GPU their batches are recorded as CUDA graphs."""
    files = token_files(folders, tokens)
    opened = open_all(folders, device, precision)
    limits = limits or ServingLimits()
    on_gpu = any(served.device.type == "cuda" for served in opened.bundles)
    compute = Recorded(limits.batch) if graphs and on_gpu else answer
    return Service(tuple(folders), opened, files, limits, device, precision, compute=compute)
