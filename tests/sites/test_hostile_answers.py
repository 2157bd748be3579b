"""A hostile site sends far more than `answer_mb`, or nonsense: memory stays bounded, and the run goes on."""

import os
from pathlib import Path
from typing import Any

import pytest

from support.loopback import Loopback, until
from support.peaks import Peaks
from support.three_sites import SETTINGS, lines

PATIENCE = 240.0  # a dozen processes that import torch may share two busy cores with much else
ANSWERS = {
    "message": "bytes(400 * 2**20)",
    "downloads": "{str(n): np.ones(3 * 2**20, np.float32) for n in range(80)}",  # FLARE would fetch each
    "unreadable": "Odd.ONE",  # of a type that the server does not know
}
BOUND = 900  # MB; the server's job takes 350 without it
HOSTILE = """
import enum
import sys

import numpy as np

class Odd(enum.Enum):
    ONE = 1

if "nvflare.private.fed.app.client.worker_process" in sys.orig_argv:
    from promptfed.sites.flare_executor import Site

    honest = Site.execute

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        reply = honest(self, task_name, shareable, fl_ctx, abort_signal)
        if b'"fit' in shareable["request"].replace(b"\\\\", b"").replace(b" ", b""):
            reply["answer"] = ANSWER
        return reply

    Site.execute = execute
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ANSWERS)
def test_a_hostile_answer_takes_no_memory_and_the_run_goes_on(kind: str, tmp_path: Path) -> None:
    (tmp_path / "hostile").mkdir()
    (tmp_path / "hostile" / "sitecustomize.py").write_text(HOSTILE.replace("ANSWER", ANSWERS[kind]))
    federation, peaks = Loopback(tmp_path, "answer_mb = 8", "min_sites = 2", "round_seconds = 15"), Peaks()
    try:
        federation.start("server", "start")
        federation.join("north")
        federation.join("south")
        places = [str(tmp_path / "hostile"), os.environ.get("PYTHONPATH", "")]
        federation.join("west", PYTHONPATH=os.pathsep.join(filter(None, places)))
        words = ("fedavg", "rounds=2", "device=cpu", *SETTINGS["fedavg"], "evaluate.after=false")
        federation.start("run", "run", *words, "--out", "run")
        run = federation.processes["run"]
        until(lambda: peaks.look(federation) or run.poll() is not None, PATIENCE)
        assert run.poll() == 0, federation.said("run")
    finally:
        federation.close()
    told: Any = [line["sites"] for line in lines(tmp_path / "run")]
    assert [line["clients"] for line in lines(tmp_path / "run")] == [[0, 1], [0, 1]], told
    assert peaks.keys() == {"server_train", "runner_process"}
    assert max(peaks.values()) < BOUND, peaks
    assert "west" in told[0]["silent"] or "west" in told[0]["refused"], told
