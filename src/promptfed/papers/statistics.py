"""What several seeds and columns say together: standard errors, paired differences, average ranks.

A cell counts with what its grid's best point gave, if a grid was tried, else with the table's own setting.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import mean, stdev

from promptfed.papers.comparison import CellResult, CellStatistics, Ours, RowStatistics, TableStatistics


def table_statistics(entries: Sequence[CellResult], baseline: str, *, lowest: bool = False) -> TableStatistics:
    """Return the statistics of a table's cells; `lowest` says that lower is better."""
    cells = []
    for column in dict.fromkeys(entry["column"] for entry in entries):
        shown = {entry["row"]: counted(entry) for entry in entries if entry["column"] == column}
        ranks = ranks_in({row: ours["mean"] for row, ours in shown.items()}, lowest=lowest)
        against = shown[baseline]["by_seed"] if baseline in shown else {}
        for row, ours in shown.items():
            cells.append(_cell(column, row, ours, {} if row == baseline else against, ranks.get(row)))
    rows: list[RowStatistics] = []
    for row in dict.fromkeys(cell["row"] for cell in cells):
        found = [cell["rank"] for cell in cells if cell["row"] == row and cell["rank"] is not None]
        if found:
            rows.append({"row": row, "rank": round(mean(found), 4), "columns": len(found)})
    return {"baseline": baseline, "cells": cells, "rows": sorted(rows, key=lambda one: one["rank"])}


def counted(entry: CellResult) -> Ours:
    """Return the runs that count for a cell: those of its grid's best point, if there are any."""
    tuned = entry["tuned"]
    return tuned["ours"] if tuned and tuned["ours"]["mean"] is not None else entry["ours"]


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean, from the sample standard deviation; one value has none."""
    return round(stdev(values) / sqrt(len(values)), 4) if len(values) > 1 else None


def _cell(column: str, row: str, ours: Ours, against: Mapping[str, float | None], rank: float | None) -> CellStatistics:
    known = {seed: value for seed, value in ours["by_seed"].items() if value is not None}
    apart = [value - other for seed, value in known.items() if (other := against.get(seed)) is not None]
    return {
        "column": column,
        "row": row,
        "mean": ours["mean"],
        "error": standard_error(list(known.values())),
        "difference": round(mean(apart), 4) if apart else None,
        "difference_error": standard_error(apart),
        "rank": rank,
    }


def ranks_in(means: Mapping[str, float | None], *, lowest: bool = False) -> dict[str, float]:
    """Return the rank of every row with a result, 1 the best; equals get the mean of the ranks they share."""
    known = {row: round(value, 2) for row, value in means.items() if value is not None}
    found = {}
    for row, value in known.items():
        better = sum(other < value if lowest else other > value for other in known.values())
        found[row] = better + (1 + sum(other == value for other in known.values())) / 2
    return found
