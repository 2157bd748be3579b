"""A site's sign of life: a file that is touched whenever the server has answered a heartbeat of this site."""

import contextlib
import os
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.private.defs import CellChannelTopic

from promptfed.sites.health import HEARTBEAT
from promptfed.sites.worker_command import HOME


class Heartbeat(FLComponent):  # type: ignore[misc]
    """Listens to the heartbeats of the site's parent process; FLARE's own event comes without an answer too."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin to listen, once there is a connection to listen on."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            cell: Any = fl_ctx.get_engine().get_cell()
            cell.send_request = heard(cell.send_request, Path(os.environ[HOME]) / HEARTBEAT)


def heard(send: Any, file: Path) -> Any:
    """Return the same way of sending, which touches `file` when a heartbeat was answered well."""

    def send_request(*given: Any, **named: Any) -> Any:
        reply = send(*given, **named)
        if named.get("topic") == CellChannelTopic.HEART_BEAT:
            _touch(file, reply.get_header(MessageHeaderKey.RETURN_CODE))
        return reply

    return send_request


def _touch(file: Path, answered: str) -> None:
    if answered == ReturnCode.OK:
        with contextlib.suppress(OSError):  # a full disk must not end the connection
            file.touch(0o600)
