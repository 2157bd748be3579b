"""Methods down, settings across: which run stands where, with exact small values."""

import csv
import io
import json

import pytest

from promptfed.cli.analysis import Accuracy
from promptfed.core.errors import PromptFedError
from promptfed.results.report import PaperLayout, PaperPlace, RunFolder, across, read_run
from promptfed.results.report.table import Table
from promptfed.results.report.tables import ACCURACIES
from support.reports import MakeRun


@pytest.fixture
def runs(make_run: MakeRun) -> list[RunFolder]:
    """FedAvg with two seeds and Local on one partition, FedAvg alone on another."""
    made = [make_run(f"a{seed}", method="fedavg", seed=seed, level=0.6 + 0.02 * seed) for seed in (0, 1)]
    made += [make_run("b", method="local", level=0.7), make_run("c", method="fedavg", level=0.5, alpha=0.1)]
    return [read_run(path) for path in made]


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_methods_are_down_and_settings_across(runs: list[RunFolder]) -> None:
    table = across(runs)
    assert [column.title for column in table.columns] == ["method", "dirichlet (alpha=0.3)", "dirichlet (alpha=0.1)"]
    assert texts(table) == [["fedavg", "60.50 ± 1.41", "49.50"], ["local", "69.50", "–"]]
    assert [[cell.best for cell in row] for row in table.rows] == [[False, False, False], [False, True, False]]
    assert table.legend.startswith("mean: accuracy in percent, each client on its own test images")
    assert "of several seeds ± sample std" in table.legend


@pytest.mark.parametrize(
    ("measure", "text"),
    [("weighted", "69.60"), ("worst", "66.00"), ("after", "72.50"), ("deployed", "60.00"), ("domains", "60.00")],
)
def test_any_accuracy_may_stand_in_the_cells(runs: list[RunFolder], measure: str, text: str) -> None:
    table = across(runs, measure)
    assert texts(table)[1][1] == text
    assert table.legend.startswith(f"{measure}: accuracy ")


def test_the_best_round_is_the_last_one_of_a_method_that_adapts(make_run: MakeRun) -> None:
    found = {}
    for name, adapted in (("plain", None), ("adapted", 0.8)):
        folder = make_run(name, level=0.7, adapted=adapted)
        path = folder / "summary.json"
        summary = json.loads(path.read_text(encoding="utf-8"))
        old = read_run(folder)
        summary["accuracy"] |= {"best_weighted": 0.75, "best_local": 0.77}
        path.write_text(json.dumps(summary), encoding="utf-8")
        run = read_run(folder)
        found[name] = [texts(across([one], key))[0][1] for key in ("best-round", "best-local") for one in (run, old)]
    # an older run has neither number, but where it adapts the last round is known
    weighted = texts(across([read_run(make_run("again", level=0.7, adapted=0.8))], "weighted"))[0][1]
    assert found == {"plain": ["75.00", "–", "77.00", "–"], "adapted": [weighted, weighted, "77.00", "–"]}


def test_domains_count_alike(make_run: MakeRun) -> None:
    folder = make_run("a", level=0.7)
    path = folder / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    summary["accuracy"]["deployed"] = {"all": 0.65, "studio": 0.7, "street": 0.3}
    path.write_text(json.dumps(summary), encoding="utf-8")
    table = across([read_run(folder)], "domains")
    assert texts(table) == [["pfedpt", "50.00"]]
    assert table.columns[1].title == "domains"


def test_the_command_offers_every_measure() -> None:
    assert {one.value for one in Accuracy} == set(ACCURACIES)
    with pytest.raises(PromptFedError, match='Unknown measure "wieghted"; did you mean "weighted"'):
        across([], "wieghted")


def test_the_papers_titles_order_and_figures(runs: list[RunFolder]) -> None:
    places = {
        runs[2].path: PaperPlace("Alone", "Dir(0.3)", 71.25),
        runs[3].path: PaperPlace("FedAvg", "Dir(0.1)", None),
    }
    places |= {run.path: PaperPlace("FedAvg", "Dir(0.3)", 61.0) for run in runs[:2]}
    paper = PaperLayout(("Nobody", "Alone", "FedAvg"), ("Dir(0.1)", "Dir(0.3)"), places)
    table = across(runs, paper=paper)
    assert [column.title for column in table.columns] == ["method", "Dir(0.1)", "Dir(0.3)"]
    assert texts(table) == [["Alone", "–", "69.50 (71.25)"], ["FedAvg", "49.50", "60.50 ± 1.41 (61.00)"]]
    sheet = list(csv.reader(io.StringIO(table.to_csv())))
    assert sheet[0][3:] == ["Dir(0.1)_paper", "Dir(0.3)", "Dir(0.3)_std", "Dir(0.3)_paper"]
    assert sheet[1:] == [
        ["Alone", "", "", "", "69.50", "", "71.25"],
        ["FedAvg", "49.50", "", "", "60.50", "1.41", "61.00"],
    ]
    assert table.legend.endswith("in brackets: what the paper printed. Bold: best of its column.")


def test_a_method_of_ones_own_stands_in_the_papers_column(runs: list[RunFolder]) -> None:
    places = {run.path: PaperPlace("FedAvg", "Dir(0.3)", 61.0) for run in runs[:2]}
    table = across(runs, paper=PaperLayout(("FedAvg",), ("Dir(0.3)",), places))
    assert [column.title for column in table.columns] == ["method", "Dir(0.3)", "dirichlet (alpha=0.1)"]
    assert texts(table) == [
        ["FedAvg", "60.50 ± 1.41 (61.00)", "–"],
        ["local", "69.50", "–"],
        ["fedavg", "–", "49.50"],
    ]


def test_two_kinds_of_runs_in_one_cell_are_told_apart(make_run: MakeRun) -> None:
    found = [read_run(make_run(name, lr=lr)) for name, lr in (("a", 0.1), ("b", 0.2))]
    places = {run.path: PaperPlace("pFedPT", "Dir(0.3)", 61.0) for run in found}
    table = across(found, paper=PaperLayout(("pFedPT",), ("Dir(0.3)",), places))
    assert [row[0].text for row in table.rows] == ["pFedPT [pfedpt (lr=0.1)]", "pFedPT [pfedpt (lr=0.2)]"]


def test_runs_that_only_their_folders_tell_apart(make_run: MakeRun) -> None:
    found = [read_run(make_run(name, clients=clients)) for name, clients in (("a", 4), ("b", 5))]
    places = {run.path: PaperPlace("pFedPT", "Dir(0.3)", 61.0) for run in found}
    table = across(found, paper=PaperLayout(("pFedPT",), ("Dir(0.3)",), places))
    assert [row[0].text for row in table.rows] == [f"pFedPT [pfedpt] [{run.path}]" for run in found]


def test_an_unfinished_run_says_so_and_is_never_best(make_run: MakeRun) -> None:
    first, second = (make_run(name, method=name, level=level) for name, level in (("fedavg", 0.5), ("local", 0.6)))
    late = make_run("late", method="pfedpt", level=0.9, done=4)
    (late / "summary.json").unlink(missing_ok=True)
    found = [read_run(path) for path in (first, second, late)]
    table = across(found, paper=PaperLayout(("pFedPT",), ("Dir(0.3)",), {late: PaperPlace("pFedPT", "Dir(0.3)", 80.0)}))
    assert [row[0].text for row in table.rows] == ["pFedPT (unfinished)", "fedavg", "local"]
    assert [row[0].text for row in table.rows if row[1].best] == ["local"]
