"""Questions and answers between two ends."""

import asyncio
import socket
from typing import Any

import pytest

from promptfed.serving.link import AskedError, Link


async def doubled(value: Any) -> Any:
    return 2 * value


async def refused(_: object) -> None:
    raise AskedError("Not today.")


async def broken(_: object) -> None:
    raise KeyError("private/path")


async def never(_: object) -> None:
    await asyncio.Event().wait()


ANSWERS = {"double": doubled, "refuse": refused, "break": broken, "never": never}


async def pair() -> tuple[Link, Link, list[asyncio.Task[None]]]:
    here, there = socket.socketpair()
    first, second = await Link(here, ANSWERS).open(), await Link(there, ANSWERS).open()
    return first, second, [asyncio.create_task(one.run()) for one in (first, second)]


def test_both_ends_ask_at_once() -> None:
    async def run() -> None:
        first, second, tasks = await pair()
        many = [link.ask("double", number) for number in range(50) for link in (first, second)]
        assert await asyncio.gather(*many) == [2 * number for number in range(50) for _ in range(2)]
        with pytest.raises(AskedError, match=r"^Not today\.$"):
            await first.ask("refuse")
        with pytest.raises(AskedError, match=r"^KeyError$"):  # no more than its kind
            await second.ask("break")
        with pytest.raises(AskedError, match=r"^KeyError$"):
            await second.ask("unknown")
        assert not first.owed
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def test_who_waits_for_one_that_goes_is_told() -> None:
    async def run() -> None:
        first, _, tasks = await pair()
        waiting = asyncio.create_task(first.ask("never"))
        while not first.owed:
            await asyncio.sleep(0)
        tasks[1].cancel()  # which closes the other end
        with pytest.raises(ConnectionError):
            await waiting
        with pytest.raises(ConnectionError):
            await first.ask("double", 1)
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
