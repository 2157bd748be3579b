"""How much a site may have under way at once: unfinished messages lie in memory, and FLARE counts each one alone."""

import logging
import threading
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_types import StreamError

log = logging.getLogger("promptfed.streams")
MOST_MESSAGES = 32  # of one site, unfinished; it answers one request at a time, beside the engine's own messages
_lock = threading.Lock()


def bound_streams(largest: int) -> None:
    """Stop a message with which a site would have more than twice `largest` bytes, or too many messages, under way."""
    honest = RxTask.find_or_create_task.__func__

    def find_or_create_task(cls: Any, message: Any, cell: Any) -> Any:
        task = honest(cls, message, cell)
        if task is None or task.failed or task.completed or _site(task.origin) == FQCN.ROOT_SERVER:
            return task
        with _lock:
            reason = excess(task, live(task.origin), len(message.payload or b""), largest)
        if reason:
            log.warning("a message of %s was stopped: %s", message.get_header(MessageHeaderKey.ORIGIN), reason)
            task.stop(StreamError(reason))
            task.chunks.clear()
            task.out_seq_chunks.clear()
            return None
        return task

    RxTask.find_or_create_task = classmethod(find_or_create_task)


def live(origin: str) -> list[Any]:
    """Return the unfinished messages of the site that `origin` belongs to."""
    site = _site(origin)
    with RxTask.map_lock:
        tasks = list(RxTask.rx_task_map.values())
    return [task for task in tasks if _site(task.origin) == site and not task.failed and not task.completed]


def _site(origin: object) -> str:
    """Return the party that a message comes from; the server's port has seen to it that this is true."""
    return str(origin).partition(".")[0]


def excess(task: Any, others: list[Any], more: int, largest: int) -> str:
    """Return why a message must stop when `more` bytes of it have come; empty if it may go on."""
    if len(others) > MOST_MESSAGES:
        return f"its site has {len(others)} messages under way, more than {MOST_MESSAGES}"
    size = sum(held(one) for one in others) + more
    if size > 2 * largest:
        return f"its site has {size:,} bytes under way, more than {2 * largest:,}"
    return ""


def held(task: Any) -> int:
    """Return how much memory an unfinished message takes: what it says it will have, or what has come of it."""
    early = sum(len(payload or b"") for _, payload in list(task.out_seq_chunks.values()))
    said = task.size if isinstance(task.size, int) else 0
    return max(said, int(task.received_offset) + early)
