"""A site's sign of life: only an answer of the server counts, not the sending of a heartbeat."""

from pathlib import Path
from typing import Any

import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellChannelTopic

from promptfed.sites.flare_heartbeat import heard


@pytest.mark.parametrize(
    ("topic", "answer", "counts"),
    [
        (CellChannelTopic.HEART_BEAT, ReturnCode.OK, True),
        (CellChannelTopic.HEART_BEAT, ReturnCode.TIMEOUT, False),
        (CellChannelTopic.HEART_BEAT, ReturnCode.TARGET_UNREACHABLE, False),
        (CellChannelTopic.HEART_BEAT, ReturnCode.UNAUTHENTICATED, False),
        (CellChannelTopic.GET_TASK, ReturnCode.OK, False),
    ],
)
def test_only_an_answered_heartbeat_counts(topic: str, answer: str, counts: bool, tmp_path: Path) -> None:
    sent: list[Any] = []

    def send(*given: Any, **named: Any) -> Message:
        sent.append((given, named))
        return Message(headers={MessageHeaderKey.RETURN_CODE: answer})

    reply = heard(send, tmp_path / "heartbeat")("server", topic=topic, timeout=5.0)
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) == answer
    assert sent == [(("server",), {"topic": topic, "timeout": 5.0})]
    assert (tmp_path / "heartbeat").exists() == counts


def test_a_file_that_cannot_be_touched_does_not_stop_the_heart(tmp_path: Path) -> None:
    reply = Message(headers={MessageHeaderKey.RETURN_CODE: ReturnCode.OK})
    send = heard(lambda **named: reply, tmp_path / "no" / "such" / "folder")
    assert send(topic=CellChannelTopic.HEART_BEAT) is reply
