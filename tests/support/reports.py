"""Reading reports and tables."""

from collections.abc import Callable
from pathlib import Path

from promptfed.results.report.table import Table

MakeRun = Callable[..., Path]


def column(table: Table, title: str) -> list[str]:
    """The texts of one column."""
    index = [one.title for one in table.columns].index(title)
    return [row[index].text for row in table.rows]
