"""The report's first line: whether to federate, from fake runs whose gains are known by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from promptfed.results import read_run
from promptfed.results.report.groups import group_runs
from promptfed.results.report.page import render
from promptfed.results.report.tables import compare, headline
from promptfed.results.report.verdict import Verdict, role, verdicts
from support.reports import MakeRun

Maker = Callable[..., Path]


@pytest.fixture
def make(make_run: MakeRun) -> Maker:
    """Return `make(name, accuracies, **changes)`, which writes a run whose four clients end with these accuracies."""

    def made(name: str, accuracies: tuple[float, ...], **changes: Any) -> Path:
        folder = make_run(name, **changes)
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        mean = sum(accuracies) / len(accuracies)
        summary["accuracy"] |= {"mean": mean, "worst": min(accuracies), "per_client": list(accuracies)}
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        return folder

    return made


def told(*folders: Path) -> list[Verdict]:
    return verdicts(group_runs([read_run(folder) for folder in folders]))


def test_yes_in_words_with_numbers(make: Maker) -> None:
    alone = make("a", (0.5, 0.6, 0.7, 0.8), method="local", floats=0)
    whole = make("b", (0.6, 0.6, 0.6, 0.6), method="fedavg", floats=100_000)
    prompts = make("c", (0.7, 0.7, 0.8, 0.75), method="pfedvpt", floats=100)
    (found,) = told(alone, whole, prompts)
    assert found.answer == "Yes"
    assert "3 of 4 clients do better together (pfedvpt) than alone (local), 1 does worse." in found.reasons
    assert "The mean rises from 65.00 to 73.75 %, the worst client rises from 50.00 to 70.00 %." in found.reasons
    assert "Each client sent 400 B a round, fedavg 400 kB (1,000 times as much)." in found.reasons


def test_a_mean_that_rises_at_somebodys_cost_is_no_plain_yes(make: Maker) -> None:
    alone = make("a", (0.5, 0.5, 0.5, 0.5), method="local", floats=0)
    prompts = make("b", (0.9, 0.9, 0.9, 0.4), method="pfedvpt", floats=100)
    (found,) = told(alone, prompts)
    assert found.answer == "In the mean, but not for every client"
    assert "the worst client falls from 50.00 to 40.00 %" in found.reasons


def test_no_is_said_as_well(make: Maker) -> None:
    alone = make("a", (0.5, 0.6, 0.7, 0.8), method="local", floats=0)
    whole = make("b", (0.5, 0.5, 0.5, 0.5), method="fedavg", floats=100)
    (found,) = told(alone, whole)
    assert found.answer == "No"
    assert "0 of 4 clients do better together (fedavg) than alone (local), 3 do worse." in found.reasons
    assert "The mean falls from 65.00 to 50.00 %, the worst client stays at 50.00 %." in found.reasons


@pytest.mark.parametrize(("gain", "chance"), [(0.06, False), (0.05, True), (-0.05, True), (-0.07, False)])
def test_what_may_be_chance_is_called_so(make: Maker, gain: float, chance: bool) -> None:
    # 400 test images: two standard errors at 0.8 and 0.86 are 0.053, at 0.8 and 0.85 0.054, at 0.8 and 0.73 0.060
    alone = make("a", (0.8,) * 4, method="local", floats=0)
    prompts = make("b", (0.8 + gain,) * 4, method="pfedvpt", floats=100)
    for folder in (alone, prompts):
        path = folder / "partition.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        content["clients"] = [one | {"test": list(range(100))} for one in content["clients"][:4]]
        path.write_text(json.dumps(content), encoding="utf-8")
    (found,) = told(alone, prompts)
    assert ("With 400 test images in all, a difference this small may be chance" in found.reasons) == chance


@pytest.mark.parametrize("floats", [0, 100])
def test_without_both_sides_there_is_no_question(make_run: MakeRun, floats: int) -> None:
    assert told(make_run("a", method="local", floats=floats)) == []


def test_it_is_the_first_thing_on_the_page_and_baselines_are_named(make: Maker) -> None:
    folders = [
        make("a", (0.5, 0.6, 0.7, 0.8), method="local", floats=0),
        make("b", (0.6, 0.6, 0.6, 0.6), method="fedavg", floats=900),
        make("c", (0.7, 0.7, 0.8, 0.8), method="pfedvpt", floats=100),
    ]
    runs = [read_run(folder) for folder in folders]
    page = render(runs)
    assert page.index("Should these sites federate? <strong>Yes.</strong>") < page.index('class="facts"')
    assert "baseline, everyone alone" in page
    assert "baseline, one model for all" in page
    assert [role(group) for group in group_runs(runs)][2] == ""
    assert [row[1].text for row in headline(runs).rows] == [
        "baseline, everyone alone",
        "baseline, one model for all",
        "",
    ]


def test_who_sends_nothing_is_not_the_cheapest(make_run: MakeRun) -> None:
    runs = [read_run(make_run("a", method="local", floats=0)), read_run(make_run("b", method="pfedvpt", floats=100))]
    runs.append(read_run(make_run("c", method="fedavg", floats=900)))
    table = compare(runs)
    down = [column.title for column in table.columns].index("down")
    assert [row[down].best for row in table.rows] == [False, True, False]
    assert "lowest of all: pfedvpt" in render(runs)
