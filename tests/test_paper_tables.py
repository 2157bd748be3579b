"""Ours beside the paper's, in exact small numbers, and as Markdown."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptfed.cells import Cell, Column, Figure, Row
from promptfed.errors import PromptFedError
from promptfed.tables import (
    Outcome,
    difference,
    failures,
    paper_of,
    pool,
    read_table,
    remarks,
    to_markdown,
    views,
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
