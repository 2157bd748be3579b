"""Summaries and cells of tables, made by hand."""

import json
from pathlib import Path
from typing import Any

from promptfed.papers.comparison import (
    CellResult,
    difference,
    paper_result,
    pool,
    with_quality,
)
from promptfed.runs.cells import TableCell, TableColumn
from promptfed.runs.rows import PrintedFigure, TableRow


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


def cell(figure: PrintedFigure | None) -> TableCell:
    row = TableRow("one", "Method One", {}, {"left": figure} if figure else {}, 12.0, {})
    return TableCell("one", TableColumn("left", "Left", ("A", "B"), {}), row, {})


def entry(
    row: str, ours: float | None, paper: float | None, column: str = "left", weighted: float | None = 0.0
) -> CellResult:
    """Return a cell by its two numbers, in percent."""
    made = pool({} if ours is None else {0: summary(ours / 100)}, {}, 1)
    made["weighted"] = weighted
    printed = None if paper is None else paper_result(cell(PrintedFigure(paper)), 1)
    return {
        "column": column,
        "row": row,
        "title": row.upper(),
        "ours": made,
        "paper": printed,
        "difference": difference(made, printed),
        "tuned": None,
    }


def rounds_of(best: float | None, weighted: float = 0.5) -> Any:
    """Return a summary that counts images, with the best round's accuracy unless the run is too old for it."""
    made = summary(0.5)
    made["accuracy"] |= {"weighted": weighted} | ({} if best is None else {"best_weighted": best})
    return made


def measured(folder: Path, fid: float, after_round: int = 2) -> Any:
    """Return the summary of a run of two rounds whose server's word was measured after some round."""
    word = {"word": "global", "fid": fid, "drawn": 50, "real": 40}
    client = {"word": "client", "client": 0, "fid": 1.0, "drawn": 8, "real": 3}
    content = {"round": after_round, "features": "clip embedded", "words": [client, word]}
    (folder / "quality.json").write_text(json.dumps(content), encoding="utf-8")
    return with_quality(summary(0.5), folder)
