"""Whole tables: which cells, in which order, with which settings, and ours beside theirs."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptfed.papers import jobs, reproduce
from promptfed.papers.deviations import deviations
from promptfed.papers.jobs import Job, JobResult
from promptfed.papers.plan import TablePlan, cell_recipe
from promptfed.papers.rendering import read_table, to_markdown
from promptfed.papers.reproduce import find_table
from promptfed.runs import config
from support.command import promptfed
from support.small_tables import counted_runs, folders, given_table, run  # noqa: F401  fixtures
from support.tiny_runs import write_images


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
    assert (order["methods"], list(order["rank_correlation"])) == (13, ["best-round", "mean", "weighted"])
    for name, ours in rows.items():  # a single round is the best one; what a method does to it afterwards is not in it
        best = json.loads((Path("out/dir-cnn") / name / "seed0/summary.json").read_text())["accuracy"]["before"]
        assert ours.get("best_weighted") == pytest.approx(100 * best["weighted"], abs=1e-4)
        assert ours.get("best_local") is None  # before the first round nobody was tested
        assert ours.get("adapted") or not name.endswith("-tuned")
    assert "| best round |" in to_markdown(found)


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


def test_the_best_of_a_grid_is_judged_by_what_the_paper_prints(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.write_text('measures = ["mean", "weighted"]\n' + table.read_text(encoding="utf-8"), encoding="utf-8")
    run_job = jobs.run_job

    def counting_images(job: Job) -> JobResult:
        summary = dict(run_job(job).summary or {})
        return JobResult(summary | {"accuracy": summary["accuracy"] | {"mean": 0.5, "weighted": 0.75}})

    monkeypatch.setattr(jobs, "run_job", counting_images)
    assert run(table, tmp_path / "out", "--tune", "--only", "fedavg", "--columns", "dirichlet").code == 0
    (row,) = read_table(tmp_path / "out")["rows"]
    assert row["tuned"] is not None
    assert (row["difference"], row["tuned"]["difference"]) == (-5.5, 19.5)  # 50 and 75 of the paper's 55.5


def scored(mean: float) -> JobResult:
    return JobResult({"accuracy": {"mean": mean}})


def test_of_equal_points_the_smaller_rate_wins() -> None:
    rates = (0.01, 0.05, 0.25, 0.5)
    grid: list[tuple[dict[str, Any], Job]] = [({"lr": rate}, Job("", None, Path(str(rate)))) for rate in rates]  # type: ignore[arg-type]
    done = {Path("0.01"): scored(0.5), Path("0.05"): scored(0.7), Path("0.25"): scored(0.7)}
    assert reproduce._best(grid, {**done, Path("0.5"): JobResult(problem="diverged")}, "mean") == {"lr": 0.05}
    assert reproduce._best(grid[3:], {Path("0.5"): scored(float("nan"))}, "mean") is None


def test_deviations_name_key_and_cells(table: Path) -> None:
    small = find_table(str(table))
    cells = small.cells()

    def told(*words: str) -> list[str]:
        return deviations(small, {name: cell_recipe(cell, words) for name, cell in cells.items()})

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


def test_a_deviation_of_some_cells_names_them_where_the_paper_has_no_figures(tmp_path: Path) -> None:
    figure, images = find_table("pfedpt/fig8-prompt-type"), tmp_path / "some.npz"
    cells = {name: cell for name, cell in figure.cells().items() if name in ("p2/frame", "p4/frame")}
    words = (f"data.name=npz:{images}", "method.size=4")
    told = deviations(figure, {name: cell_recipe(cell, words) for name, cell in cells.items()})
    assert "`method.size`: 2 → 4 (p2/frame)." in told
    assert "`data.name`: cifar10 → npz:some.npz." in told  # which is about both


def test_an_unknown_key_is_told_with_its_cell_and_method(table: Path, tmp_path: Path, counted: list[str]) -> None:
    table.write_text(
        table.read_text(encoding="utf-8") + '[[rows]]\nname = "rep"\nrecipe.method = { name = "fedrep" }\n',
        encoding="utf-8",
    )
    done = run(table, tmp_path / "out", "method.tune_epochs=1", "--columns", "iid", "--only", "fedavg,rep")
    sentence = 'Unknown key "method.tune_epochs" in cell rep of iid (method fedrep); did you mean "method.'
    assert (done.code, sentence in done.err, counted) == (2, True, [])  # FedAvg knows it
    done = run(table, tmp_path / "out", "roundz=1", "--columns", "iid", "--only", "rep")
    assert 'Unknown key "roundz" in cell rep of iid (method fedrep); did you mean "rounds"?' in done.err
    done = run(table, tmp_path / "out", "method.name=local", "method.mu=1", "--columns", "iid", "--only", "rep")
    assert 'Unknown key "method.mu" in cell rep of iid (method local);' in done.err


def test_every_row_of_pfedpts_table_1_may_drop_incomplete_batches() -> None:
    for cell in find_table("pfedpt/t1-cifar10").cells().values():
        assert cell_recipe(cell, ["method.drop_last=true"]).method["drop_last"] is True


# -- whatever is finished can be read ---------------------------------------------------------------------------------


def test_the_table_is_written_after_every_run(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, run_job, seen = tmp_path / "out", jobs.run_job, list[Any]()

    def looking(job: Job) -> JobResult:
        if (out / "table.json").exists():
            found = read_table(out)
            assert (out / "table.md").read_text(encoding="utf-8") == to_markdown(found)
            rows = {row["row"]: sorted(row["ours"]["by_seed"]) for row in found["rows"]}
            seen.append((rows, found.get("unfinished")))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return run_job(job)

    monkeypatch.setattr(jobs, "run_job", looking)
    words = ("--columns", "iid", "--seeds", "0,1")
    assert run(table, out, *words).code == 130
    expected = [
        ({"fedavg": ["0"], "local": []}, 3),
        ({"fedavg": ["0", "1"], "local": []}, 2),
        ({"fedavg": ["0", "1"], "local": ["0"]}, 1),
    ]
    assert seen == expected
    stopped = read_table(out)
    assert "## Unfinished\n\n- 1 run is not finished;" in to_markdown(stopped)
    monkeypatch.setattr(jobs, "run_job", run_job)
    assert run(table, out, *words).code == 0
    assert "unfinished" not in read_table(out)
    assert not list(out.glob(".*"))  # no part of a file is left


def test_what_was_finished_before_is_there_at_once(table: Path, tmp_path: Path, counted: list[str]) -> None:
    out, kept = tmp_path / "out", list[list[str]]()
    assert run(table, out, "--columns", "iid", "--only", "local").code == 0
    (out / "table.json").unlink()

    def failing(job: Job) -> JobResult:
        kept.append([row["row"] for row in read_table(out)["rows"] if row["ours"]["mean"] is not None])
        return JobResult(problem="No disk.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "run_job", failing)
        assert run(table, out, "--columns", "iid").code == 1
    assert kept == [["local"]]
    found = read_table(out)
    assert "unfinished" not in found  # what failed has ended
    assert "FedAvg, seed 0: No disk." in to_markdown(found)


def test_a_grid_has_no_best_before_it_is_through(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, run_job, seen = tmp_path / "out", jobs.run_job, list[Any]()

    def looking(job: Job) -> JobResult:
        if (out / "table.json").exists():
            (row,) = read_table(out)["rows"]
            assert row["tuned"] is not None
            tried = [one["validation"] is not None for one in row["tuned"]["grid"]]
            seen.append((job.label.split(", ")[-1], tried, bool(row["tuned"]["setting"])))
        return run_job(job)

    monkeypatch.setattr(jobs, "run_job", looking)
    words = ("--tune", "--columns", "iid", "--only", "fedavg")
    assert run(table, out, *words).code == 0
    assert seen == [
        ("method.lr=0.001", [False, False], False),
        ("method.lr=0.1", [True, False], False),
        ("seed 0", [True, True], True),
    ]
    (row,) = read_table(out)["rows"]
    assert row["tuned"] is not None
    before = row["tuned"]["ours"]
    assert before["mean"] is not None
    seen.clear()

    def last(job: Job) -> JobResult:  # the best of the grid, run long ago, is still shown while other rows are run
        tuned = next(row["tuned"] for row in read_table(out)["rows"] if row["row"] == "fedavg")
        assert tuned is not None
        seen.append(tuned["ours"] == before)
        return JobResult(problem="No disk.")

    monkeypatch.setattr(jobs, "run_job", last)
    assert run(table, out, "--tune", "--columns", "iid").code == 1
    assert seen == [True] * 3


def test_a_table_that_cannot_be_written_costs_no_run(
    table: Path, tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*words: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reproduce, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        reproduce.reproduce(find_table(str(table)), TablePlan(tmp_path / "out", columns=("iid",)))
    assert len(counted) == 2


def test_a_damaged_file_of_timings_is_reported_before_anything_runs(
    table: Path, tmp_path: Path, counted: list[str]
) -> None:
    (tmp_path / "sittings.jsonl").write_text("{")
    done = run(table, tmp_path)
    assert (done.code, "is damaged; remove it" in done.err, counted) == (2, True, [])


def test_one_columns_grid_decides_for_all(table: Path, tmp_path: Path, counted: list[str]) -> None:
    table.write_text('tune_on = "iid"\n' + table.read_text(encoding="utf-8"), encoding="utf-8")
    out = tmp_path / "out"
    assert run(table, out, "--tune", "--only", "fedavg").code == 0
    assert sorted(one.name for one in (out / "tune").iterdir()) == ["iid"]
    first, second = (entry["tuned"] for entry in read_table(out)["rows"])
    assert first is not None
    assert second is not None
    assert (first["setting"], first["grid"]) == (second["setting"], second["grid"])
    assert first["ours"]["mean"] != second["ours"]["mean"]
    rate = first["setting"]["method.lr"]  # 0.05 is the table's own; the grid has 0.1 and 0.001
    assert {path.parts[-4] for path in out.glob("tuned/*/*/*/seed0")} == {"dirichlet", "iid"}
    assert sorted(counted) == sorted(
        [f"{one}/fedavg, seed 0" for one in ("iid", "dirichlet")]
        + [f"iid/fedavg, method.lr={tried}" for tried in (0.1, 0.001)]
        + [f"{one}/fedavg method.lr={rate}, seed 0" for one in ("iid", "dirichlet")]
    )


def test_one_row_alone_is_changed(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(table, out, "--columns", "iid", "local:method.lr=0.2").code == 0
    assert "`method.lr`: 0.1 → 0.2 (iid/local)." in read_table(out)["deviations"]
    wrong = run(table, out, "locl:method.lr=0.2")
    assert (wrong.code, 'did you mean "local"?' in wrong.err) == (2, True)
