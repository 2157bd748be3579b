"""Questions and answers between a parent and a worker, as lines of JSON over a pair of sockets.

Both ends may ask at any time. Whoever asks an end that has gone gets a ConnectionError.
"""

import asyncio
import itertools
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

LONGEST = 2**24  # bytes of a line
Answers = Mapping[str, Callable[[Any], Awaitable[Any]]]


class AskedError(Exception):
    """The other end could not do what it was asked for; the sentence says why."""


class Link:
    """One end. `answers` has what this end does when the other one asks for it by name."""

    def __init__(self, end: socket.socket, answers: Answers) -> None:
        self.end, self.answers = end, answers
        self.owed: dict[int, asyncio.Future[Any]] = {}  # what was asked and is not answered yet
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> "Link":
        """Be ready to ask."""
        self._reader, self._writer = await asyncio.open_connection(sock=self.end, limit=LONGEST)
        return self

    async def run(self) -> None:
        """Read until the other end has gone."""
        assert self._reader is not None
        assert self._writer is not None
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        except (OSError, ValueError):
            pass  # it went in the middle of a line
        finally:
            self._writer.close()
            self._writer = None
            for one in self.owed.values():
                if not one.done():
                    one.set_exception(ConnectionError())

    async def ask(self, what: str, value: object = None) -> Any:
        """Return what the other end answers."""
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        await self._send({"ask": what, "value": value, "number": number})
        self.owed[number] = answer
        try:
            return await answer
        finally:
            del self.owed[number]

    def _take(self, said: dict[str, Any]) -> None:
        if "ask" in said:
            task = asyncio.get_running_loop().create_task(self._answer(said))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        waiting = self.owed.get(said["number"])
        if waiting is None or waiting.done():
            return  # nobody waits any more
        if "error" in said:
            waiting.set_exception(AskedError(said["error"]))
        else:
            waiting.set_result(said["answer"])

    async def _answer(self, asked: dict[str, Any]) -> None:
        said: dict[str, Any] = {"number": asked["number"]}
        try:
            said["answer"] = await self.answers[asked["ask"]](asked["value"])
        except Exception as error:  # whatever it is, the other end must not wait for ever
            said["error"] = str(error) if isinstance(error, AskedError) else type(error).__name__
        with suppress(ConnectionError):
            await self._send(said)

    async def _send(self, what: Mapping[str, Any]) -> None:
        if self._writer is None:
            raise ConnectionError
        self._writer.write(json.dumps(what).encode() + b"\n")
        await self._writer.drain()
