"""A site that begins many large messages and finishes none takes a bounded part of the coordinator's memory."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from promptfed.sites.flare_streams import MOST_MESSAGES, excess, held
from support.loopback import Loopback, until
from support.peaks import Peaks
from support.three_sites import SETTINGS, lines

PATIENCE = 240.0  # a dozen processes that import torch may share two busy cores with much else
BOUND = 1200  # MB; the server's job takes 350 without it, 1,560 more are sent, and what is being read takes some too
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
            for number in range(130):
                head = {Key.STREAM_ID: 10**6 + number, Key.SEQUENCE: 0, Key.SIZE: 13 * 2**20}
                head |= {Key.DATA_TYPE: StreamDataType.CHUNK, Key.CHANNEL: "server_command", Key.TOPIC: "submit_update"}
                content = Message(head, b"x" * (12 * 2**20))
                cell.core_cell.fire_and_forget(STREAM_CHANNEL, STREAM_DATA_TOPIC, target, content)
        return honest(self, task_name, shareable, fl_ctx, abort_signal)

    Site.execute = execute
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_large_messages_at_once_take_a_bounded_part_of_memory(tmp_path: Path) -> None:
    (tmp_path / "hostile").mkdir()
    (tmp_path / "hostile" / "sitecustomize.py").write_text(HOSTILE)
    federation, peaks = Loopback(tmp_path, "answer_mb = 8", "min_sites = 2", "round_seconds = 60"), Peaks()
    try:
        federation.start("server", "start")
        federation.join("north")
        federation.join("south")
        federation.join("west", PYTHONPATH=f"{tmp_path / 'hostile'}:{os.environ.get('PYTHONPATH', '')}")
        words = ("fedavg", "rounds=2", "device=cpu", *SETTINGS["fedavg"], "evaluate.after=false")
        federation.start("run", "run", *words, "--out", "run")
        run = federation.processes["run"]
        until(lambda: peaks.look(federation) or run.poll() is not None, PATIENCE)
        assert run.poll() == 0, federation.said("run")
        log = "".join(path.read_text(errors="replace") for path in (tmp_path / "federation").rglob("*log*.txt"))
        log += (tmp_path / "federation" / "server.log").read_text()
    finally:
        federation.close()
    assert "bytes under way, more than" in log
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
