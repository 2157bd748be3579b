"""Which cell of a paper's table a run is, and how `promptfed compare --paper` shows it."""

import csv
import io
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.papers.matching import compared_measure, match_runs
from promptfed.papers.reproduce import find_table
from promptfed.results.report import PaperPlace, read_run, run_folders
from promptfed.runs import config
from support.command import promptfed
from support.small_tables import run, small_table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small table; its runs are in the folder `out` beside it, more of FedAvg's in `more`."""
    folder = tmp_path_factory.mktemp("printed")
    path = small_table(folder)
    assert run(path, folder / "out").code == 0
    cell = (folder / "out" / "iid" / "fedavg" / "seed0" / "recipe.toml").as_posix()
    for name, words in {"seed1": ["seed=1"], "fast": ["method.lr=0.3"], "dir3": ["partition.name=dirichlet"]}.items():
        assert promptfed("run", cell, *words, "--out", folder / "more" / name).code == 0
    return path


def places(table: Path, *folders: str) -> dict[str, PaperPlace]:
    """Return where the runs of these folders stand, by the end of their path."""
    found = run_folders([table.parent / name for name in folders])
    paper, _ = match_runs(find_table(str(table)), [read_run(path) for path in found])
    return {path.relative_to(table.parent).as_posix(): place for path, place in paper.places.items()}


def test_a_run_is_the_cell_of_its_recipe(table: Path) -> None:
    assert places(table, "out") == {
        "out/iid/fedavg/seed0": PaperPlace("FedAvg", "IID", 60.0),
        "out/iid/local/seed0": PaperPlace("Local", "IID", None),
        "out/dirichlet/fedavg/seed0": PaperPlace("FedAvg", "Dir(1)", 55.5),
        "out/dirichlet/local/seed0": PaperPlace("Local", "Dir(1)", None),
    }


def test_another_seed_and_another_rate_are_the_same_cell_and_another_partition_is_none(table: Path) -> None:
    assert places(table, "more") == {
        "more/seed1": PaperPlace("FedAvg", "IID", 60.0),
        "more/fast": PaperPlace("FedAvg", "IID", 60.0),
    }


def test_what_was_run_otherwise_is_told(table: Path) -> None:
    found = [read_run(table.parent / path) for path in ("out/iid/fedavg/seed0", "more/fast")]
    _, told = match_runs(find_table(str(table)), found)
    assert told == ["`rounds`: 4 → 2.", "`method.lr`: 0.05 → 0.3."]


def test_compare_prints_the_papers_figures(table: Path) -> None:
    done = promptfed("compare", table.parent / "out", "--paper", table)
    assert (done.code, done.err) == (0, "")
    head, _, *rows = (line for line in done.out.splitlines() if line.startswith("|"))
    assert head == "| method | IID | Dir(1) |"
    assert [row.split(" | ")[0] for row in rows] == ["| FedAvg", "| Local"]
    assert "(60.00)" in rows[0]
    assert "(55.50)" in rows[0]
    assert "(" not in rows[1]
    assert "Deviations from the paper:\n\n- `rounds`: 4 → 2.\n" in done.out


def test_in_every_format_and_by_any_measure(table: Path) -> None:
    words = ["compare", table.parent / "out", table.parent / "more", "--paper", table]
    done = promptfed(*words, "--format", "csv", "--measure", "worst")
    rows = list(csv.reader(io.StringIO(done.out)))[1:]
    names = ["FedAvg [fedavg (lr=0.05)]", "FedAvg [fedavg (lr=0.3)]", "Local", "fedavg (lr=0.05)"]
    assert [row[0] for row in rows if row] == names
    latex = promptfed(*words, "--format", "latex")
    assert r"\begin{tabular}" in latex.out
    assert "Otherwise" not in latex.out
    across = promptfed("compare", table.parent / "out", "--measure", "weighted")
    assert "| method | dirichlet | iid |" in across.out


def test_runs_that_are_in_no_cell_are_refused(table: Path) -> None:
    done = promptfed("compare", table.parent / "out", "--paper", "pfedpt/t7-hard")
    assert (done.code, done.out) == (2, "")
    assert "None of these runs matches a cell of pfedpt/t7-hard; its methods: FedAvg, FedAvg*" in done.err
    done = promptfed("compare", table.parent / "out", "--paper", "pfedpt/t7-hart")
    assert (done.code, done.out) == (2, "")
    assert 'Unknown table "pfedpt/t7-hart"; did you mean "pfedpt/t7-hard"?' in done.err


def test_the_shipped_table_that_has_the_runs_is_named(table: Path) -> None:
    (recipe,) = config.load("pfedpt/t7-hard/c10-dir/fedavg")
    one = replace(read_run(table.parent / "more" / "seed1"), recipe=asdict(recipe))
    with pytest.raises(PromptFedError, match='matches a cell of pfedpg/t1-office; did you mean "pfedpt/t7-hard"'):
        match_runs(find_table("pfedpg/t1-office"), [one])
    strange = replace(one, recipe={"method": {"name": "somebody.elses:Method"}})
    paper, _ = match_runs(find_table("pfedpt/t7-hard"), [one, replace(strange, path=Path("elsewhere"))])
    assert paper.places == {one.path: PaperPlace("FedAvg", "CIFAR-10, Dir(0.1)", 53.28)}


def test_figures_of_what_compare_has_not_are_refused() -> None:
    assert compared_measure(find_table("pfedpt/t7-hard")) == "best-round"
    assert compared_measure(find_table("pfedpg/t1-office")) == "mean"
    assert compared_measure(find_table("fedapt/t2-30clients")) == "domains"
    with pytest.raises(PromptFedError, match=r"cannot show the measure fid of .*; use promptfed reproduce .* instead"):
        compared_measure(find_table("relic/fig2-face"))
