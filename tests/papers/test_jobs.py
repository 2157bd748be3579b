"""A table's runs: skipped when finished, resumed when stopped, trained once, side by side, and none costs another."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from promptfed.papers import jobs
from promptfed.papers.jobs import Job, JobResult, execute
from promptfed.papers.rendering import read_table
from promptfed.runs import config, execution, reevaluating, runner
from promptfed.runs.config import Recipe
from support.command import environment
from support.small_tables import counted_runs, folders, given_table, run  # noqa: F401  fixtures


def test_only_wanted_jobs_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def run_job(job: Job) -> JobResult:
        made.append(job.label)
        return JobResult({"rounds": 1}) if job.label == "b" else JobResult(problem="Broken.")

    monkeypatch.setattr(jobs, "run_job", run_job)
    one, two, three = (Job(name, Recipe(seed=seed, device="cpu"), tmp_path / name) for seed, name in enumerate("abc"))
    done = execute({"x": [one], "y": [two], "z": [three]}, ["z", "y"], tmp_path)
    assert made == ["c", "b"]  # in the order of what is wanted
    assert done == {
        one.folder: JobResult(),
        two.folder: JobResult({"rounds": 1}),
        three.folder: JobResult(problem="Broken."),
    }


def test_a_failure_is_told_at_once_and_one_of_all_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def run_job(job: Job) -> JobResult:
        told.append(capsys.readouterr().err)
        return (
            JobResult({"rounds": 1})
            if job.label == "b"
            else JobResult(problem="Broken." if job.label == "a" else "No disk.")
        )

    monkeypatch.setattr(jobs, "run_job", run_job)
    made = {name: [Job(name, Recipe(seed=seed, device="cpu"), tmp_path / name)] for seed, name in enumerate("abcd")}
    execute(made, list(made), tmp_path)
    assert told == ["", "a: Broken.\n", "", "c: No disk.\n"]
    assert capsys.readouterr().err == ""


def test_a_bug_leaves_its_traceback_until_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("a", Recipe(device="cpu"), tmp_path / "a")

    def broken(recipe: Recipe, folder: Path) -> runner.Result:
        folder.mkdir()
        raise RuntimeError("cats\nand dogs")

    monkeypatch.setattr(execution, "start", broken)
    place = job.folder / "traceback.txt"
    assert jobs.run_job(job) == JobResult(problem=f"RuntimeError: cats and dogs; {place} says where.")
    assert "in broken" in place.read_text(encoding="utf-8")
    monkeypatch.setattr(execution, "start", lambda recipe, folder: runner.Result(folder, [], {"rounds": 1}))
    assert jobs.run_job(job) == JobResult({"rounds": 1})
    assert not place.exists()


@pytest.mark.parametrize("twins", [False, True])
def test_a_run_that_finds_no_room_says_what_to_lower_first(
    twins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> runner.Result:
        raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(execution, "start", full)
    monkeypatch.setattr(reevaluating, "reevaluate", full)
    monkeypatch.setattr(jobs, "_same_training", lambda job, twin: twins)
    (recipe,) = config.load("fedavg")
    job, none = Job("a", recipe, tmp_path / "a", (tmp_path / "b",)), "There is not enough memory for this"
    assert jobs.run_job(job).problem == f"{none}; lower fleet.width, or else method.batch."
    shared = f"{none}: 6 workers share it; lower --workers, or else fleet.width or method.batch."
    assert jobs.run_job(job, 6).problem == shared


def test_what_is_known_is_handed_on_after_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_job(job: Job) -> JobResult:
        return JobResult({"rounds": 1}) if job.label == "b" else JobResult(problem="Broken.")

    monkeypatch.setattr(jobs, "run_job", run_job)
    one, two = (Job(name, Recipe(seed=seed, device="cpu"), tmp_path / name) for seed, name in enumerate("ab"))
    seen: list[dict[Path, JobResult]] = []
    execute({"x": [one], "y": [two]}, ["x", "y"], tmp_path, keep=lambda done: seen.append(dict(done)))
    broken, fine = {one.folder: JobResult(problem="Broken.")}, {two.folder: JobResult({"rounds": 1})}
    assert seen == [broken | {two.folder: JobResult()}, broken | fine]  # nothing was finished before the first
    seen.clear()
    execute({"x": [one], "y": [two]}, [], tmp_path, keep=lambda done: seen.append(dict(done)))
    assert seen == []  # nothing was to be run


def test_what_is_finished_elsewhere_is_merged(table: Path, tmp_path: Path, counted: list[str]) -> None:
    one, two, all_of_it = tmp_path / "one", tmp_path / "two", tmp_path / "all"
    assert run(table, one, "--only", "local").code == 0
    assert run(table, two, "--only", "fedavg", "--columns", "iid").code == 0
    assert run(table, all_of_it, "--merge", one, "--merge", two).code == 0
    assert len(counted) == 4
    assert counted[-1] == "dirichlet/fedavg, seed 0"
    assert folders(all_of_it) == {"dirichlet/fedavg/seed0"}
    merged = {(row["column"], row["row"]): row["ours"] for row in read_table(all_of_it)["rows"]}
    assert len(merged) == 4
    for out in (one, two):
        assert all(merged[row["column"], row["row"]] == row["ours"] for row in read_table(out)["rows"])
    # other recipes are not taken
    assert (
        run(table, tmp_path / "new", "--merge", one, "--only", "local", "--columns", "iid", "method.lr=0.2").code == 0
    )
    assert len(counted) == 5


def test_a_stopped_run_goes_on(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, start = tmp_path / "out", execution.start
    straight = tmp_path / "straight"
    assert run(table, straight, "--only", "local", "--columns", "iid").code == 0

    def stop(recipe: Any, folder: Path) -> Any:
        start(recipe, folder)
        (folder / "summary.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(execution, "start", stop)
    stopped = run(table, out, "--only", "local", "--columns", "iid")
    assert (stopped.code, stopped.err) == (130, "Stopped. Give the same command again to resume.\n")
    assert run(table, out, "--only", "local", "--columns", "iid").code == 0  # goes on, and so does not start
    ours = [read_table(folder)["rows"][0]["ours"]["mean"] for folder in (out, straight)]
    assert ours[0] == ours[1]


def test_more_rounds_go_on_and_fewer_are_refused(table: Path, tmp_path: Path) -> None:
    words = ("--only", "local", "--columns", "iid")
    assert run(table, tmp_path / "out", *words).code == 0
    assert run(table, tmp_path / "out", *words, "rounds=3").code == 0
    summary = json.loads((tmp_path / "out" / "iid" / "local" / "seed0" / "summary.json").read_text())
    assert summary["rounds"] == 3
    refused = run(table, tmp_path / "out", *words)
    assert refused.code == 2
    assert "was run with rounds=3, not 2; choose another --out." in refused.err


def test_a_folder_of_another_recipe_is_refused_before_anything_runs(
    table: Path, tmp_path: Path, counted: list[str]
) -> None:
    assert run(table, tmp_path / "out", "--only", "local", "--columns", "iid").code == 0
    refused = run(table, tmp_path / "out", "method.lr=0.2")
    assert refused.code == 2
    assert "was run with method.lr=0.1, not 0.2; choose another --out." in refused.err
    assert refused.err.count("\n") == 1
    assert len(counted) == 1


def test_a_damaged_summary_is_told(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "iid" / "local" / "seed0"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("{")
    refused = run(table, tmp_path / "out")
    assert (refused.code, "is damaged" in refused.err) == (2, True)


def test_a_failing_cell_does_not_stop_the_others(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = execution.start

    def broken(recipe: Any, folder: Path) -> Any:
        if recipe.method["name"] == "fedavg":
            raise RuntimeError("a\nbug")
        return start(recipe, folder)

    monkeypatch.setattr(execution, "start", broken)
    done = run(table, tmp_path / "out", "--columns", "iid")
    assert done.code == 1
    assert "- FedAvg, seed 0: RuntimeError: a bug\n" in done.out
    assert "| FedAvg | – (50.00) | – (60.00) | – (70.00) | failed | 60.00 |" in done.out
    assert folders(tmp_path / "out") == {"iid/local/seed0"}


def test_side_by_side_gives_the_same_numbers(table: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(table, one, "--columns", "iid", "--device", "cpu").code == 0
    done = run(table, two, "--columns", "iid", "--device", "cpu", "--workers", "2")
    assert (done.code, done.err) == (0, "")
    alone, together = read_table(one), read_table(two)
    assert [one["workers"] for one in (*alone.pop("sittings"), *together.pop("sittings"))] == [1, 2]
    assert alone == together


TUNED = """
[[rows]]
name = "prox"
recipe.method = {{ name = "fedprox", lr = 0.05, mu = 0.1 }}

[[rows]]
name = "prox-tuned"
recipe.method = {{ name = "fedprox", lr = 0.05, mu = 0.1, tune_epochs = 2 }}
"""


@pytest.fixture
def tuned(table: Path) -> Path:
    """Return the table with two more rows, one of which is the other one fine-tuned."""
    table.write_text(table.read_text(encoding="utf-8") + TUNED.format(), encoding="utf-8")
    return table


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_fine_tuned_is_trained_once(workers: int, tuned: Path, tmp_path: Path) -> None:
    out, alone = tmp_path / "out", tmp_path / "alone"
    words = ("--columns", "iid", "--device", "cpu")
    assert run(tuned, out, "--only", "prox,prox-tuned,local", *words, "--workers", workers).code == 0
    assert run(tuned, alone, "--only", "prox-tuned", *words).code == 0  # there is nothing to begin from
    rows = {row["row"]: row["ours"] for row in read_table(out)["rows"]}
    assert rows["prox-tuned"] == read_table(alone)["rows"][0]["ours"]
    assert rows["prox-tuned"]["before"] == rows["prox"]["mean"]
    ours, plain, anew = (
        (place / "seed0/rounds.jsonl").read_text()
        for place in (out / "iid/prox-tuned", out / "iid/prox", alone / "iid/prox-tuned")
    )
    # to the digits of their seconds the rounds are those of the other row, so they were not run again
    assert ours == plain != anew


def test_without_its_models_a_twin_is_no_help(tuned: Path, tmp_path: Path) -> None:
    out, words = tmp_path / "out", ("--columns", "iid")
    assert run(tuned, out, "--only", "prox", *words).code == 0
    (out / "iid/prox/seed0/checkpoint/state.json").unlink()
    assert run(tuned, out, "--only", "prox-tuned", *words).code == 0
    first = json.loads((out / "iid/prox-tuned/seed0/rounds.jsonl").read_text().splitlines()[0])
    assert first["received"] is not None


def test_a_job_waits_for_what_it_need_not_train() -> None:
    one, two, three = (Job(name, None, Path(name)) for name in "abc")  # type: ignore[arg-type]
    one, two = replace(one, twins=(two.folder,)), replace(two, twins=(one.folder,))
    assert jobs._next([one, two, three], []) is one
    assert jobs._next([two, three], [one]) is three
    assert jobs._next([two], [one, three]) is None
    assert jobs._next([two], [three]) is two


def test_every_timing_is_recorded(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "gpu_load", lambda: 40.0)
    out = tmp_path / "out"
    assert run(table, out, "--only", "local", "--device", "cpu").code == 0  # nobody looks at a GPU that is not used
    done = run(table, out, "--only", "fedavg", "--columns", "iid")
    first, second = read_table(out).get("sittings", [])
    assert [(one["runs"], one["workers"], one["gpu_percent"]) for one in (first, second)] == [
        (2, 1, None),
        (1, 1, 40.0),
    ]
    assert second["runs_per_hour"] == pytest.approx(3600 / second["seconds"], rel=0.2)
    assert "## Time\n\n- 2 runs in " in done.out
    assert "an hour; the GPU was busy 40 % of the time.\n" in done.out
    assert run(table, tmp_path / "all", "--merge", out, "--only", "local").code == 0
    assert read_table(tmp_path / "all").get("sittings") == [first, second]


def test_runs_that_gave_nothing_are_not_counted(table: Path, tmp_path: Path) -> None:
    assert run(table, tmp_path / "out", "--only", "fedavg", "--columns", "iid", "method.lr=1e30").code == 1
    assert [one["runs"] for one in read_table(tmp_path / "out").get("sittings", [])] == [0]


def until(true: Callable[[], bool], seconds: float = 240.0) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.05)


def alive(group: int) -> bool:
    """Say whether any process of a group is there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_table(number: int, table: Path, tmp_path: Path) -> None:
    out, words = tmp_path / "out", ["rounds=4000", "checkpoint_seconds=0.2", "evaluate.every=2000"]
    command = [sys.executable, "-m", "promptfed", "reproduce", table, "--out", out, "--columns", "iid", *words]
    began = subprocess.Popen(
        [*map(str, command), "--workers", "2"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    lines = [out / "iid" / name / "seed0" / "rounds.jsonl" for name in ("fedavg", "local")]
    try:
        until(lambda: all((path.parent / "checkpoint" / "state.json").exists() for path in lines))
    finally:
        if number == signal.SIGINT:
            os.killpg(began.pid, number)  # as a terminal does
        else:
            os.kill(began.pid, number)
        _, err = began.communicate(timeout=240)
    assert began.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), err.decode()
    if number == signal.SIGINT:
        assert err.decode() == "Stopped. Give the same command again to resume.\n"
    until(lambda: not alive(began.pid))  # no worker outlives its parent
    assert folders(out) == set()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_table_leaves_what_is_finished(workers: int, table: Path, tmp_path: Path) -> None:
    out, words = tmp_path / "out", ["rounds=60", "--columns", "iid", "--seeds", "0,1,2", "--workers", str(workers)]
    command = [sys.executable, "-m", "promptfed", "reproduce", table, "--out", out, "--device", "cpu", *words]
    began = subprocess.Popen(
        list(map(str, command)), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until((out / "table.json").exists)
    finally:
        began.kill()
        began.wait()
    found = read_table(out)
    by_seed = {f"iid/{row['row']}/seed{seed}" for row in found["rows"] for seed in row["ours"]["by_seed"]}
    assert by_seed
    assert by_seed <= folders(out)
    assert found.get("unfinished", 0) == 6 - len(by_seed)


def test_a_dead_worker_is_told(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_work_interruptibly", _die)
    done = run(table, tmp_path / "out", "--workers", "2", "--columns", "iid")
    assert done.code == 1
    assert done.out.count("out of memory that 2 workers share") == 2


def _die(job: Job, workers: int) -> JobResult:
    os._exit(9)
