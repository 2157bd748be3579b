"""The queue: who waits, who leaves, and that nobody fails for another."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from promptfed.core.errors import PromptFedError
from promptfed.serving.batcher import Batcher, QueueFullError
from promptfed.serving.opened import ServedBundle

ONE, OTHER = (cast(ServedBundle, Path(name)) for name in ("one", "other"))  # the queue only tells them apart


def images(count: int, value: int = 0) -> Any:
    return np.full((count, 2, 2, 3), value, np.uint8)


class Spy:
    """Answers with the row and the first pixel, and keeps what it was asked."""

    def __init__(self) -> None:
        self.batches: list[tuple[ServedBundle, list[int]]] = []

    def __call__(self, served: ServedBundle, rows: Sequence[int], given: Any) -> torch.Tensor:
        self.batches.append((served, list(rows)))
        if 13 in rows:
            raise PromptFedError("Row 13 is damaged.")
        return torch.tensor([[float(row), float(image[0, 0, 0])] for row, image in zip(rows, given, strict=True)])


async def settle() -> None:
    """Let everyone who can run, run."""
    for _ in range(5):
        await asyncio.sleep(0)


def queued(*asked: tuple[ServedBundle, int, int], most: int = 8, leave: Sequence[int] = ()) -> tuple[Spy, list[Any]]:
    """Ask before the batcher runs, so that all of it waits; those in `leave` give up before it starts."""

    async def run() -> tuple[Spy, list[Any]]:
        spy = Spy()
        batcher = Batcher(spy, most, 100)
        tasks = [
            asyncio.create_task(batcher.ask(served, row, images(count, place), 60))
            for place, (served, row, count) in enumerate(asked)
        ]
        await settle()
        for place in leave:
            tasks[place].cancel()
        await settle()
        running = asyncio.create_task(batcher.run())
        found = await asyncio.gather(*tasks, return_exceptions=True)
        running.cancel()
        return spy, found

    return asyncio.run(run())


def test_what_waits_is_one_batch_whoevers_it_is() -> None:
    spy, found = queued((ONE, 5, 1), (ONE, 6, 2), (ONE, 5, 1))
    assert spy.batches == [(ONE, [5, 6, 6, 5])]
    assert [one.tolist() for one in found] == [[[5, 0]], [[6, 1], [6, 1]], [[5, 2]]]


def test_batches_have_a_size_and_one_bundle() -> None:
    spy, _ = queued((ONE, 1, 5), (ONE, 2, 4), (OTHER, 3, 1), (ONE, 4, 1), most=8)
    assert spy.batches == [(ONE, [1] * 5 + [2] * 3), (ONE, [2]), (OTHER, [3]), (ONE, [4])]


def test_who_leaves_is_not_computed() -> None:
    spy, found = queued((ONE, 1, 1), (ONE, 2, 3), (ONE, 3, 1), leave=[1])
    assert spy.batches == [(ONE, [1, 3])]
    assert isinstance(found[1], asyncio.CancelledError)


def test_nobody_fails_for_another() -> None:
    spy, found = queued((ONE, 1, 1), (ONE, 13, 1), (ONE, 2, 1))
    assert spy.batches == [(ONE, [1, 13, 2]), (ONE, [1]), (ONE, [13]), (ONE, [2])]
    assert str(found[1]) == "Row 13 is damaged."
    assert [found[0].tolist(), found[2].tolist()] == [[[1, 0]], [[2, 2]]]


def test_a_full_queue_refuses_until_someone_leaves() -> None:
    async def run() -> None:
        batcher = Batcher(Spy(), 8, room=3)
        waiting = asyncio.create_task(batcher.ask(ONE, 1, images(3), 60))
        await settle()
        with pytest.raises(QueueFullError):
            await batcher.ask(ONE, 2, images(1), 60)
        waiting.cancel()
        await settle()
        with pytest.raises(TimeoutError):  # there is room now, but nobody answers in time
            await batcher.ask(ONE, 2, images(1), 0)

    asyncio.run(run())
