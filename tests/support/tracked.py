"""Runs under the real trackers, none of which needs a network, and what they have stored, read from their files."""

import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.command import environment

PATIENCE = 240.0
BLOCK = 32768  # of a wandb file, which is a log of records in pieces
HEAD = struct.Struct("<IHB")  # checksum, length, and whether a piece is whole (1), first, middle or last (4)


@dataclass
class Stored:
    """What a tracker has of its runs: settings, numbers by step, and numbers of the end."""

    settings: dict[str, Any] = field(default_factory=dict)
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    end: dict[str, float] = field(default_factory=dict)
    states: list[str] = field(default_factory=list)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Add the numbers of a step; no number may come twice."""
        end = {name: value for name, value in values.items() if name.startswith("final/")}
        rest = {name: value for name, value in values.items() if name not in end and not name.startswith("_")}
        known = self.steps.setdefault(step, {})
        assert not known.keys() & rest.keys(), f"round {step} is there twice"
        assert not self.end.keys() & end.keys(), "the end is there twice"
        known |= rest
        self.end |= end


def settings(home: Path) -> dict[str, str]:
    """Return an environment in which all trackers keep what they get below `home`."""
    home.mkdir(exist_ok=True)
    local = {"TRACKIO_DIR": str(home / "trackio"), "MLFLOW_TRACKING_URI": f"sqlite:///{home / 'mlflow.db'}"}
    return environment(WANDB_MODE="offline", HF_HUB_OFFLINE="1", WANDB_SILENT="true", **local)


def command(*words: object, home: Path) -> str:
    """Run the command line and return what it says."""
    program = [sys.executable, "-m", "promptfed", *map(str, words)]
    done = subprocess.run(program, cwd=home, env=settings(home), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def killed(folder: Path, *words: object, rounds: int, home: Path) -> None:
    """Run the command line, and kill it when so many rounds are on record."""
    program = [sys.executable, "-m", "promptfed", *map(str, words)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(program, cwd=home, env=settings(home), stdout=quiet, stderr=quiet) as process:
        deadline = time.monotonic() + PATIENCE
        lines = folder / "rounds.jsonl"
        while not lines.is_file() or lines.read_text("utf-8").count("\n") < rounds:
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)


def stored(kind: str, folder: Path, home: Path) -> Stored:
    """Return what a tracker has of the run in `folder`."""
    read = {"wandb": _wandb, "trackio": _trackio, "mlflow": _mlflow}[kind]
    return read(folder, home)


def _wandb(folder: Path, _: Path) -> Stored:
    found = Stored()
    kept = json.loads((folder / "tracked.json").read_text("utf-8"))["wandb"]["id"]
    for path in sorted((folder / "wandb").glob(f"offline-run-*-{kept}/*.wandb")):
        for record in wandb_records(path):
            if record.HasField("run"):
                found.settings = {one.key: json.loads(one.value_json) for one in record.run.config.update}
                found.settings.pop("_wandb", None)
            if record.HasField("history"):
                items = {one.nested_key[0]: json.loads(one.value_json) for one in record.history.item}
                found.add(record.history.step.num, {k: v for k, v in items.items() if not k.startswith("_")})
            if record.HasField("summary"):
                ends = {one.key: json.loads(one.value_json) for one in record.summary.update}
                found.end |= {name: value for name, value in ends.items() if name.startswith("final/")}
            if record.HasField("exit"):
                found.states.append("failed" if record.exit.exit_code else "finished")
    return found


def wandb_records(path: Path) -> Iterator[Any]:
    """Yield the records of a wandb file; one that was being written when its writer was killed is left out."""
    from wandb.proto import wandb_internal_pb2

    content, at, parts = path.read_bytes(), 7, b""
    while at + HEAD.size <= len(content):
        if (left := BLOCK - at % BLOCK) < HEAD.size:
            at += left
            continue
        _, size, piece = HEAD.unpack_from(content, at)
        at += HEAD.size + size
        if at > len(content):
            return
        parts += content[at - size : at]
        if piece in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def _trackio(_: Path, home: Path) -> Stored:
    found = Stored()
    with sqlite3.connect(home / "trackio" / "promptfed.db") as store:
        for (config,) in store.execute("SELECT config FROM configs"):
            found.settings = {key: value for key, value in json.loads(config).items() if not key.startswith("_")}
        for step, values in store.execute("SELECT step, metrics FROM metrics ORDER BY id"):
            found.add(step, json.loads(values))
        assert store.execute("SELECT count(*) FROM system_metrics").fetchone() == (0,), "the machine's load is in it"
    store.close()
    return found


def _mlflow(_: Path, home: Path) -> Stored:
    found = Stored()
    with sqlite3.connect(home / "mlflow.db") as store:
        found.settings = dict(store.execute("SELECT key, value FROM params"))
        for key, value, step in store.execute("SELECT key, value, step FROM metrics"):
            found.add(step, {key: value})
        found.states = [state.lower() for (state,) in store.execute("SELECT status FROM runs")]
    store.close()
    return found
