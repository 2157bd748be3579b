"""Runs of one's own among committed results: in which column, at which rank, and what was set otherwise."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.papers.benchmark import BenchmarkColumn, columns_of, rank_runs, read_benchmark, recipe_of
from promptfed.papers.rendering import read_table
from promptfed.results.report import RunFolder, read_run
from support.command import promptfed
from support.small_tables import run, small_table


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small table, its runs in `out`, and more runs in `mine`."""
    folder = tmp_path_factory.mktemp("benchmark")
    path = small_table(folder)
    assert run(path, folder / "out", "--seeds", "0,1").code == 0
    cell = (folder / "out" / "iid" / "fedavg" / "seed0" / "recipe.toml").as_posix()
    more = {
        "equal": ["method.name=fedprox", "method.lr=0.05", "method.epochs=1", "method.batch=8"],
        "longer": ["rounds=3", "method.epochs=2"],
        "skewed": ["partition.name=dirichlet", "partition.alpha=2.0", "seed=1"],
        "strange": ["partition.name=pathological", "partition.classes_per_client=2"],
    }
    for name, words in more.items():
        assert promptfed("run", cell, *words, "--out", folder / "mine" / name).code == 0
    return folder


@pytest.fixture(name="columns")
def given_columns(kept: Path) -> list[BenchmarkColumn]:
    """Return the table's columns, which are found by the path of its file."""
    made = columns_of(read_table(kept / "out"))
    return [column | {"table": str(kept / "small.table.toml")} for column in made]


def mine(kept: Path, *names: str) -> list[RunFolder]:
    return [read_run(kept / "mine" / name) for name in names]


def test_what_is_committed(columns: list[BenchmarkColumn]) -> None:
    assert [(one["column"], one["measure"], [row["row"] for row in one["rows"]]) for one in columns] == [
        ("iid", "mean", ["fedavg", "local"]),
        ("dirichlet", "mean", ["fedavg", "local"]),
    ]
    row = columns[0]["rows"][0]
    low, high = sorted(value or 0.0 for value in row["by_seed"].values())
    assert row["mean"] == pytest.approx((low + high) / 2, abs=1e-3)
    assert row["error"] == pytest.approx((high - low) / 2, abs=1e-3)
    assert row["floats"] is not None
    assert row["floats"] > 0


def test_a_result_leads_to_its_recipe_or_is_refused(columns: list[BenchmarkColumn]) -> None:
    row = columns[0]["rows"][0]
    assert recipe_of(columns[0], row, 1).hash == row["recipe_hashes"]["1"]
    other = columns[0]["rows"][1]
    row["recipe_hashes"] = other["recipe_hashes"]
    with pytest.raises(PromptFedError, match="is no longer the recipe that its committed results are of"):
        recipe_of(columns[0], row, 1)


def test_an_equal_run_is_ranked_and_an_unequal_one_in_brackets(kept: Path, columns: list[BenchmarkColumn]) -> None:
    columns[0]["rows"][0]["mean"], columns[0]["rows"][1]["mean"] = 100.0, -1.0
    ((title, table),), notes = rank_runs(columns, mine(kept, "equal", "longer"))
    assert title.endswith("small.table.toml, IID")
    shown = {row[1].text: (row[0].text, row[4].text) for row in table.rows}
    rank, whose = shown.pop("fedavg")
    assert (rank in ("(2)", "(2.5)", "(3)"), whose) == (True, "yours")  # among three, whatever it reached
    assert shown == {"FedAvg": ("1", "committed"), "fedprox": ("2", "yours"), "Local": ("3", "committed")}
    assert [note.partition(": ")[2] for note in notes] == [
        "seed 0, there it is 0, 1.",
        "`rounds` is 3, there it is 2.",
        "`method.epochs` is 2, there it is 1.",
        "seed 0, there it is 0, 1.",
    ]


def test_a_run_stands_where_it_differs_least_or_nowhere(kept: Path, columns: list[BenchmarkColumn]) -> None:
    ((title, _),), notes = rank_runs(columns, mine(kept, "skewed", "strange"))
    assert title.endswith("Dir(1)")
    told, lost = (note for note in notes if "seed" not in note)
    assert told.startswith("fedavg [skewed] in ")
    assert told.endswith("Dir(1): `partition.alpha` is 2.0, there it is 1.0.")
    assert lost.startswith("fedavg [strange] (")
    assert lost.endswith("is in no setting with results.")
    with pytest.raises(PromptFedError, match=r"^fedavg .* is in no setting with results\.$"):
        rank_runs(columns, mine(kept, "strange"))


def test_the_packages_own_results(kept: Path) -> None:
    assert {one["table"] for one in read_benchmark("field")} >= {"field/shops-novel"}
    wrong = promptfed("compare", kept / "mine" / "equal", "--benchmark", "feild")
    assert (wrong.code, wrong.err) == (2, 'promptfed: Unknown benchmark "feild"; did you mean "field"?\n')
    both = promptfed("compare", kept / "mine" / "equal", "--benchmark", "field", "--measure", "mean")
    assert (both.code, "leave out --measure and --paper" in both.err) == (2, True)
    nowhere = promptfed("compare", kept / "mine" / "equal", "--benchmark", "field")
    assert (nowhere.code, "is in no setting with results." in nowhere.err) == (2, True)


def test_the_command_prints_columns_and_differences(
    kept: Path, columns: list[BenchmarkColumn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptfed.papers.benchmark.read_benchmark", lambda name: columns)
    done = promptfed("compare", kept / "mine" / "longer", "--benchmark", "field")
    assert (done.code, done.err) == (0, "")
    assert "| rank | method | mean ± s.e. | seeds | whose |" in done.out
    assert "Differences from the committed results:\n\n- fedavg in " in done.out
    assert (
        "\n" + "rank,method,mean,error,seeds,whose"
        in "\n" + promptfed("compare", kept / "mine" / "longer", "--benchmark", "field", "--format", "csv").out
    )
