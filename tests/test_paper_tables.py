"""Ours beside the paper's, in exact small numbers, and as Markdown."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptfed.cells import Cell, Column, Figure, Row
from promptfed.errors import PromptFedError
from promptfed.tables import (
    Entry,
    Outcome,
    agreement,
    difference,
    failures,
    headline,
    paper_of,
    pool,
    rank_correlation,
    read_table,
    remarks,
    to_markdown,
    views,
    with_quality,
    write_table,
)


def summary(*clients: float | None, after: float | None = None, partition: str = "p", recipe: str = "r") -> Any:
    """Return the parts of a summary.json that a table reads; two rounds of two clients."""
    known = [client for client in clients if client is not None]
    mean = sum(known) / len(known) if known else float("nan")
    return {
        "rounds": 2,
        "recipe_hash": recipe,
        "partition_hash": partition,
        "accuracy": {
            "mean": mean,
            "per_client": list(clients),
            "before": {"mean": 0.25},
            "after": None if after is None else {"mean": after},
        },
        "traffic": {"down_floats": 6, "up_floats": 4, "down_bytes": 96, "up_bytes": 64},
    }


def cell(figure: Figure | None) -> Cell:
    row = Row("one", "Method One", {}, {"left": figure} if figure else {}, 12.0, {})
    return Cell("one", Column("left", "Left", ("A", "B"), {}), row, {})


def outcome(**changes: Any) -> Outcome:
    """Return a table of two rows, the second of which is not in the paper and diverged."""
    ours = pool({0: summary(0.8, 0.9, after=0.875), 1: summary(0.9, 1.0, after=0.925)}, {}, 2)
    paper = paper_of(cell(Figure(92.0, (91.0, 93.0))), 2)
    lost = pool({}, {0: "Training diverged in round 1.", 1: "Training diverged in round 2."}, 2)
    made: Outcome = {
        "table": "small",
        "title": "A table",
        "paper": "Somebody 2020.",
        "seeds": [0, 1],
        "columns": [{"name": "left", "title": "Left", "clients": ["A", "B"]}],
        "rows": [
            {
                "column": "left",
                "row": "one",
                "title": "Method One",
                "ours": ours,
                "paper": paper,
                "difference": difference(ours, paper),
                "tuned": None,
            },
            {
                "column": "left",
                "row": "two",
                "title": "Method Two",
                "ours": lost,
                "paper": None,
                "difference": None,
                "tuned": None,
            },
        ],
        "deviations": ["`rounds`: 9 → 7."],
        "notes": ["A note."],
    }
    return made | changes  # type: ignore[return-value]


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
    figure = Figure(60.0, (50.0, 60.0, 70.5))
    assert paper_of(cell(figure), 3) == {"mean": 60.0, "per_client": [50.0, 60.0, 70.5], "traffic": 12.0}
    assert paper_of(cell(figure), 2) == {"mean": 55.0, "per_client": [50.0, 60.0], "traffic": 12.0}
    assert paper_of(cell(Figure(60.0)), 2) == {"mean": 60.0, "per_client": [], "traffic": 12.0}
    assert paper_of(cell(None), 2) is None


def test_markdown_word_for_word() -> None:
    assert to_markdown(outcome()) == (
        "# A table\n\n"
        "Somebody 2020. Seeds 0, 1.\n\n"
        "| method | A | B | ours | paper | ours − paper | before | after | down + up | paper's cost |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        "| Method One | 85.00 (91.00) | 95.00 (93.00) | 90.00 ± 7.07 | 92.00 | -2.00 | 25.00 | 90.00 "
        "| 6 + 4 (40 B) | 12 |\n"
        "| Method Two | – | – | diverged | – | – | – | – | – | – |\n\n"
        "A: ours (paper's); ours: mean accuracy of the clients in percent, ± std over seeds; before: as received, "
        "untrained; after: after one more local training; down + up: numbers per client and round; paper's cost: "
        "numbers, as printed.\n\n"
        "## Failures\n\n"
        "- Method Two, seed 0: Training diverged in round 1.\n"
        "- Method Two, seed 1: Training diverged in round 2.\n\n"
        "## Deviations\n\n- `rounds`: 9 → 7.\n\n"
        "## Notes\n\n- A note.\n"
    )


def test_a_lost_seed_is_told_beside_the_others() -> None:
    made = outcome()
    made["rows"][0]["ours"] = pool({0: summary(0.8)}, {1: "Training diverged in round 1.", 2: "No disk."}, 2)
    assert "80.00 (1 diverged, 1 failed)" in to_markdown(made)


def test_the_best_of_ours_is_bold_where_there_is_a_choice() -> None:
    made = outcome()
    assert "**" not in to_markdown(made)
    made["rows"][1]["ours"] = pool({0: summary(0.95)}, {}, 2)
    assert "| **95.00** |" in to_markdown(made)


def test_the_best_of_a_grid_stands_beside_the_papers_setting() -> None:
    made = outcome()
    made["rows"][0]["tuned"] = {
        "setting": {"method.lr": 0.05},
        "grid": [
            {"setting": {"method.lr": 0.05}, "validation": 91.0, "problem": ""},
            {"setting": {"method.lr": 0.5}, "validation": None, "problem": "Training diverged in round 1."},
            {"setting": {"method.lr": 5.0}, "validation": None, "problem": "No disk."},
        ],
        "ours": pool({0: summary(0.93, recipe="s")}, {1: "Broken."}, 2),
        "difference": 1.0,
    }
    assert "| 93.00 (1 failed) | +1.00 | lr=0.05 |" in to_markdown(made)
    assert [sentence for sentence in failures(made) if "One" in sentence] == [
        "Method One, lr=5.0: No disk.",  # a point that diverges is what a grid is for
        "Method One, lr=0.05, seed 1: Broken.",
    ]


def test_several_columns_have_headings_and_failures_their_place() -> None:
    made = outcome()
    made["columns"].append({"name": "right", "title": "Right", "clients": []})
    made["rows"][1]["column"] = "right"
    assert [title for title, _ in views(made)] == ["Left", "Right"]
    assert "## Left\n" in to_markdown(made)
    assert failures(made)[0] == "Method Two (right), seed 0: Training diverged in round 1."


def test_nothing_to_remark_is_left_out() -> None:
    made = outcome(deviations=[], notes=[])
    made["rows"] = made["rows"][:1]
    assert remarks(made) == {}


def test_it_is_read_back_as_written(tmp_path: Path) -> None:
    write_table(tmp_path / "new", outcome())
    assert read_table(tmp_path / "new") == outcome()
    assert to_markdown(read_table(tmp_path / "new")) == (tmp_path / "new" / "table.md").read_text(encoding="utf-8")


def test_what_is_no_table_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="There is no table in"):
        read_table(tmp_path)
    (tmp_path / "table.json").write_text("{")
    with pytest.raises(PromptFedError, match="no valid JSON"):
        read_table(tmp_path)
    (tmp_path / "table.json").write_text(json.dumps({"rows": []}))
    with pytest.raises(PromptFedError, match=r"no table\.json of promptfed reproduce"):
        read_table(tmp_path)


# -- agreement with the paper -----------------------------------------------------------------------------------------


def entry(row: str, ours: float | None, paper: float | None, column: str = "left", weighted: float = 0.0) -> Entry:
    """Return a cell by its two numbers, in percent."""
    made = pool({} if ours is None else {0: summary(ours / 100)}, {}, 1)
    made["weighted"] = weighted
    printed = None if paper is None else paper_of(cell(Figure(paper)), 1)
    return {
        "column": column,
        "row": row,
        "title": row.upper(),
        "ours": made,
        "paper": printed,
        "difference": difference(made, printed),
        "tuned": None,
    }


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]) == 1.0
    assert rank_correlation([3.0, 2.0, 1.0], [10.0, 20.0, 30.0]) == -1.0
    # ranks 0 1 2 3 against 1 0 2 3: 1 − 6 · 2 / (4 · 15)
    assert rank_correlation([1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 3.0, 4.0]) == 0.8
    # equal values share the rank 1/2: (−1, 0, 1) against (−1/2, −1/2, 1) is 3/2 over √2 · √(3/2)
    assert rank_correlation([1.0, 2.0, 3.0], [5.0, 5.0, 6.0]) == pytest.approx(0.8660, abs=1e-4)


def test_too_little_to_rank() -> None:
    assert rank_correlation([1.0, 2.0], [1.0, 2.0]) is None
    assert rank_correlation([1.0, 2.0, None], [1.0, 2.0, 3.0]) is None
    assert rank_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None


@given(st.lists(st.integers(-5, 5), min_size=3, max_size=9), st.randoms(use_true_random=False))
def test_rank_correlation_sees_nothing_but_order(values: list[int], shuffle: random.Random) -> None:
    other = shuffle.sample(values, len(values))
    found = rank_correlation([float(value) for value in values], [float(value) for value in other])
    stretched = rank_correlation([math.exp(value) for value in values], [7.0 * value + 1 for value in other])
    assert found == stretched
    assert found is None or -1 <= found <= 1


def test_agreement_and_what_is_far() -> None:
    rows = [
        entry("a", 50.0, 53.0, weighted=60.0),  # exactly three points are not more than three
        entry("b", 60.0, 56.9, weighted=50.0),
        entry("c", 70.0, 70.0, weighted=70.0),
        entry("ours", 80.0, None),
        entry("lost", None, 90.0),
        entry("a", 50.0, 50.0, column="right"),
    ]
    left, right = agreement(rows, ["mean", "weighted"])
    # by weighted the first two change places: ranks 1 0 2 against 0 1 2, 1 − 6 · 2 / (3 · 8)
    expected = {"mean": 1.0, "weighted": 0.5}
    assert left == {"column": "left", "methods": 3, "rank_correlation": expected, "far": ["b"]}
    assert right == {"column": "right", "methods": 1, "rank_correlation": {"mean": None, "weighted": None}, "far": []}


def test_both_measures_and_the_agreement_are_shown() -> None:
    rows = [entry("a", 50.0, 53.5, weighted=61.25), entry("b", 60.0, 57.5), entry("c", 70.0, 70.0)]
    columns = [{"name": "left", "title": "Left", "clients": []}]
    both = ["mean", "weighted"]
    made = outcome(rows=rows, columns=columns, measures=both, agreement=agreement(rows, both))
    text = to_markdown(made)
    assert "| method | ours | paper | ours − paper | weighted | weighted − paper | before |" in text
    assert "| A | 50.00 | 53.50 | -3.50 | 61.25 | +7.75 | 25.00 |" in text
    assert "weighted: every test image counts once, not every client" in text
    # by weighted (1, −1/2, −1/2) against (−1, 0, 1): −3/2 over √(3/2) · √2
    order = "Rank correlation with the paper's order of 3 methods: 1.00 by mean, -0.87 by weighted."
    assert f"## Order of the methods\n\n- {order}\n" in text
    far = "A: 50.00, the paper's is 53.50 (-3.50); weighted 61.25 (+7.75)."
    assert f"## More than 3 points from the paper\n\n- {far}\n\n## Deviations" in text
    made["measures"] = ["mean"]
    assert "- A: 50.00, the paper's is 53.50 (-3.50).\n" in to_markdown(made)
    made["columns"].append({"name": "right", "title": "Right", "clients": []})
    assert "- Rank correlation with the paper's order of 3 methods in Left: 1.00 by mean," in to_markdown(made)
    assert "- A (left): 50.00, the paper's" in to_markdown(made)


def test_a_table_from_before_measures_is_still_read(tmp_path: Path) -> None:
    write_table(tmp_path, outcome())
    assert not {"measures", "agreement"} & set(read_table(tmp_path))
    assert "weighted" not in to_markdown(read_table(tmp_path))


# -- how long it took -------------------------------------------------------------------------------------------------


def took(runs: int, seconds: float, workers: int = 1, busy: float | None = None) -> str:
    line = {"began": "", "runs": runs, "workers": workers, "seconds": seconds, "gpu_percent": busy}
    (sentence,) = remarks(outcome(sittings=[line | {"runs_per_hour": 3600 * runs / seconds}]))["Time"]
    return sentence


def test_every_sitting_has_a_sentence() -> None:
    assert took(1, 18.0) == "1 run in 18 s: 200 an hour."
    assert took(39, 1404.0, 12, 87.4) == (
        "39 runs in 23 min, 12 side by side: 100 an hour; the GPU was busy 87 % of the time."
    )
    assert took(2, 7320.0) == "2 runs in 2 h 2 min: 1 an hour."
    assert "Time" not in remarks(outcome())


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


def test_the_legend_says_which() -> None:
    assert "the mean over domains" in to_markdown(outcome(measures=["deployed"]))
    assert "before the last aggregation" in to_markdown(outcome(measures=["trained"]))


# -- distances --------------------------------------------------------------------------------------------------------


def measured(folder: Path, fid: float, after_round: int = 2) -> Any:
    """Return the summary of a run of two rounds whose server's word was measured after some round."""
    word = {"word": "global", "fid": fid, "drawn": 50, "real": 40}
    client = {"word": "client", "client": 0, "fid": 1.0, "drawn": 8, "real": 3}
    content = {"round": after_round, "features": "clip embedded", "words": [client, word]}
    (folder / "quality.json").write_text(json.dumps(content), encoding="utf-8")
    return with_quality(summary(0.5), folder)


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
        with pytest.raises(PromptFedError, match=r"quality\.json is damaged; give promptfed quality .* again\."):
            with_quality(summary(0.5), tmp_path)


def test_the_lowest_fid_is_best_and_accuracies_are_not_shown(tmp_path: Path) -> None:
    rows = []
    for name, run in {"far": measured(tmp_path, 30.0), "near": measured(tmp_path, 20.0), "new": summary(0.5)}.items():
        ours = pool({0: run}, {}, 2, "fid")
        entry: Entry = {
            "column": "left",
            "row": name,
            "title": name,
            "ours": ours,
            "paper": None,
            "difference": None,
            "tuned": None,
        }
        rows.append(entry)
    columns = [{"name": "left", "title": "Left", "clients": []}]
    made = outcome(rows=rows, columns=columns, measures=["fid"])
    ((_, table),) = views(made)
    assert [column.title for column in table.columns] == [
        "method",
        "ours",
        "paper",
        "ours − paper",
        "measured",
        "down + up",
    ]
    assert [(row[1].text, row[1].best) for row in table.rows] == [("30.00", False), ("20.00", True), ("–", False)]
    assert [row[4].text for row in table.rows] == ["clip embedded, 50 pictures, 40 images"] * 2 + ["–"]
    assert "the lower the better" in to_markdown(made)
