"""Whole tables: which cells, in which order, with which settings, and ours beside theirs."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptfed import config, reproduce, terminal
from promptfed.cli import training
from promptfed.errors import PromptFedError
from promptfed.jobs import Done, Job
from promptfed.reproduce import Plan, deviations, find_table
from promptfed.tables import read_table, to_markdown
from small_tables import count_runs, folders, run, small_table
from test_cli import promptfed
from test_runner import write_images


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a table of two columns and two rows; the current folder is an empty one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return small_table(tmp_path)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the labels of the runs that were really made."""
    return count_runs(monkeypatch)


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


def test_diverged_training_stands_in_the_table(table: Path, tmp_path: Path) -> None:
    done = run(table, tmp_path / "out", "--only", "fedavg", "--columns", "dirichlet", "method.lr=1e30")
    assert done.code == 1
    assert "| FedAvg | diverged | 55.50 |" in done.out
    assert "Training diverged in round" in done.out


def test_rows_and_columns_are_run_in_the_order_asked_for(table: Path, tmp_path: Path, counted: list[str]) -> None:
    words = ("--only", "local,fedavg", "--columns", "dirichlet,iid")
    assert run(table, tmp_path / "out", *words).code == 0
    cells = ["dirichlet/local", "iid/local", "dirichlet/fedavg", "iid/fedavg"]
    assert counted == [f"{cell}, seed 0" for cell in cells]
    shown = [(row["column"], row["row"]) for row in read_table(tmp_path / "out")["rows"]]
    assert shown == [("iid", "fedavg"), ("iid", "local"), ("dirichlet", "fedavg"), ("dirichlet", "local")]


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
    monkeypatch.setattr(training, "console", console)
    monkeypatch.setattr(terminal, "console", console)
    training._show_table(read_table(tmp_path / "out"))
    shown = console.export_text()
    for words in ("A small table", "FedAvg", "60.00", "Deviations", "- `rounds`: 4 → 2.", "- A note."):
        assert words in shown
    console.file.close()


def test_plan_is_checked_from_python_too(table: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="different whole numbers"):
        reproduce.reproduce(find_table(str(table)), Plan(tmp_path / "out", seeds=()))
