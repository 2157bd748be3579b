"""A site that begins many large messages and finishes none takes a bounded part of the coordinator's memory."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from promptfed.sites.flare_streams import MOST_MESSAGES, excess, held
from support.hostile_site import Harm
from support.loopback import Loopback, until
from support.peaks import Peaks
from support.three_sites import SETTINGS, lines

PATIENCE = 240.0  # a dozen processes that import torch may share two busy cores with much else
BOUND = 1200  # MB; the server's job takes 350 without it, 1,560 more are sent, and what is being read takes some too
SENT = {  # how many, their type, and their size in MiB: of what they say, and of what comes
    "unfinished": (130, "CHUNK", 13, 12),
    "whole": (40, "FINAL", 7, 7),
}
HOSTILE = """
import sys

if "nvflare.private.fed.app.client.worker_process" in sys.orig_argv:
    from nvflare.fuel.f3.message import Message
    from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamDataType
    from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey as Key
    from promptfed.sites.flare_executor import Site

    honest, begun = Site.execute, []

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        if not begun:
            begun.append(True)
            cell, target = fl_ctx.get_engine().get_cell(), f"server.{fl_ctx.get_job_id()}"
            count, kind, size, comes = SENT
            for number in range(count):
                head = {Key.STREAM_ID: 10**6 + number, Key.SEQUENCE: 0, Key.OFFSET: 0, Key.SIZE: size * 2**20}
                head |= {Key.CHANNEL: "server_command", Key.TOPIC: "submit_update"}
                head |= {Key.DATA_TYPE: getattr(StreamDataType, kind)}
                content = Message(head, b"x" * (comes * 2**20))
                cell.core_cell.fire_and_forget(STREAM_CHANNEL, STREAM_DATA_TOPIC, target, content)
        return honest(self, task_name, shareable, fl_ctx, abort_signal)

    Site.execute = execute
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.real_processes
@pytest.mark.parametrize("kind", SENT)
def test_many_large_messages_at_once_take_a_bounded_part_of_memory(kind: str, tmp_path: Path) -> None:
    hostile = Harm(tmp_path / "hostile", text=HOSTILE.replace("SENT", str(SENT[kind])))
    federation, peaks = Loopback(tmp_path, "answer_mb = 8", "min_sites = 2", "round_seconds = 60"), Peaks()
    try:
        federation.start("server", "start")
        federation.join("north")
        federation.join("south")
        federation.join("west", **hostile.environment)
        words = ("fedavg", "rounds=2", "device=cpu", *SETTINGS["fedavg"], "evaluate.after=false")
        federation.start("run", "run", *words, "--out", "run")
        run = federation.processes["run"]
        until(lambda: peaks.look(federation) or run.poll() is not None, PATIENCE)
        assert run.poll() == 0, federation.said("run")
        log = (tmp_path / "federation" / "server.log").read_text()
    finally:
        federation.close()
    assert ("bytes under way, more than" in log) == (kind == "unfinished")
    read_and_dropped = log.count("blob_streamer - ERROR - blob_cb threw")
    assert read_and_dropped == (SENT[kind][0] if kind == "whole" else 0)
    assert {0, 1} <= set(lines(tmp_path / "run")[0]["clients"])  # type: ignore[call-overload]
    assert max(peaks.values()) < BOUND, peaks


def stream(size: object = 0, received: int = 0, early: int = 0) -> Any:
    """Return an unfinished message as FLARE has it."""
    kept = {7: (False, bytes(early))} if early else {}
    return SimpleNamespace(size=size, received_offset=received, out_seq_chunks=kept)


def test_a_message_takes_what_it_says_or_what_has_come() -> None:
    assert held(stream(size=1000)) == 1000
    assert held(stream(size=0, received=300, early=50)) == 350
    assert held(stream(size="a lie", received=300)) == 300


def test_the_bound_is_on_all_of_a_sites_messages_together() -> None:
    one = stream(size=1000)
    assert excess(one, [one, one], 0, 1000) == ""
    assert excess(one, [one, one], 1, 1000) == "its site has 2,001 bytes under way, more than 2,000"
    many = [stream(size=1)] * (MOST_MESSAGES + 1)
    assert excess(one, many, 0, 1000) == "its site has 33 messages under way, more than 32"
