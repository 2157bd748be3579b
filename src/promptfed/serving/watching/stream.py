"""The board as server-sent events: what there is at first, and then what changes."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from promptfed.serving.recorder import tell_failure
from promptfed.serving.watching.board import Board, View

EVERY = 1.0  # seconds between two looks at the files
SILENCE = 15.0  # seconds after which something is sent though nothing has changed, so that a lost reader is noticed
MOST = 16  # runs drawn at a time
FOLLOWED = 8  # runs drawn at a time without being asked for, a colour each


class Choice:
    """Whose curves a reader sees: those it asks for, or else those at work, and then those that were."""

    def __init__(self, asked: str | None) -> None:
        self.asked = None if asked is None else tuple(asked.split(",")[:MOST])
        self._kept: list[str] = []
        self._instead = False  # nothing is at work, so the newest run is shown

    def slots(self, view: View) -> tuple[str, ...]:
        """Return a run's key for every colour, empty where there is none."""
        if self.asked is not None:
            return tuple(key if key in view.entries else "" for key in self.asked)
        self._kept = [key if key in view.entries else "" for key in self._kept]
        at_work = view.at_work()
        if (at_work and self._instead) or not any(self._kept):
            self._kept, self._instead = [], False
        for key in at_work:
            self._place(key, at_work)
        if not self._kept:
            self._kept = [key for key in view.order if view.entries[key][1].mean][:1]
            self._instead = bool(self._kept)
        return tuple(self._kept)

    def _place(self, key: str, at_work: list[str]) -> None:
        """Give a run a colour, if need be that of one which is no longer at work."""
        if key in self._kept:
            return
        if len(self._kept) < FOLLOWED:
            self._kept.append(key)
            return
        free = next((place for place, other in enumerate(self._kept) if other not in at_work), None)
        if free is not None:
            self._kept[free] = key


class Broadcast:
    """Reads the board as long as anyone watches, and tells everyone what is new."""

    def __init__(self, board: Board, every: float = EVERY) -> None:
        self.board, self.every = board, every
        self.mark = secrets.token_hex(4)  # versions count only within this process
        self.watching, self.ended = 0, False
        self._news = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "reader")
        self._reading: asyncio.Task[None] | None = None

    async def events(self, asked: str | None, last: str) -> AsyncIterator[str]:
        """Yield events from after the one with the id `last` on, if that was one of ours, until the server ends."""
        mark, _, version = last.partition("-")
        known = int(version) if mark == self.mark and version.isdecimal() and len(version) < 19 else 0
        choice, drawn = Choice(asked), None
        self._join()
        try:
            while not self.ended:
                news, view = self._news, self.board.view
                if view.version > known:
                    whole = {"whole": True, "title": self.board.title} if not known else {}
                    yield _event("runs", {**whole, **view.since(known)}, f"{self.mark}-{view.version}")
                    known = view.version
                slots = choice.slots(view)
                shown = (slots, tuple(view.drawn.get(key) for key in slots))
                if shown != drawn and view.version:
                    drawn = shown
                    yield _event("curves", {"slots": slots, **await self._draw(slots)})
                try:
                    async with asyncio.timeout(SILENCE):
                        await news.wait()
                except TimeoutError:
                    yield ": nothing new\n\n"
        finally:
            self._leave()

    def end(self) -> None:
        """End all streams."""
        self.ended = True
        self._tell()

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _join(self) -> None:
        self.watching += 1
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())

    def _leave(self) -> None:
        self.watching -= 1
        if not self.watching and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _read(self) -> None:
        loop, more = asyncio.get_running_loop(), False
        while True:
            before = self.board.view
            try:
                more = await loop.run_in_executor(self._thread, self.board.refresh)
            except Exception as error:  # whatever a folder holds, the others are still watched
                tell_failure(error)
                more = False
            if self.board.view is not before:
                self._tell()
            if not more:
                await asyncio.sleep(self.every)

    async def _draw(self, slots: tuple[str, ...]) -> dict[str, Any]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self.board.draw, slots)
        except (ValueError, ArithmeticError, LookupError) as error:  # numbers that nobody has thought of
            tell_failure(error)
            return self.board.draw(())


def _event(name: str, data: dict[str, Any], mark: str = "") -> str:
    """Return an event; JSON has no line break, so its data is one line."""
    head = f"id: {mark}\n" if mark else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n"
