"""The parent of several workers: it binds the socket that they accept from, replaces those that die, and spreads what
reaches only one of them, such as a reload. It answers nothing itself and needs no torch.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.serving import listening
from promptfed.serving.crew import WorkerState, plain
from promptfed.serving.link import AskedError, Link
from promptfed.serving.metrics import Monitor
from promptfed.serving.plan import ServingPlan

log = logging.getLogger("promptfed.serving")
MINUTE = 60.0
LIMIT = 5  # deaths in a minute after which a worker is given up, if no other is left
LONGEST_PAUSE = 30.0  # seconds before a worker that keeps on dying is replaced
ANSWERED = 2.0  # seconds that a worker has to say how it is
OWED = 8  # answers that a worker which hangs may owe before it is not asked any more


def supervise(plan: ServingPlan, count: int, host: str, port: int, ready: Callable[[int, int], None]) -> None:
    """Serve with so many workers until SIGTERM or Ctrl-C. `ready` is told the port and how many clients there are."""
    if os.name != "posix":
        raise PromptFedError("--workers needs Linux or macOS; here one process serves, so leave it out.")
    with listening.listen(host, port) as taken:
        listening.log_json()
        chosen = taken.getsockname()[1]
        asyncio.run(WorkerSupervisor(plan, count, taken, lambda clients: ready(chosen, clients)).run())


def threads_each(count: int) -> int:
    """Return how many threads each of so many workers computes with."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // count)


class ServingWorker:
    """A process that answers."""

    def __init__(self, process: asyncio.subprocess.Process, link: Link, generation: int) -> None:
        self.process, self.link = process, link
        self.generation = generation  # how many reloads there had been when it began to open the bundles
        self.ready = False
        self.failed = ""  # why it could not start
        self.known: WorkerState | None = None  # as it was when last asked

    async def state(self) -> WorkerState | None:
        """Return how it is; if it does not say, how it was, without room."""
        if len(self.link.owed) < OWED:
            with suppress(TimeoutError, ConnectionError, AskedError):
                self.known = WorkerState(**await asyncio.wait_for(self.link.ask("state"), ANSWERED))
                return self.known
        return self.known and WorkerState(self.known.counted, clients=self.known.clients)

    async def ended(self) -> int:
        """Wait until it has ended, and return its exit code; one that hangs without its link is killed."""
        await self.link.run()
        with suppress(TimeoutError):
            return await asyncio.wait_for(self.process.wait(), listening.PARTING)
        self.stop(signal.SIGKILL)
        return await self.process.wait()

    def stop(self, how: signal.Signals) -> None:
        """Send it a signal."""
        with suppress(ProcessLookupError):
            self.process.send_signal(how)


class WorkerSupervisor:
    """Keeps `count` workers at work."""

    def __init__(self, plan: ServingPlan, count: int, taken: socket.socket, ready: Callable[[int], None]) -> None:
        self.plan, self.count, self.taken, self.ready = plan, count, taken, ready
        self.workers: dict[int, ServingWorker] = {}
        self.began = False  # whether all have been ready once
        self.departed = Monitor()  # what those have counted that are no more
        self.generation = 0
        self.ending = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Start the workers, and keep them until asked to end; raise why it cannot go on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._later(self._reload_and_log()))
        keepers = [asyncio.create_task(self._keep(number)) for number in range(self.count)]
        asked = asyncio.create_task(self.ending.wait())
        await asyncio.wait([*keepers, asked], return_when=asyncio.FIRST_COMPLETED)
        self.ending.set()
        self.taken.close()
        for worker in self.workers.values():
            worker.stop(signal.SIGTERM)
        await asyncio.wait(keepers, timeout=listening.PARTING + 5)
        for worker in self.workers.values():
            worker.stop(signal.SIGKILL)
        for found in await asyncio.gather(*keepers, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found

    def _end(self) -> None:
        """End politely; when asked for the second time, at once."""
        how = signal.SIGKILL if self.ending.is_set() else signal.SIGTERM
        self.ending.set()
        for worker in self.workers.values():
            worker.stop(how)

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- one worker after another in a place --------------------------------------------------------------------------

    async def _keep(self, number: int) -> None:
        """Start a worker, and another one whenever it dies."""
        deaths: deque[float] = deque(maxlen=LIMIT + 1)
        while not self.ending.is_set():
            worker = self.workers[number] = await self._start(number)
            if self.ending.is_set():
                worker.stop(signal.SIGTERM)
            code = await worker.ended()
            del self.workers[number]
            if worker.known is not None:
                self.departed.absorb(worker.known.counted)
            if self.ending.is_set():
                return
            log.error("worker died", extra={"fields": {"worker": number, "code": code}})
            if not self.began:
                raise PromptFedError(worker.failed or f"A worker died before it could answer (exit code {code}).")
            deaths.append(time.monotonic())
            await self._pause([when for when in deaths if when > deaths[-1] - MINUTE], worker.failed)

    async def _pause(self, deaths: list[float], reason: str) -> None:
        """Wait before the next one, the longer the more have died of late; give up if there is no hope."""
        if len(deaths) >= LIMIT and not any(one.ready for one in self.workers.values()):
            raise PromptFedError(reason or f"The workers keep on dying, {len(deaths)} in a minute in one place.")
        seconds = min(LONGEST_PAUSE, 2.0 ** (len(deaths) - 2)) if len(deaths) > 1 else 0.0
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ending.wait(), seconds)

    async def _start(self, number: int) -> ServingWorker:
        """Start a worker; it is in a group of its own, so that Ctrl-C reaches the parent alone."""
        mine, its = socket.socketpair()
        threads = str(threads_each(self.count))
        with its:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "promptfed.serving.worker"),
                *(self.plan.to_json(), str(self.taken.fileno()), str(its.fileno()), str(number)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(self.taken.fileno(), its.fileno()),
                process_group=0,
                env={"OMP_NUM_THREADS": threads, **os.environ},
            )
        answers: dict[str, Any] = {"states": self._states, "reload": self._reload}
        worker = ServingWorker(process, await Link(mine, answers).open(), self.generation)
        answers |= {"ready": lambda clients: self._greet(worker, clients), "failed": lambda why: _note(worker, why)}
        return worker

    async def _greet(self, worker: ServingWorker, clients: int) -> None:
        """Count a worker in; one that missed a reload makes up for it."""
        worker.ready = True
        if worker.generation != self.generation:
            self._later(_renewed(worker))
        if not self.began and len(self.workers) == self.count and all(one.ready for one in self.workers.values()):
            self.began = True
            self.ready(clients)

    # -- what concerns all --------------------------------------------------------------------------------------------

    async def _states(self, _: object = None) -> list[dict[str, Any]]:
        found = await asyncio.gather(*(one.state() for one in self.workers.values() if one.ready))
        return [plain(one) for one in (WorkerState(self.departed.counted()), *found) if one is not None]

    async def _reload(self, _: object = None) -> None:
        """Have all open their bundles again, and swap them in if everyone could."""
        async with self._reloading:
            self.generation += 1
            ready = [one for one in self.workers.values() if one.ready]
            found = await asyncio.gather(*(one.link.ask("prepare") for one in ready), return_exceptions=True)
            failed = next((one for one in found if isinstance(one, AskedError)), None)
            step = "discard" if failed else "swap"  # who died meanwhile is replaced, and opens what is there now
            await asyncio.gather(*(one.link.ask(step) for one in ready), return_exceptions=True)
            if failed:
                raise failed

    async def _reload_and_log(self) -> None:
        try:
            await self._reload()
        except AskedError as error:
            log.error("reload failed", extra={"fields": {"kind": str(error)}})
        else:
            log.info("reloaded", extra={"fields": {"workers": len(self.workers)}})


async def _note(worker: ServingWorker, why: str) -> None:
    worker.failed = why


async def _renewed(worker: ServingWorker) -> None:
    """Have a worker open its bundles again."""
    with suppress(AskedError, ConnectionError):
        await worker.link.ask("prepare")
        await worker.link.ask("swap")
