"""Whole tables: every cell once, skipped when finished, resumed when stopped, failures listed, ours beside theirs."""

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

from promptfed import cli, config, reproduce, runner
from promptfed.errors import PromptFedError
from promptfed.reproduce import Done, Job, Plan, deviations, find_table
from promptfed.tables import read_table, to_markdown
from test_cli import Done as Finished
from test_cli import environment, promptfed
from test_runner import write_images

TABLE = """
title = "A small table"
paper = "Somebody 2020."
deviations = ["The images are noise."]
notes = ["A note."]

[base]
rounds = 2
clients = 3
data = {{ name = "npz:{images}" }}
partition = {{ name = "iid" }}
backbone = {{ name = "cnn", channels = [2], kernel = 3, hidden = [4] }}
method = {{ epochs = 1, batch = 8 }}

[theirs]
rounds = 4

[tune.all]
"method.lr" = [0.1, 0.001]

[[columns]]
name = "iid"
title = "IID"
clients = ["A", "B", "C"]

[[columns]]
name = "dirichlet"
title = "Dir(1)"
recipe.partition = {{ name = "dirichlet", alpha = 1.0 }}

[[rows]]
name = "fedavg"
title = "FedAvg"
recipe.method = {{ name = "fedavg", lr = 0.05 }}
tune = "all"
paper.iid = {{ clients = [50, 60, 70], mean = 60 }}
paper.dirichlet = 55.5

[[rows]]
name = "local"
title = "Local"
recipe.method = {{ name = "local", lr = 0.1 }}
tune = "all"
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a table of two columns and two rows; the current folder is an empty one."""
    images = write_images(tmp_path / "tiny.npz")
    path = tmp_path / "small.table.toml"
    path.write_text(TABLE.format(images=images), encoding="utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return path


def run(table: Path, out: Path, *words: object) -> Finished:
    return promptfed("reproduce", table, "--out", out, *words)


def folders(out: Path) -> set[str]:
    return {path.parent.relative_to(out).as_posix() for path in out.rglob("summary.json")}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the labels of the runs that were really made."""
    made: list[str] = []
    work = reproduce.work

    def counting(job: Job) -> Done:
        made.append(job.label)
        return work(job)

    monkeypatch.setattr(reproduce, "work", counting)
    return made


def test_a_table_end_to_end(table: Path, tmp_path: Path, counted: list[str]) -> None:
    out = tmp_path / "out"
    done = run(table, out, "--seeds", "0,1")
    assert (done.code, done.err) == (0, "")
    cells = {"iid/fedavg", "iid/local", "dirichlet/fedavg", "dirichlet/local"}
    assert folders(out) == {f"{cell}/seed{seed}" for cell in cells for seed in (0, 1)}
    assert len(counted) == 8
    found = read_table(out)
    assert done.out.startswith(to_markdown(found))
    assert (found["table"], found["seeds"]) == ("small", [0, 1])
    first = found["rows"][0]
    summaries = [json.loads((out / f"iid/fedavg/seed{seed}/summary.json").read_text()) for seed in (0, 1)]
    means = [100 * summary["accuracy"]["mean"] for summary in summaries]
    assert first["ours"]["mean"] == pytest.approx(sum(means) / 2, abs=1e-4)
    assert first["difference"] == pytest.approx(sum(means) / 2 - 60, abs=0.006)
    assert first["ours"]["recipe_hashes"] == {str(seed): summaries[seed]["recipe_hash"] for seed in (0, 1)}
    traffic = first["ours"]["traffic"]
    assert traffic is not None
    assert traffic["down_bytes"] == 4 * traffic["down_floats"]  # floats of four bytes, per client and round
    assert "- `rounds`: 4 → 2.\n- The images are noise.\n" in to_markdown(found)
    weighted = [100 * summary["accuracy"]["weighted"] for summary in summaries]
    assert first["ours"].get("weighted") == pytest.approx(sum(weighted) / 2, abs=1e-4)
    assert found.get("measures") == ["mean"]
    assert [one["column"] for one in found.get("agreement", [])] == ["iid", "dirichlet"]
    again = run(table, out, "--seeds", "0,1")
    assert len(counted) == 8  # nothing was run again
    assert again.out == done.out


def test_all_thirteen_rows_of_pfedpts_table_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    images = write_images(tmp_path / "tiny.npz", count=160)
    network = ["backbone.channels=[2]", "backbone.kernel=3", "backbone.hidden=[4]", "backbone.pool_after=[1]"]
    words = [
        f"data.name=npz:{images}",
        "rounds=1",
        "clients=4",
        "per_round=2",
        "method.epochs=1",
        "method.lr=0.2",
        *network,
    ]
    assert promptfed("reproduce", "pfedpt/t1-cifar10", "--out", "out", "--columns", "dir-cnn", *words).code == 0
    found = read_table(Path("out"))
    rows = {row["row"]: row["ours"] for row in found["rows"]}
    assert len(rows) == 13
    assert all(ours["mean"] is not None and ours.get("weighted") is not None for ours in rows.values())
    for name in ("fedavg", "fedprox", "moon"):  # a starred row is the plain one, fine-tuned
        assert rows[f"{name}-tuned"]["before"] == rows[name]["mean"]
        assert rows[f"{name}-tuned"]["mean"] != rows[name]["mean"]
    (order,) = found.get("agreement", [])
    assert (order["methods"], set(order["rank_correlation"])) == (13, {"mean", "weighted"})


def test_domains_of_the_servers_model_are_no_clients() -> None:
    table = find_table("fedapt/t6-unseen")  # five clients, six domains
    settings = {name: config.expand(cell.recipe, [], name)[0] for name, cell in table.cells().items()}
    assert deviations(table, settings) == list[str]()


def test_a_part_of_a_table_then_the_rest(table: Path, tmp_path: Path, counted: list[str]) -> None:
    out = tmp_path / "out"
    assert run(table, out, "--only", "local", "--columns", "iid").code == 0
    assert counted == ["iid/local, seed 0"]
    assert [row["row"] for row in read_table(out)["rows"]] == ["local"]
    assert run(table, out, "--only", "fedavg", "--columns", "iid").code == 0
    assert counted == ["iid/local, seed 0", "iid/fedavg, seed 0"]
    assert [row["row"] for row in read_table(out)["rows"]] == ["fedavg", "local"]  # what is finished is shown


def test_an_override_need_fit_only_the_columns_asked_for(table: Path, tmp_path: Path, counted: list[str]) -> None:
    out = tmp_path / "out"
    assert run(table, out, "--only", "local", "partition.alpha=2.0").code == 2  # iid has no alpha
    assert run(table, out, "--only", "local", "--columns", "dirichlet", "partition.alpha=2.0").code == 0
    assert counted == ["dirichlet/local, seed 0"]


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
    out, start = tmp_path / "out", runner.start
    straight = tmp_path / "straight"
    assert run(table, straight, "--only", "local", "--columns", "iid").code == 0

    def stop(recipe: Any, folder: Path) -> Any:
        start(recipe, folder)
        (folder / "summary.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "start", stop)
    stopped = run(table, out, "--only", "local", "--columns", "iid")
    assert (stopped.code, stopped.err) == (130, "Stopped. Give the same command again to go on.\n")
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
    start = runner.start

    def broken(recipe: Any, folder: Path) -> Any:
        if recipe.method["name"] == "fedavg":
            raise RuntimeError("a\nbug")
        return start(recipe, folder)

    monkeypatch.setattr(runner, "start", broken)
    done = run(table, tmp_path / "out", "--columns", "iid")
    assert done.code == 1
    assert "- FedAvg, seed 0: RuntimeError: a bug\n" in done.out
    assert "| FedAvg | – (50.00) | – (60.00) | – (70.00) | failed | 60.00 |" in done.out
    assert folders(tmp_path / "out") == {"iid/local/seed0"}


def test_diverged_training_stands_in_the_table(table: Path, tmp_path: Path) -> None:
    done = run(table, tmp_path / "out", "--only", "fedavg", "--columns", "dirichlet", "method.lr=1e30")
    assert done.code == 1
    assert "| FedAvg | diverged | 55.50 |" in done.out
    assert "Training diverged in round" in done.out


def test_side_by_side_gives_the_same_numbers(table: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(table, one, "--columns", "iid", "--device", "cpu").code == 0
    done = run(table, two, "--columns", "iid", "--device", "cpu", "--workers", "2")
    assert (done.code, done.err) == (0, "")
    alone, together = read_table(one), read_table(two)
    assert [sitting["workers"] for sitting in (*alone.pop("sittings"), *together.pop("sittings"))] == [1, 2]
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
    lines = [(place / "iid/prox-tuned/seed0/rounds.jsonl").read_text().splitlines() for place in (out, alone)]
    # the rounds before the last were not tested again, so they were not run again either
    assert [json.loads(one[0])["received"] is None for one in lines] == [True, False]


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
    assert reproduce._next([one, two, three], []) is one
    assert reproduce._next([two, three], [one]) is three
    assert reproduce._next([two], [one, three]) is None
    assert reproduce._next([two], [three]) is two


def test_rows_and_columns_are_run_in_the_order_asked_for(table: Path, tmp_path: Path, counted: list[str]) -> None:
    words = ("--only", "local,fedavg", "--columns", "dirichlet,iid")
    assert run(table, tmp_path / "out", *words).code == 0
    cells = ["dirichlet/local", "iid/local", "dirichlet/fedavg", "iid/fedavg"]
    assert counted == [f"{cell}, seed 0" for cell in cells]
    shown = [(row["column"], row["row"]) for row in read_table(tmp_path / "out")["rows"]]
    assert shown == [("iid", "fedavg"), ("iid", "local"), ("dirichlet", "fedavg"), ("dirichlet", "local")]


def test_every_sitting_is_remembered(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "gpu_load", lambda: 40.0)
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


def test_the_grid_is_tried_on_validation_images(table: Path, tmp_path: Path, counted: list[str]) -> None:
    out = tmp_path / "out"
    done = run(table, out, "--tune", "--columns", "iid", "--seeds", "0,1")
    assert (done.code, done.err) == (0, "")
    assert "| best of grid |" in done.out
    for row in read_table(out)["rows"]:
        tuned = row["tuned"]
        assert tuned is not None
        scores = {tried["setting"]["method.lr"]: tried["validation"] for tried in tuned["grid"]}
        assert list(scores) == [0.001, 0.1]
        for rate, score in scores.items():
            folder = out / "tune" / "iid" / row["row"] / f"method.lr={rate}"
            assert 'split = "val"' in (folder / "recipe.toml").read_text()
            mean = json.loads((folder / "summary.json").read_text())["accuracy"]["mean"]
            assert score == pytest.approx(100 * mean, abs=1e-4)
        best = max(scores.values(), key=lambda score: score or 0.0)
        rate = min(rate for rate, score in scores.items() if score == best)
        assert tuned["setting"] == {"method.lr": rate}
        again = out / "tuned" / "iid" / row["row"] / f"method.lr={rate}"
        papers = row["row"] == "local" and rate == 0.1  # the paper's own setting is not run twice
        assert again.exists() != papers
        assert (tuned["ours"] == row["ours"]) == papers
        assert set(tuned["ours"]["by_seed"]) == {"0", "1"}
    made = len(counted)
    assert run(table, out, "--tune", "--columns", "iid", "--seeds", "0,1").out == done.out
    assert len(counted) == made


def scored(mean: float) -> Done:
    return Done({"accuracy": {"mean": mean}})


def test_of_equal_points_the_smaller_rate_wins() -> None:
    rates = (0.01, 0.05, 0.25, 0.5)
    grid: list[tuple[dict[str, Any], Job]] = [({"lr": rate}, Job("", None, Path(str(rate)))) for rate in rates]  # type: ignore[arg-type]
    done = {Path("0.01"): scored(0.5), Path("0.05"): scored(0.7), Path("0.25"): scored(0.7)}
    assert reproduce._best(grid, {**done, Path("0.5"): Done(problem="diverged")}, "mean") == {"lr": 0.05}
    assert reproduce._best(grid[3:], {Path("0.5"): scored(float("nan"))}, "mean") is None


def test_deviations_name_key_and_cells(table: Path) -> None:
    small = find_table(str(table))
    cells = small.cells()

    def told(*words: str) -> list[str]:
        return deviations(small, {name: reproduce._recipe(cell, words) for name, cell in cells.items()})

    assert told("rounds=4") == []
    assert told() == ["`rounds`: 4 → 2."]
    assert told("rounds=4", "device=cpu", "fleet.width=2", "evaluate.every=2") == []
    assert told("rounds=4", "method.lr=0.1") == ["`method.lr`: 0.05 → 0.1."]  # Local has it already
    assert told("rounds=4", "partition.name=iid") == [
        "`partition.name`: dirichlet → iid (dirichlet/fedavg, dirichlet/local).",
        "`partition.alpha`: 1.0 → none (dirichlet/fedavg, dirichlet/local).",
        "`partition.min_train`: 1 → none (dirichlet/fedavg, dirichlet/local).",
    ]
    assert told("rounds=4", "clients=2") == [
        "`clients`: 3 → 2.",
        "The paper's mean is taken over our clients A, B instead of A, B, C (iid/fedavg).",
    ]
    assert told("rounds=4", "data.name=npz:/somewhere/else.npz")[0] == "`data.name`: npz:tiny.npz → npz:else.npz."


MISTAKES = {
    "unknown table": (["pfedpg/t1-offize"], 'Unknown table "pfedpg/t1-offize"; did you mean "pfedpg/t1-office"?'),
    "no such file": (["no.table.toml"], "cannot be read"),
    "unknown row": (["TABLE", "--only", "fedavgg"], 'Unknown row "fedavgg" in small; did you mean "fedavg"?'),
    "unknown column": (["TABLE", "--columns", "iit"], 'Unknown column "iit" in small; did you mean "iid"?'),
    "seeds that are none": (["TABLE", "--seeds", "0,x"], 'not "0,x"'),
    "a seed twice": (["TABLE", "--seeds", "1,1"], "different whole numbers"),
    "a seed as a key": (["TABLE", "seed=3"], "--seeds 0,1,2"),
    "a split as a key": (["TABLE", "evaluate.split=val"], "--tune uses the validation images"),
    "a sweep": (["TABLE", "rounds=[1,2]"], "sweep of 2 runs"),
    "no folder to merge": (["TABLE", "--merge", "nowhere"], "There is no folder nowhere to merge."),
    "no worker": (["TABLE", "--workers", "0"], "at least 1 worker"),
    "unknown key": (["TABLE", "method.epoch=3"], 'did you mean "method.epochs"?'),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence(mistake: str, table: Path) -> None:
    words, expected = MISTAKES[mistake]
    done = promptfed("reproduce", *(table if word == "TABLE" else word for word in words))
    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert done.err.count("\n") == 1
    assert list(Path.cwd().iterdir()) == []


def test_a_table_is_no_recipe(table: Path) -> None:
    for name in ("pfedpg/t1-office", str(table)):
        done = promptfed("run", name)
        assert (done.code, f"use promptfed reproduce {name}." in done.err) == (2, True)


def test_help_names_every_option() -> None:
    done = promptfed("reproduce", "--help")
    assert done.code == 0
    for word in ("TABLE", "KEY=VALUE", "--out", "--seeds", "--only", "--columns", "--workers", "--tune", "--merge"):
        assert word in done.out


def test_a_person_sees_tables(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    assert run(table, tmp_path / "out", "--columns", "iid").code == 0
    console = Console(force_terminal=True, width=200, color_system=None, record=True, file=(tmp_path / "x").open("w"))
    monkeypatch.setattr(cli, "console", console)
    cli._show_table(read_table(tmp_path / "out"))
    shown = console.export_text()
    for words in ("A small table", "FedAvg", "60.00", "Deviations", "- `rounds`: 4 → 2.", "- A note."):
        assert words in shown
    console.file.close()


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.05)


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
        _, err = began.communicate(timeout=60)
    assert began.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), err.decode()
    if number == signal.SIGINT:
        assert err.decode() == "Stopped. Give the same command again to go on.\n"
    sizes = [path.stat().st_size for path in lines]
    time.sleep(0.5)  # a worker that had outlived its parent would write on
    assert [path.stat().st_size for path in lines] == sizes
    assert folders(out) == set()


def test_a_dead_worker_is_told(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "_work_interruptibly", _die)
    done = run(table, tmp_path / "out", "--workers", "2", "--columns", "iid")
    assert done.code == 1
    assert done.out.count("A worker process died") == 2


def _die(job: Job) -> Done:
    os._exit(9)


def test_plan_is_checked_from_python_too(table: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="different whole numbers"):
        reproduce.reproduce(find_table(str(table)), Plan(tmp_path / "out", seeds=()))
