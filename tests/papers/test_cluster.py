"""A table over a real Slurm of one node: an array of tasks, one killed by Slurm, one run made once."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.papers import cluster
from promptfed.papers.plan import TablePlan
from support.command import environment
from support.small_slurm import missing, small_slurm
from support.small_tables import given_table, run  # noqa: F401  fixtures

PATIENCE = 250.0
needs_slurm = pytest.mark.skipif(bool(missing()), reason=missing())


def test_options_of_sbatch() -> None:
    given = ["partition=gpu", "gpus-per-node=1", "time=90", "mail-user=a@b.org"]
    assert cluster.read_options(given) == {"partition": "gpu", "gpus-per-node": 1, "time": 90, "mail-user": "a@b.org"}
    with pytest.raises(PromptFedError, match="a whole number of minutes, not '1:30:00'"):
        cluster.read_options(["time=1:30:00"])


def test_without_slurm_there_is_a_sentence(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PromptFedError, match="There is no Slurm here: sbatch is not on the PATH"):
        cluster.submit(str(table), TablePlan(tmp_path / "out"), [])


def test_a_mistake_is_told_before_anything_is_queued(table: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match='Unknown row "fedavgg"'):
        cluster.submit(str(table), TablePlan(tmp_path / "out", rows=("fedavgg",)), [])


def start(table: Path, out: Path, slurm: dict[str, str], *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "promptfed", "reproduce", str(table), "--out", str(out), "--on", "slurm", *words]
    return subprocess.Popen(
        command, env=environment(**slurm), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=out.parent
    )


@needs_slurm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tasks_share_a_table_and_a_requeued_one_goes_on(table: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "slurm"
    folder.mkdir()
    with small_slurm(folder) as slurm:
        command = start(table, out, slurm, "--workers", "2", "--tune", "rounds=12")
        deadline = time.monotonic() + PATIENCE
        while not any(path.stat().st_size for path in out.rglob("rounds.jsonl")):
            assert time.monotonic() < deadline
            assert command.poll() is None, command.communicate()
            time.sleep(0.1)
        subprocess.run(["scontrol", "requeue", "1_0"], env=slurm, check=False)  # as a preemption does
        printed, said = command.communicate(timeout=PATIENCE)
    assert command.returncode == 0, said
    assert "Slurm job 1, 2 tasks." in said
    assert "Somebody 2020." in printed or "FedAvg" in printed
    alone = tmp_path / "alone"
    assert run(table, alone, "--tune", "rounds=12").code == 0
    runs = {path.relative_to(out) for path in out.rglob("summary.json")}
    assert runs == {path.relative_to(alone) for path in alone.rglob("summary.json")}
    for path in runs:
        assert json.loads((out / path).read_text())["accuracy"] == json.loads((alone / path).read_text())["accuracy"]
