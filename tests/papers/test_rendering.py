"""Ours beside the paper's as Markdown, sentences and tables, word for word."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.papers.comparison import CellResult, Comparison, agreement, difference, paper_result, pool
from promptfed.papers.remarks import failures, remarks
from promptfed.papers.rendering import read_table, to_csv, to_latex, to_markdown, views, write_table
from promptfed.runs.rows import PrintedFigure
from support.comparisons import cell, entry, measured, rounds_of, summary


def outcome(**changes: Any) -> Comparison:
    """Return a table of two rows, the second of which is not in the paper and diverged."""
    ours = pool({0: summary(0.8, 0.9, after=0.875), 1: summary(0.9, 1.0, after=0.925)}, {}, 2)
    paper = paper_result(cell(PrintedFigure(92.0, (91.0, 93.0))), 2)
    lost = pool({}, {0: "Training diverged in round 1.", 1: "Training diverged in round 2."}, 2)
    made: Comparison = {
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
    with pytest.raises(PromptFedError, match="holds no table"):
        read_table(tmp_path)
    (tmp_path / "table.json").write_text("{")
    with pytest.raises(PromptFedError, match="is not valid JSON"):
        read_table(tmp_path)
    (tmp_path / "table.json").write_text(json.dumps({"rows": []}))
    with pytest.raises(PromptFedError, match="was not written by promptfed reproduce"):
        read_table(tmp_path)


def test_both_measures_and_the_agreement_are_shown() -> None:
    rows = [entry("a", 50.0, 53.5, weighted=61.25), entry("b", 60.0, 57.5), entry("c", 70.0, 70.0, weighted=70.0)]
    columns = [{"name": "left", "title": "Left", "clients": []}]
    both = ["mean", "weighted"]
    made = outcome(rows=rows, columns=columns, measures=both, agreement=agreement(rows, both))
    text = to_markdown(made)
    assert "| method | ours | paper | ours − paper | weighted | weighted − paper | best round | before |" in text
    assert "| A | 50.00 | 53.50 | -3.50 | 61.25 | +7.75 | – | 25.00 |" in text
    assert "weighted: every test image counts once, not every client" in text
    # by weighted ranks 1 0 2 against 0 1 2: 1 − 6 · 2 / (3 · 8)
    order = "0.50 by weighted, which is what the paper prints; 1.00 by mean."
    assert f"## Order of the methods\n\n- Rank correlation with the paper's order of 3 methods: {order}\n" in text
    far = [
        "- A: weighted 61.25, the paper's is 53.50 (+7.75); the mean over clients is 50.00 (-3.50).",
        "- B: weighted 0.00, the paper's is 57.50 (-57.50); the mean over clients is 60.00 (+2.50).",
    ]
    assert "## More than 3 points from the paper\n\n" + "\n".join(far) + "\n\n## Deviations" in text
    made["columns"].append({"name": "right", "title": "Right", "clients": []})
    assert "- Rank correlation with the paper's order of 3 methods in Left: 0.50 by weighted," in to_markdown(made)
    assert "- A (left): weighted 61.25, the paper's" in to_markdown(made)
    made |= {"measures": ["mean"], "agreement": agreement(rows, ["mean"])}
    assert "order of 3 methods in Left: 1.00.\n" in to_markdown(made)
    assert "- A (left): 50.00, the paper's is 53.50 (-3.50).\n" in to_markdown(made)


def test_the_best_round_stands_beside_the_last_where_images_count() -> None:
    made = outcome(measures=["mean", "weighted"])
    made["rows"][0]["ours"] = pool({0: rounds_of(0.7, 0.6), 1: rounds_of(0.8, 0.65)}, {}, 2)
    text = to_markdown(made)
    assert "| weighted | weighted − paper | best round | before |" in text
    assert "| 62.50 | -29.50 | 75.00 | 25.00 |" in text
    assert "| Method Two | – | – | diverged | – | – | – | – | – |" in text
    assert "best round: the highest weighted of any tested round, as received;" in text
    assert "best round" not in to_markdown(made | {"measures": ["mean"]})
    for row in made["rows"]:  # a table from before there was such a number
        del row["ours"]["best_weighted"]
    assert "best round" not in to_markdown(made)
    assert "| weighted − paper | before |" in to_markdown(made)


def test_the_best_of_a_grid_is_compared_by_what_the_paper_prints() -> None:
    made = outcome(measures=["mean", "weighted"])
    made["rows"][0]["tuned"] = {
        "setting": {"method.lr": 0.05},
        "grid": [],
        "ours": pool({0: rounds_of(None, weighted=0.875)}, {}, 2),
        "difference": -4.5,
    }
    text = to_markdown(made)
    assert "| best of grid | best of grid, weighted | best, weighted − paper | chosen |" in text
    assert "| 50.00 | 87.50 | -4.50 | lr=0.05 |" in text  # of the paper's 92, not of the mean of 50


def test_an_unfinished_table_says_so() -> None:
    assert "Unfinished" not in to_markdown(outcome())
    sentence = "3 runs are not finished; until then a cell may be empty or have fewer seeds."
    assert f"## Unfinished\n\n- {sentence}\n\n## Failures" in to_markdown(outcome(unfinished=3))
    assert remarks(outcome(unfinished=1))["Unfinished"][0].startswith("1 run is not finished;")


# -- for papers and programs ------------------------------------------------------------------------------------------


def two_columns() -> Comparison:
    """Return a table whose second column has no clients of its own."""
    made = outcome()
    made["columns"].append({"name": "right", "title": "Right", "clients": []})
    made["rows"][1] |= {"column": "right", "ours": pool({0: summary(0.5)}, {1: "Broken."}, 2)}
    return made


def test_csv_word_for_word() -> None:
    assert to_csv(two_columns()) == (
        "column,method,A,A_paper,B,B_paper,ours,ours_std,ours_lost,paper,ours_difference,before,after,"
        "down_floats,up_floats,down_and_up_bytes,paper_floats\n"
        "Left,Method One,85.00,91.00,95.00,93.00,90.00,7.07,,92.00,-2.00,25.00,90.00,6,4,40,12\n"
        "Right,Method Two,,,,,50.00,,1 failed,,,25.00,,6,4,40,\n"
    )


def test_every_field_of_a_cell_has_a_name() -> None:
    made = outcome(measures=["mean", "weighted"])
    made["rows"][0]["tuned"] = {"setting": {}, "grid": [], "ours": pool({}, {}, 2), "difference": None}
    for shown in (made, outcome(measures=["fid"])):
        ((_, table),) = views(shown)
        for row in table.rows:
            assert [len(cell.fields) for cell in row] == [len(column.fields) for column in table.columns]


def test_latex_has_one_table_per_column() -> None:
    text = to_latex(two_columns())
    assert text.startswith("% A table – Left\n\\begin{table}\n")
    assert "\n\n% A table – Right\n\\begin{table}\n" in text
    assert "method & A & B & ours & paper & ours $-$ paper &" in text
    assert "Method One & 85.00 (91.00) & 95.00 (93.00) & 90.00 $\\pm$ 7.07 & 92.00 & -2.00 &" in text
    assert "−" not in text
    assert to_latex(outcome()).startswith("% A table\n")


def test_measures_beside_the_mean_are_shown_for_ours_and_for_the_best_of_the_grid() -> None:
    one, two = entry("one", 50.0, None), entry("two", 60.0, None)
    one["ours"]["beside"] = {"worst": 12.3, "hm": None}
    two["tuned"] = {"setting": {"method.lr": 1}, "grid": [], "ours": one["ours"], "difference": None}
    text = to_markdown(outcome(rows=[one, two], measures=["mean", "worst", "hm"]))
    assert "| method | ours | paper | ours − paper | worst | hm | best of grid |" in text.replace("A | B | ", "")
    assert "chosen | best of grid, worst | best of grid, hm |" in text
    assert text.count("12.30") == 2
    assert "worst: the worst client; hm: harmonic mean of base and novel" in text


def test_a_table_from_before_measures_is_still_read(tmp_path: Path) -> None:
    write_table(tmp_path, outcome())
    assert not {"measures", "agreement"} & set(read_table(tmp_path))
    assert "weighted" not in to_markdown(read_table(tmp_path))


# -- how long it took -------------------------------------------------------------------------------------------------


def took(runs: int, seconds: float, workers: int = 1, busy: float | None = None) -> str:
    line = {"began": "", "runs": runs, "workers": workers, "seconds": seconds, "gpu_percent": busy}
    (sentence,) = remarks(outcome(sittings=[line | {"runs_per_hour": 3600 * runs / seconds}]))["Time"]
    return sentence


def test_every_timing_has_a_sentence() -> None:
    assert took(1, 18.0) == "1 run in 18 s: 200 an hour."
    assert took(39, 1404.0, 12, 87.4) == (
        "39 runs in 23 min, 12 side by side: 100 an hour; the GPU was busy 87 % of the time."
    )
    assert took(2, 7320.0) == "2 runs in 2 h 2 min: 1 an hour."
    assert "Time" not in remarks(outcome())


# -- other headlines --------------------------------------------------------------------------------------------------


def test_the_legend_says_which() -> None:
    assert "the mean over domains" in to_markdown(outcome(measures=["deployed"]))
    assert "before the last aggregation" in to_markdown(outcome(measures=["trained"]))


def test_the_lowest_fid_is_best_and_accuracies_are_not_shown(tmp_path: Path) -> None:
    rows = []
    for name, run in {"far": measured(tmp_path, 30.0), "near": measured(tmp_path, 20.0), "new": summary(0.5)}.items():
        ours = pool({0: run}, {}, 2, "fid")
        entry: CellResult = {
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


def test_the_best_round_stands_beside_a_paper_that_prints_it() -> None:
    made = outcome(measures=["mean", "weighted", "best-round"])
    plain, adapted = rounds_of(0.9, 0.6), rounds_of(0.9, 0.6)
    for one, local in ((plain, 0.95), (adapted, None)):
        one["accuracy"] |= {"best_local": local}
    plain["accuracy"]["before"] = {key: plain["accuracy"][key] for key in ("mean", "weighted", "per_client")}
    entries = [entry("a", 50.0, 92.0), entry("b", 50.0, 92.0)]
    entries[0]["ours"], entries[1]["ours"] = pool({0: plain}, {}, 2), pool({0: adapted}, {}, 2)
    made |= {"rows": entries, "agreement": agreement(entries, ["mean", "weighted", "best-round"], ranked=False)}
    text = to_markdown(made)
    assert (
        "| weighted − paper | best round | best local | best local − paper | beside the paper's | that − paper |"
        in text
    )
    assert "| 60.00 | -32.00 | 90.00 | 95.00 | +3.00 | best round | -2.00 |" in text
    assert "| 60.00 | -32.00 | 90.00 | – | – | weighted | -32.00 |" in text
    assert "Order of the methods" not in text  # they are no methods
    far = "- B: weighted 60.00, the paper's is 92.00 (-32.00); the mean over clients is 50.00 (-42.00)."
    assert f"## More than 3 points from the paper\n\n{far}\n" in text
    made |= {"rows": [entries[0] | {"paper": {"mean": 80.0, "per_client": [], "traffic": None}, "difference": -30.0}]}
    made |= {"agreement": agreement(made["rows"], ["mean", "weighted", "best-round"])}
    assert (
        "- A: best round 90.00, the paper's is 80.00 (+10.00); in the last round weighted 60.00, "
        "and the mean over clients is 50.00 (-30.00).\n"
    ) in to_markdown(made)
