"""Standard errors, paired differences and ranks in numbers one can check by hand."""

from promptfed.papers.comparison import CellResult, Comparison, pool
from promptfed.papers.rendering import to_csv, to_markdown
from promptfed.papers.statistics import standard_error, table_statistics
from support.comparisons import entry, summary


def seeds(row: str, *values: float | None, column: str = "left") -> CellResult:
    """Return a cell with a percentage for each seed; None: the seed has no result."""
    runs = {seed: summary(value / 100) for seed, value in enumerate(values) if value is not None}
    return entry(row, None, None, column) | {"ours": pool(runs, {}, 1)}


def table(entries: list[CellResult], columns: tuple[str, ...] = ("left",)) -> Comparison:
    return {
        "table": "t",
        "title": "T",
        "paper": "P.",
        "seeds": [0, 1, 2],
        "columns": [{"name": name, "title": name.upper(), "clients": []} for name in columns],
        "rows": entries,
        "deviations": [],
        "notes": [],
        "statistics": table_statistics(entries, "base"),
    }


def test_an_error_is_the_sample_deviation_over_the_root_of_the_number() -> None:
    assert standard_error([50.0, 53.0, 56.0]) == 1.7321  # 3 / √3
    assert standard_error([50.0, 54.0]) == 2.0  # √8 / √2
    assert standard_error([50.0]) is None


def test_differences_are_paired_by_seed() -> None:
    found = table_statistics(
        [seeds("base", 50, 60, 70), seeds("one", 51, 63, 72), seeds("two", None, 58, None)], "base"
    )
    base, one, two = found["cells"]
    assert (base["mean"], base["error"], base["difference"], base["difference_error"]) == (60.0, 5.7735, None, None)
    assert (one["mean"], one["error"]) == (62.0, 6.0828)  # √111 / √3
    assert (one["difference"], one["difference_error"]) == (2.0, 0.5774)  # of 1, 3 and 2: 1 / √3
    assert (two["difference"], two["difference_error"], two["error"]) == (-2.0, None, None)
    assert [cell["rank"] for cell in found["cells"]] == [2.0, 1.0, 3.0]


def test_equals_share_a_rank_and_the_average_is_over_columns_with_a_result() -> None:
    rows = [("base", 50), ("one", 50), ("two", 60), ("three", None)]
    entries = [seeds(name, value) for name, value in rows]
    entries += [seeds("base", 80, column="right"), seeds("three", 90, column="right")]
    found = table_statistics(entries, "base")
    assert [(cell["column"], cell["row"], cell["rank"]) for cell in found["cells"]] == [
        ("left", "base", 2.5),
        ("left", "one", 2.5),
        ("left", "two", 1.0),
        ("left", "three", None),
        ("right", "base", 2.0),
        ("right", "three", 1.0),
    ]
    assert found["rows"] == [
        {"row": "two", "rank": 1.0, "columns": 1},
        {"row": "three", "rank": 1.0, "columns": 1},
        {"row": "base", "rank": 2.25, "columns": 2},
        {"row": "one", "rank": 2.5, "columns": 1},
    ]


def test_the_best_of_a_grid_counts_and_the_lowest_of_fids() -> None:
    tuned = seeds("one", 40)
    tuned["tuned"] = {"setting": {"method.lr": 0.1}, "grid": [], "ours": seeds("one", 70)["ours"], "difference": None}
    failed = seeds("two", 45)
    failed["tuned"] = {"setting": {}, "grid": [], "ours": pool({}, {}, 1), "difference": None}
    entries = [seeds("base", 50), tuned, failed]
    assert [cell["mean"] for cell in table_statistics(entries, "base")["cells"]] == [50.0, 70.0, 45.0]
    assert [cell["rank"] for cell in table_statistics(entries, "base", lowest=True)["cells"]] == [2.0, 3.0, 1.0]


def test_a_baseline_without_a_result_leaves_differences_out() -> None:
    (cell,) = table_statistics([seeds("one", 50, 60)], "base")["cells"]
    assert (cell["difference"], cell["rank"]) == (None, 1.0)


def test_they_are_shown_beside_each_column_and_ranks_once() -> None:
    entries = [seeds("base", 50, 60, 70), seeds("one", 51, 63, 72)]
    text = to_markdown(table(entries))
    assert "| mean ± s.e. | − BASE | rank |" in text
    assert "| 62.00 ± 6.08 | +2.00 ± 0.58 | 1 |" in text
    assert "| 60.00 ± 5.77 | – | 2 |" in text
    assert "Average rank" not in text
    both = [*entries, seeds("one", 10, column="right")]
    text = to_markdown(table(both, ("left", "right")))
    assert (
        "## Average rank\n\n| method | average rank | columns |\n|---|---:|---:|\n| ONE | 1 | 2 |\n| BASE | 2 | 1 |"
        in text
    )
    assert "counted,counted_error,apart,apart_error,rank" in to_csv(table(entries)).splitlines()[0]
