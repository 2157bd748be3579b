"""Lay out a table's statistics: beside every column's results, and the average ranks of its rows."""

from collections.abc import Sequence

from promptfed.papers.comparison import CellResult, Comparison, Heading
from promptfed.papers.remarks import NONE, signed, two_decimals
from promptfed.results.report.table import Cell, Column, Table

RANKS = "Average rank"


def statistics_of(
    outcome: Comparison, heading: Heading, entries: Sequence[CellResult]
) -> list[tuple[Column, list[Cell]]]:
    """Lay out the statistics of one column of the table, if it asks for any."""
    if "statistics" not in outcome:
        return []
    found = {one["row"]: one for one in outcome["statistics"]["cells"] if one["column"] == heading["name"]}
    cells, baseline = [found[entry["row"]] for entry in entries], _baseline(outcome)
    means = [_with_error(two_decimals(one["mean"]), one["mean"], one["error"]) for one in cells]
    apart = [_with_error(signed(one["difference"]), one["difference"], one["difference_error"]) for one in cells]
    which = "the best of the grid where one was tried"
    return [
        (Column("mean ± s.e.", f"{which}, ± standard error over seeds", ("counted", "counted_error")), means),
        (Column(f"− {baseline}", "by seed, ± its standard error", ("apart", "apart_error")), apart),
        (Column("rank", "in this column, by that mean", ("rank",)), [_rank(one["rank"]) for one in cells]),
    ]


def ranks_of(outcome: Comparison) -> list[tuple[str, Table]]:
    """Return the average ranks over a table of several columns, the best first, if it asks for statistics."""
    if "statistics" not in outcome or len(outcome["columns"]) < 2:
        return []
    titles = {entry["row"]: entry["title"] for entry in outcome["rows"]}
    columns = (
        Column("method", "", ("method",), False),
        Column("average rank", "over the columns in which the method has a result", ("average_rank",)),
        Column("columns", "", ("columns",)),
    )
    rows = [
        (_plain(titles[one["row"]]), _rank(one["rank"]), _plain(str(one["columns"])))
        for one in outcome["statistics"]["rows"]
    ]
    return [(RANKS, Table(columns, tuple(rows)))]


def _baseline(outcome: Comparison) -> str:
    name = outcome["statistics"]["baseline"]
    return next((entry["title"] for entry in outcome["rows"] if entry["row"] == name), name)


def _with_error(text: str, value: float | None, error: float | None) -> Cell:
    fields = tuple("" if one is None else f"{one:.2f}" for one in (value, error))
    return Cell(text + ("" if value is None or error is None else f" ± {error:.2f}"), fields)


def _rank(value: float | None) -> Cell:
    return Cell(NONE, ("",)) if value is None else _plain(f"{value:.3g}")


def _plain(text: str) -> Cell:
    return Cell(text, (text,))
