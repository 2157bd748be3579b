"""A site waits for its task at the server, and small messages travel as one frame."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.fl_constant import ServerCommandKey, ServerCommandNames
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import CellChannel
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import SpecialTaskName
from nvflare.private.fed.client import client_runner

from promptfed.sites import flare_letters
from promptfed.sites.flare_letters import LARGEST, PATIENCE, Letters, fits, send_letters
from promptfed.sites.flare_waiting import Found, Waiting

NOTHING: Found = ("", "", None)
TASK: Found = ("work", "1", Shareable())
SIGNAL = Signal()


@contextmanager
def asking(waiting: Waiting, site: str, look: Callable[[], Found]) -> Iterator[list[Found]]:
    """Let a site ask in a thread of its own, which has begun to wait; at the end it has its answer."""
    looked, found = threading.Event(), list[Found]()

    def seen() -> Found:
        looked.set()
        return look()

    thread = threading.Thread(target=lambda: found.append(waiting.find(site, seen)))
    thread.start()
    assert looked.wait(10)
    yield found
    thread.join(10)
    assert not thread.is_alive()


def test_a_task_that_is_there_is_given_at_once() -> None:
    assert Waiting(seconds=60).find("a", lambda: TASK) == TASK


def test_a_site_that_waits_gets_its_task_when_it_is_there() -> None:
    waiting, there = Waiting(seconds=60), [NOTHING]
    with asking(waiting, "a", lambda: there[-1]) as found:
        waiting.ring("b")
        time.sleep(0.05)
        assert found == []
        there.append(TASK)
        waiting.ring("a")
    assert found == [TASK]


def test_a_site_is_told_that_there_is_nothing_yet() -> None:
    assert Waiting(seconds=0.01).find("a", lambda: NOTHING) == NOTHING


def test_a_site_waits_once_and_no_more_sites_wait_than_may() -> None:
    waiting = Waiting(seconds=60, most=1)
    with asking(waiting, "a", lambda: NOTHING) as found:
        assert waiting.find("a", lambda: NOTHING) == NOTHING
        assert waiting.find("b", lambda: NOTHING) == NOTHING
        assert found == []
        waiting.close()
    assert found == [NOTHING]
    assert waiting.find("a", lambda: NOTHING) == NOTHING  # nobody waits any more


class Recorded:
    """A cell that notes how it was asked to send, and gives the next reply."""

    def __init__(self) -> None:
        self.sent, self.replies = list[str](), list[Any]()
        self.core_cell = SimpleNamespace(send_request=self.frame)

    def send_request(self, **named: Any) -> Any:
        self.sent.append("stream")
        return self.replies.pop()

    def frame(self, *, channel: str, topic: str, target: str, request: Any, timeout: float, optional: bool) -> Any:
        assert (target, timeout) == ("server.job", PATIENCE)
        self.sent.append("frame")
        return self.replies.pop()


def message(**content: object) -> Any:
    shareable = Shareable()
    shareable.update(content)
    return Message(payload=shareable)


def named(topic: str, request: Any, channel: str = CellChannel.SERVER_COMMAND) -> dict[str, Any]:
    more = {"target": "server.job", "timeout": 300.0, "optional": True, "abort_signal": SIGNAL}
    return {"channel": channel, "topic": topic, "request": request, **more}


@pytest.mark.parametrize(
    ("answer", "way"), [(b"x" * LARGEST, "frame"), (b"x" * (LARGEST + 1), "stream"), ({"a": 1}, "stream")]
)
def test_a_small_answer_is_a_frame(answer: object, way: str) -> None:
    cell = Recorded()
    cell.replies = ["ok"]
    assert Letters(cell).send_request(**named(ServerCommandNames.SUBMIT_UPDATE, message(answer=answer))) == "ok"
    assert cell.sent == [way]


def test_other_messages_go_their_way() -> None:
    cell = Recorded()
    cell.replies = ["ok"]
    Letters(cell).send_request(**named("submit_update", object(), channel=CellChannel.AUX_COMMUNICATION))
    assert cell.sent == ["stream"]


def test_a_task_that_fits_no_frame_is_asked_for_by_a_stream() -> None:
    cell, nothing = Recorded(), message()
    nothing.payload.set_header(ServerCommandKey.TASK_NAME, SpecialTaskName.TRY_AGAIN)
    large, small, lost = message(request=b"x" * (LARGEST + 1)), message(request=b"x"), Message()
    letters, replies = Letters(cell), [lost, nothing, large, large, small, small]
    for reply in replies:
        cell.replies = [reply]
        assert letters.send_request(**named(ServerCommandNames.GET_TASK, message())) is reply
    assert cell.sent == ["frame", "frame", "stream", "stream", "stream", "frame"]


def test_nobody_waits_for_a_reply_in_a_job_that_is_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_runner.ClientRunner, "_check_task_once", None)
    cell, ending, waiter = Recorded(), Signal(), threading.Event()
    cell.core_cell.waiters = {"1": waiter}
    send_letters(cell, ending)
    assert not waiter.is_set()
    ending.trigger(True)
    assert ending.triggered
    assert waiter.is_set()
    cell.replies = [reply := Message()]
    assert cell.send_request(**named(ServerCommandNames.GET_TASK, message()) | {"abort_signal": ending}) is reply
    assert cell.sent == ["stream"]  # which ends by itself


def test_what_the_engine_loads_at_a_site_needs_no_torch() -> None:
    modules = ", ".join(f"promptfed.sites.flare_{name}" for name in ("limits", "heartbeat", "executor"))
    look = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False, timeout=60).returncode == 0


def test_only_who_asked_by_a_frame_must_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = message(request=b"x" * (LARGEST + 1)).payload, message(request=b"x").payload
    assert fits(large)
    monkeypatch.setattr(flare_letters, "_asked", SimpleNamespace(by_frame=True))
    assert (fits(large), fits(small), fits(None)) == (False, True, True)
