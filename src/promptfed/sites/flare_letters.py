"""Requests and answers that are small travel as one frame each.

By itself FLARE sends everything as a stream: for each message it starts a task, acknowledges every piece, keeps what it
has sent to send it again, and starts a thread that forgets the message a minute later. A small message needs none of
that: a frame that is lost is sent again when its reply has not come within `PATIENCE` seconds.

A site cannot know how large its next task is. If it does not fit a frame, the server says that there is nothing yet,
and the site asks for it by a stream.
"""

import threading
from typing import Any

from nvflare.apis.fl_constant import ServerCommandKey, ServerCommandNames
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.private.defs import SpecialTaskName
from nvflare.private.fed.client import client_runner
from nvflare.private.fed.server.server_command_agent import ServerCommandAgent

LARGEST = 2**21  # bytes of what is sent as one frame; a larger message goes in pieces, beside others
PATIENCE = 60.0  # seconds until a frame is not waited for any more
_asked = threading.local()  # by a frame, in the thread that works on a request


def note_frames() -> None:
    """Note, in the server's job, by what a request has come."""
    honest = ServerCommandAgent._execute_command

    def execute_command(agent: Any, request: Any) -> Any:
        _asked.by_frame = not request.get_header(StreamHeaderKey.STREAM_REQ_ID)
        try:
            return honest(agent, request)
        finally:
            _asked.by_frame = False

    ServerCommandAgent._execute_command = execute_command


def fits(task: Any) -> bool:
    """Say whether a task, if it is one, can be the answer to the request that this thread works on."""
    return task is None or not getattr(_asked, "by_frame", False) or _small(task.get("request"))


def _small(content: object) -> bool:
    return content is None or (isinstance(content, bytes) and len(content) <= LARGEST)


class Letters:
    """A site's way of asking for tasks and sending answers: by frames where they fit."""

    def __init__(self, cell: Any) -> None:
        self._stream, self._frame = cell.send_request, cell.core_cell.send_request
        self._next_fits = True

    def send_request(self, **named: Any) -> Any:
        """Send a request as FLARE does, and return the reply."""
        topic = named["topic"] if named["channel"] == CellChannel.SERVER_COMMAND else None
        if topic == ServerCommandNames.GET_TASK:
            reply = self._sent(self._next_fits, named)
            if isinstance(task := reply.payload, Shareable):
                nothing = task.get_header(ServerCommandKey.TASK_NAME) == SpecialTaskName.TRY_AGAIN
                self._next_fits = not nothing and _small(task.get("request"))
            return reply
        return self._sent(
            topic == ServerCommandNames.SUBMIT_UPDATE and _small(named["request"].payload.get("answer")), named
        )

    def _sent(self, by_frame: bool, named: dict[str, Any]) -> Any:
        if not by_frame or named["abort_signal"].triggered:
            return self._stream(**named)
        named["request"].set_header(MessageHeaderKey.PAYLOAD_LEN, 0)  # FLARE logs it; only a stream's is filled in
        given = {key: named[key] for key in ("channel", "topic", "target", "request", "optional")}
        return self._frame(**given, timeout=PATIENCE)


def send_letters(cell: Any, ending: Any) -> None:
    """Let a site's job send what is small as frames, and its answers without first asking whether they are wanted.

    When FLARE's signal that the job is `ending` comes, no reply is waited for any more.
    """
    cell.send_request = Letters(cell).send_request
    client_runner.ClientRunner._check_task_once = lambda runner, task_id, fl_ctx: client_runner._TASK_CHECK_RESULT_OK
    trigger = ending.trigger

    def release(value: Any) -> None:
        trigger(value)
        for waiter in list(cell.core_cell.waiters.values()):
            waiter.set()

    ending.trigger = release
