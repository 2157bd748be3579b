"""Ours beside the paper's in exact small numbers."""

from pathlib import Path
from typing import Any

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.papers.comparison import (
    agreement,
    difference,
    headline,
    order_correlation,
    paper_measure,
    paper_result,
    pool,
    with_quality,
)
from promptfed.runs.rows import PrintedFigure
from support.comparisons import cell, entry, measured, rounds_of, summary


def test_two_seeds_become_mean_and_spread() -> None:
    ours = pool({1: summary(0.9, 1.0, after=0.925), 0: summary(0.8, 0.9, after=0.875, recipe="q")}, {}, 2)
    assert ours["mean"] == 90.0
    assert ours["std"] == pytest.approx(7.0711)  # 10 / √2
    assert ours["per_client"] == [85.0, 95.0]
    assert (ours["before"], ours["after"]) == (25.0, 90.0)
    assert ours["by_seed"] == {"0": 85.0, "1": 95.0}
    assert ours["recipe_hashes"] == {"0": "q", "1": "r"}
    # 96 bytes in 2 rounds to 2 clients
    assert ours["traffic"] == {"down_floats": 6, "up_floats": 4, "down_bytes": 24.0, "up_bytes": 16.0}


def test_one_seed_has_no_spread_and_no_run_no_numbers() -> None:
    one, none = pool({3: summary(0.5, None)}, {}, 2), pool({}, {0: "Broken."}, 2)
    assert (one["mean"], one["std"], one["per_client"], one["after"]) == (50.0, None, [50.0, None], None)
    assert (none["mean"], none["std"], none["per_client"], none["traffic"]) == (None, None, [], None)
    assert none["problems"] == {"0": "Broken."}


def test_clients_of_other_partitions_are_not_averaged() -> None:
    assert pool({0: summary(0.5), 1: summary(0.7, partition="q")}, {}, 1)["per_client"] == []


def test_clients_without_test_images_have_no_mean() -> None:
    assert pool({0: summary(None, None)}, {}, 2)["mean"] is None


def test_the_papers_mean_is_over_the_clients_we_have() -> None:
    figure = PrintedFigure(60.0, (50.0, 60.0, 70.5))
    assert paper_result(cell(figure), 3) == {"mean": 60.0, "per_client": [50.0, 60.0, 70.5], "traffic": 12.0}
    assert paper_result(cell(figure), 2) == {"mean": 55.0, "per_client": [50.0, 60.0], "traffic": 12.0}
    assert paper_result(cell(PrintedFigure(60.0)), 2) == {"mean": 60.0, "per_client": [], "traffic": 12.0}
    assert paper_result(cell(None), 2) is None


# -- agreement with the paper -----------------------------------------------------------------------------------------


def test_what_stands_beside_the_mean() -> None:
    runs = {seed: summary(0.5) for seed in (0, 1)}
    for seed, run in runs.items():
        run["accuracy"] |= {"worst": 0.2 + 0.2 * seed, "hm": 0.6, "sets": {"novel": {"mean": 0.4, "worst": 0.1}}}
    ours = pool(runs, {}, 1, "mean", ("worst", "novel", "hm", "base"))
    assert ours["beside"] == {"worst": 30.0, "novel": 40.0, "hm": 60.0, "base": None}
    assert "beside" not in pool(runs, {}, 1)


def test_ours_minus_the_papers_by_either_measure() -> None:
    both, lost = entry("a", 50.0, 53.5, weighted=61.25), entry("b", None, None)
    assert (both["difference"], difference(both["ours"], both["paper"], "weighted")) == (-3.5, 7.75)
    assert (lost["difference"], difference(lost["ours"], lost["paper"], "weighted")) == (None, None)


def test_the_papers_figures_count_images_where_a_table_does() -> None:
    assert paper_measure(["mean", "weighted"]) == "weighted"
    assert [paper_measure([name]) for name in ("mean", "deployed", "fid")] == ["mean", "deployed", "fid"]


def test_the_best_round_is_averaged_over_all_seeds_or_not_at_all() -> None:
    assert pool({0: rounds_of(0.7), 1: rounds_of(0.8)}, {}, 2).get("best_weighted") == 75.0
    for runs in ({0: rounds_of(0.7), 1: rounds_of(None)}, {0: rounds_of(None)}, {}):
        ours = pool(runs, {}, 2)
        assert "best_weighted" in ours
        assert ours["best_weighted"] is None


def test_the_order_of_methods_in_four_digits() -> None:
    # equal values share a rank: (−1, 0, 1) against (−1/2, −1/2, 1) is 3/2 over √2 · √(3/2)
    assert order_correlation([1.0, 2.0, 3.0], [5.0, 5.0, 6.0]) == 0.866
    assert order_correlation([1.0, None, 2.0, 3.0], [10.0, 0.0, 20.0, 30.0]) == 1.0
    assert order_correlation([3.0, 2.0, 1.0], [10.0, 20.0, 30.0]) == -1.0


def test_too_little_to_rank() -> None:
    assert order_correlation([1.0, 2.0], [1.0, 2.0]) is None
    assert order_correlation([1.0, 2.0, None], [1.0, 2.0, 3.0]) is None
    assert order_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None


def test_agreement_and_what_is_far() -> None:
    rows = [
        entry("a", 50.0, 53.0, weighted=60.0),  # exactly three points are not more than three
        entry("b", 60.0, 56.9, weighted=54.0),
        entry("c", 70.0, 70.0, weighted=70.0),
        entry("ours", 80.0, None),
        entry("lost", None, 90.0, weighted=None),
        entry("a", 50.0, 50.0, column="right", weighted=50.0),
    ]
    left, right = agreement(rows, ["mean"])
    assert left == {"column": "left", "methods": 3, "rank_correlation": {"mean": 1.0}, "far": ["b"], "by": "mean"}
    assert right == {"column": "right", "methods": 1, "rank_correlation": {"mean": None}, "far": [], "by": "mean"}
    left, right = agreement(rows, ["mean", "weighted"])
    # by weighted the first two change places: ranks 1 0 2 against 0 1 2, 1 − 6 · 2 / (3 · 8)
    expected = {"weighted": 0.5, "mean": 1.0}
    assert left == {"column": "left", "methods": 3, "rank_correlation": expected, "far": ["a"], "by": "weighted"}
    assert list(left["rank_correlation"]) == ["weighted", "mean"]  # the paper's own comes first
    assert (right["methods"], right["far"], right.get("by")) == (1, [], "weighted")


def test_what_the_paper_prints_decides_what_is_far() -> None:
    rows = [entry("far", 62.0, 62.5, weighted=50.0), entry("near", 61.16, 70.76, weighted=70.39)]
    assert [one["far"] for one in agreement(rows, ["mean", "weighted"])] == [["far"]]
    assert [one["far"] for one in agreement(rows, ["mean"])] == [["near"]]


# -- other headlines --------------------------------------------------------------------------------------------------


def domains(left: float, right: float, partition: str = "p") -> Any:
    """Return a summary whose server's model scores so on two domains, and one client's trained model 0.75."""
    made = summary(0.5, partition=partition)
    made["accuracy"] |= {"deployed": {"all": 0.99, "left": left, "right": right}}
    made["accuracy"] |= {"trained": {"mean": 0.75, "per_client": [0.75]}}
    return made


def test_the_servers_own_model_is_averaged_over_domains() -> None:
    assert headline(domains(0.5, 0.75), "deployed") == {"mean": 0.625, "per_client": [0.5, 0.75]}
    ours = pool({0: domains(0.5, 0.75), 1: domains(0.25, 0.75, partition="q")}, {}, 1, "deployed")
    assert ours["mean"] == 56.25
    assert ours["per_client"] == [37.5, 75.0]  # a domain is the same whatever the partition
    assert ours["by_seed"] == {"0": 62.5, "1": 50.0}


def test_without_domains_or_without_a_model() -> None:
    assert headline({"accuracy": {"deployed": {"all": 0.5}}}, "deployed") == {"mean": 0.5, "per_client": [0.5]}
    assert headline({"accuracy": {"deployed": None}}, "deployed") == {"mean": None, "per_client": []}
    assert headline({"accuracy": {}}, "trained") == {"mean": None, "per_client": []}


def test_models_before_the_last_aggregation() -> None:
    assert pool({0: domains(0.5, 0.75)}, {}, 1, "trained")["per_client"] == [75.0]


# -- distances --------------------------------------------------------------------------------------------------------


def test_a_fid_is_no_percent(tmp_path: Path) -> None:
    ours = pool({0: measured(tmp_path, 12.5), 1: measured(tmp_path, 13.5)}, {}, 2, "fid")
    assert (ours["mean"], ours["by_seed"], ours["per_client"]) == (13.0, {"0": 12.5, "1": 13.5}, [])
    assert ours["std"] == pytest.approx(0.7071)  # 1 / √2
    assert ours["measured"] == "clip embedded, 50 pictures, 40 images"
    assert "measured" not in pool({0: summary(0.5)}, {}, 2)


def test_a_run_that_nobody_measured_has_no_fid(tmp_path: Path) -> None:
    assert with_quality(summary(0.5), tmp_path) == summary(0.5)
    for run in (summary(0.5), measured(tmp_path, 12.5, after_round=1)):  # it was trained further since
        ours = pool({0: run}, {}, 2, "fid")
        assert (ours["mean"], ours["measured"]) == (None, "")


def test_measures_that_cannot_be_read(tmp_path: Path) -> None:
    for damaged in ("{", "[]", "{}"):
        (tmp_path / "quality.json").write_text(damaged)
        with pytest.raises(PromptFedError, match=r"quality\.json is damaged; run promptfed quality .* again\."):
            with_quality(summary(0.5), tmp_path)


# -- measures of the field's tables ---------------------------------------------------------------------------------


def test_the_server_on_seen_and_unseen_domains_and_elsewhere_and_newcomers() -> None:
    made = summary(0.5)
    made["accuracy"] |= {"deployed": {"all": 0.6, "a": 0.8, "b": 0.6, "c": 0.1}, "newcomers": 0.25}
    made["accuracy"]["elsewhere"] = {"one": 0.2, "two": 0.4}
    found = {name: headline(made, name)["mean"] for name in ("deployed", "seen", "unseen", "elsewhere", "newcomers")}
    assert found == pytest.approx({"deployed": 0.5, "seen": 0.7, "unseen": 0.1, "elsewhere": 0.3, "newcomers": 0.25})
    assert headline(made, "unseen")["per_client"] == [0.8, 0.6, 0.1]
    assert headline(made, "elsewhere")["per_client"] == [0.2, 0.4]
    assert headline(summary(0.5), "unseen") == {"mean": None, "per_client": []}


def test_what_a_run_cost() -> None:
    made = summary(0.5, 0.7) | {"seconds": 12.5, "rounds95": 2, "peak_memory_bytes": 3 * 10**9}
    made["accuracy"]["worst"] = 0.5
    made["traffic"] |= {"down_bytes": 1_500_000, "up_bytes": 500_000}
    names = ("worst", "sent", "seconds", "memory", "rounds95", "epsilon")
    found = pool({0: made, 1: made | {"rounds95": 4}}, {}, 1, beside=names)["beside"]
    assert found == {"worst": 50.0, "sent": 2.0, "seconds": 12.5, "memory": 3.0, "rounds95": 3, "epsilon": None}
    private = made | {"privacy": {"epsilon": [0.5, 2.0]}}
    assert pool({0: private}, {}, 1, beside=("epsilon",))["beside"] == {"epsilon": 2.0}
    assert pool({0: summary(0.5) | {"seconds": 1.0}}, {}, 1, beside=("memory",))["beside"] == {"memory": None}
