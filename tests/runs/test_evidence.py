"""Every number that advice rests on is in a committed table, under the name that it has there."""

from pathlib import Path
from typing import Any

import pytest

from promptfed.papers.rendering import read_table
from promptfed.runs.evidence import EVIDENCE, SENT

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def row(name: str) -> dict[str, Any]:
    one = EVIDENCE[name]
    rows = read_table(RESULTS / one.table)["rows"]
    (entry,) = (entry for entry in rows if (entry["column"], entry["row"]) == (one.column, one.row))
    ours = entry["tuned"]["ours"] if one.tuned and entry["tuned"] else entry["ours"]
    assert bool(entry["tuned"]) >= one.tuned
    return dict(ours)


@pytest.mark.parametrize("name", EVIDENCE)
def test_it_is_in_its_table(name: str) -> None:
    ours, measure = row(name), EVIDENCE[name].measure
    mean = ours["mean"] if measure == "mean" else ours["beside"][measure]
    assert isinstance(mean, float)
    assert f"{mean:.2f}" == f"{EVIDENCE[name].percent:.2f}"


@pytest.mark.parametrize("name", EVIDENCE)
def test_its_page_prints_it(name: str) -> None:
    one = EVIDENCE[name]
    assert f"{one.percent:.2f}" in (RESULTS / one.page).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SENT)
def test_what_was_sent(name: str) -> None:
    traffic = row(name)["traffic"]
    assert isinstance(traffic, dict)
    assert traffic["down_floats"] == traffic["up_floats"] == SENT[name]
