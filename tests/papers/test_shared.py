"""A table that several processes work on: every run is made once, and all see the whole table."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from promptfed.papers import jobs
from promptfed.papers.claims import Claims
from promptfed.papers.jobs import Job, JobResult
from promptfed.runs.config import Recipe
from support.command import environment, promptfed, sentence
from support.small_tables import given_table, run  # noqa: F401  fixtures

PATIENCE = 240.0


def start(table: Path, out: Path, *words: str) -> "subprocess.Popen[str]":
    """Give the command in a process of its own."""
    command = [sys.executable, "-m", "promptfed", "reproduce", str(table), "--out", str(out), "--on", "shared", *words]
    return subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def until_a_round(out: Path) -> None:
    """Wait until some run has finished a round."""
    deadline = time.monotonic() + PATIENCE
    while not any(path.stat().st_size for path in out.rglob("rounds.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_processes_share_a_table(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "shared"
    workers = [start(table, out, "--tune") for _ in range(2)]
    said = [worker.communicate(timeout=PATIENCE) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    made = [json.loads(line)["runs"] for line in (out / "sittings.jsonl").read_text().splitlines()]
    runs = list(out.rglob("summary.json"))
    assert sum(made) == len(runs)  # none was made twice
    alone = tmp_path / "alone"
    assert run(table, alone, "--tune").code == 0
    for path in runs:
        one, other = json.loads(path.read_text()), json.loads((alone / path.relative_to(out)).read_text())
        assert one["accuracy"] == other["accuracy"]
    assert not list((out / "claims").glob("*.json"))


def test_what_a_killed_process_had_is_taken_over(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "shared"
    killed = start(table, out, "rounds=400")
    until_a_round(out)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    (claim,) = (out / "claims").glob("*.0.json")
    states = json.loads(promptfed("jobs", out, "--json").out)
    assert [one["state"] for one in states] == ["running"]  # for two minutes nobody can know
    os.utime(claim, (0, 0))
    assert json.loads(promptfed("jobs", out, "--json").out)[0]["state"] == "stopped"
    again = start(table, out, "rounds=400", "--only", "local", "--columns", "iid")
    _, said = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, said


def test_sigterm_commits_and_removes_the_claim(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "shared"
    worker = start(table, out, "rounds=4000", "checkpoint_seconds=1000")
    until_a_round(out)
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 130
    assert said.endswith("Stopped. Give the same command again to resume.\n")
    assert not list((out / "claims").glob("*.json"))
    (state,) = out.rglob("state.json")
    assert json.loads(state.read_text())["round"] >= 1


def test_a_failure_is_not_tried_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def run_job(job: Job) -> JobResult:
        tried.append(job.label)
        return JobResult(problem="Broken.")

    monkeypatch.setattr(jobs, "run_job", run_job)
    job = Job("a", Recipe(device="cpu"), tmp_path / "a")
    for _ in range(2):
        done = jobs.execute({"x": [job]}, ["x"], tmp_path, claims=Claims(tmp_path))
        assert done[job.folder].problem == "Broken."
    assert tried == ["a"]


def test_jobs_shows_what_needs_a_look(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(table, out, "--only", "local", "--columns", "iid").code == 0
    done = promptfed("jobs", out)
    assert (done.out, done.err) == ("", "1 finished\n")
    assert "| iid/local/seed0 | finished | 2/2 |" in promptfed("jobs", out, "--all", "--format", "markdown").out


def test_wrong_words_get_a_sentence(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "leave out --workers 2" in sentence(run(table, out, "--on", "shared", "--workers", 2))
    assert "--slurm goes with --on slurm." in sentence(run(table, out, "--slurm", "time=5"))
    assert "KEY=VALUE" in sentence(run(table, out, "--on", "slurm", "--slurm", "gpu"))
    assert "set by promptfed itself" in sentence(run(table, out, "--on", "slurm", "--slurm", "array=1-9"))
    assert "There is no " in sentence(promptfed("jobs", tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "No run has begun" in sentence(promptfed("jobs", tmp_path / "empty"))
