"""The queue before the backbone: whatever waits becomes one mixed batch as soon as the last one is answered.

There is no timer: alone, an image goes at once; under load, batches grow by themselves. The queue lives in the event
loop and needs no locks; one thread of its own computes.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Images
from promptfed.serving.opened import ServedBundle

Answer = Callable[[ServedBundle, Sequence[int], Images], Tensor]


class QueueFullError(Exception):
    """There is no room for more images; ask again later."""


@dataclass(eq=False)
class _Waiting:
    """An image in the queue."""

    served: ServedBundle
    row: int
    image: Images  # [H, W, 3]
    logits: asyncio.Future[Tensor]


@dataclass(eq=False)
class Batcher:
    """Answers images in batches of up to `most`; at most `room` wait."""

    answer: Answer
    most: int = 64
    room: int = 256
    seen: Callable[[int], None] = lambda size: None  # told the size of every batch
    queue: deque[_Waiting] = field(default_factory=deque)
    _filled: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, served: ServedBundle, row: int, images: Images, seconds: float) -> Tensor:
        """Return the logits [N, classes] of one client's images [N, H, W, 3], or raise TimeoutError.

        Whoever stops waiting, by the deadline or because the task is cancelled, leaves the queue.
        """
        if len(self.queue) + len(images) > self.room:
            self._drop_cancelled()
            if len(self.queue) + len(images) > self.room:
                raise QueueFullError
        loop = asyncio.get_running_loop()
        mine = [_Waiting(served, row, image, loop.create_future()) for image in images]
        self.queue.extend(mine)
        self._filled.set()
        try:
            async with asyncio.timeout(seconds):
                found = await asyncio.gather(*(one.logits for one in mine))
        finally:
            for one in mine:
                one.logits.cancel()
        return torch.stack(found)

    async def run(self) -> None:
        """Answer until cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "backbone") as thread:
            while True:
                await self._filled.wait()
                if batch := self._take():
                    await self._answer(loop, thread, batch)

    async def _answer(self, loop: asyncio.AbstractEventLoop, thread: ThreadPoolExecutor, batch: list[_Waiting]) -> None:
        """Answer one batch; if it fails, image by image, so that nobody fails for another."""
        self.seen(len(batch))
        try:
            logits = await loop.run_in_executor(thread, self._compute, batch)
        except Exception as error:
            if len(batch) == 1:
                _settle(batch[0].logits, error)
                return
            for one in batch:
                if not one.logits.done():
                    await self._answer(loop, thread, [one])
            return
        for one, found in zip(batch, logits, strict=True):
            _settle(one.logits, found)

    def _compute(self, batch: list[_Waiting]) -> Tensor:
        """Return a batch's logits; all of it, the copying of images too, is kept away from the event loop."""
        return self.answer(batch[0].served, [one.row for one in batch], np.stack([one.image for one in batch]))

    def _take(self) -> list[_Waiting]:
        """Remove from the queue what makes the next batch: images of one bundle, whoever's they are."""
        batch: list[_Waiting] = []
        while self.queue and len(batch) < self.most:
            if self.queue[0].logits.done():
                self.queue.popleft()
            elif not batch or self.queue[0].served is batch[0].served:
                batch.append(self.queue.popleft())
            else:
                break
        if not self.queue:
            self._filled.clear()
        return batch

    def _drop_cancelled(self) -> None:
        """Remove those who no longer wait."""
        self.queue = deque(one for one in self.queue if not one.logits.done())


def _settle(future: asyncio.Future[Tensor], found: Tensor | Exception) -> None:
    """Hand over an answer, unless nobody waits for it any more."""
    if future.done():
        return
    if isinstance(found, Exception):
        known = isinstance(found, PromptFedError)
        future.set_exception(found if known else PromptFedError(f"The model failed: {type(found).__name__}."))
    else:
        future.set_result(found)
