"""Claims on the runs of a shared folder: one worker each, taken over from the dead, and never from the living."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from promptfed.papers.claims import Claims, TableWorker
from support.command import environment


def later(path: Path, seconds: float) -> None:
    """Let a file have been touched so long ago."""
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_a_run_is_taken_once_and_free_again(tmp_path: Path) -> None:
    run, one, other = tmp_path / "iid/fedavg/seed0", Claims(tmp_path), Claims(tmp_path)
    with one.taken(run) as mine:
        assert mine
        assert other.working(run)
        with other.taken(run) as theirs:
            assert not theirs
        with other.taken(tmp_path / "iid/local/seed0") as another:
            assert another
        assert one.working(run)  # those who did not get it removed nothing
    assert not other.working(run)
    with other.taken(run) as theirs:
        assert theirs


def test_of_many_at_once_one_gets_it(tmp_path: Path) -> None:
    start, over, got = threading.Barrier(8), threading.Barrier(8), []

    def try_it() -> None:
        claims = Claims(tmp_path)
        start.wait()
        with claims.taken(tmp_path / "run") as mine:
            got.append(mine)
            over.wait()

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 7 + [True]


def test_the_claim_of_a_dead_worker_is_taken_over(tmp_path: Path) -> None:
    run, claims = tmp_path / "run", Claims(tmp_path)
    dead = claims.folder / "run.0.json"
    dead.write_text(json.dumps({"host": "far", "pid": 1, "task": ""}))
    assert claims.working(run)
    later(dead, 119)
    assert claims.working(run)
    later(dead, 2)
    assert not claims.working(run)
    with claims.taken(run) as mine:
        assert mine
        last = claims.last(run)
        assert last is not None
        assert (last.path.name, last.worker) == ("run.1.json", claims.worker)
    assert not list(claims.folder.glob("run.*"))


def test_a_claim_that_is_being_written_counts(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    (claims.folder / "run.0.json").touch()
    assert claims.working(tmp_path / "run")
    with claims.taken(tmp_path / "run") as mine:
        assert not mine


def test_a_task_that_began_anew_takes_its_own_claims_at_once(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    claims.worker = replace(claims.worker, task="17_3")
    for name, task in (("own", "17_3"), ("other", "17_4")):
        (claims.folder / f"{name}.0.json").write_text(json.dumps({"host": "far", "pid": 1, "task": task}))
    assert not claims.working(tmp_path / "own")
    assert claims.working(tmp_path / "other")


def test_a_task_of_a_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert str(TableWorker.here()).endswith(", Slurm 17_3")


def test_one_that_was_silent_for_too_long_ends(tmp_path: Path) -> None:
    # a stopped process wakes up after another has taken its run: it must not write there any more
    code = (
        "import sys, time; from pathlib import Path; from promptfed.papers.claims import Claims\n"
        "out = Path(sys.argv[1])\n"
        "with Claims(out, beat=0.05).taken(out / 'run') as mine:\n"
        "    print('taken', flush=True)\n"
        "    time.sleep(300)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    (tmp_path / "claims/run.1.json").write_text(json.dumps({"host": "far", "pid": 1, "task": ""}))
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "another process works on it; this one ends." in said
    assert (tmp_path / "claims/run.1.json").exists()


def test_failures_are_known_to_all_until_a_new_command(tmp_path: Path) -> None:
    one, other, run = Claims(tmp_path), Claims(tmp_path), tmp_path / "a/method.lr=0.1"
    one.fail(run, "No disk.")
    assert other.problem(run) == "No disk."
    with one.taken(tmp_path / "b"):
        other.forgive()  # somebody is at work: its failures stand
        assert other.problem(run) == "No disk."
    other.forgive()
    assert one.problem(run) == ""
