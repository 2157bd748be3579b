"""A small table by columns, which pandas, polars and others take as it is."""

from collections.abc import Iterable, Mapping
from html import escape
from importlib import import_module
from typing import Any

from promptfed.core.errors import PromptFedError

SHOWN = 20  # rows that a notebook shows


class Columns(dict[str, list[Any]]):  # a dict, since that is what pandas.DataFrame takes for columns
    """Lists of equal length by name; None where a row has no value. `pandas.DataFrame(columns)` makes a frame of it."""

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]], first: Iterable[str] = ()) -> "Columns":
        """Return the columns of these rows: those in `first` in any case, then the others as they come."""
        rows = list(records)
        names = dict.fromkeys([*first, *(name for row in rows for name in row)])
        return cls({name: [row.get(name) for row in rows] for name in names})

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.values()), []))

    def records(self) -> list[dict[str, Any]]:
        """Return the rows, each as a dict by column."""
        return [dict(zip(self, row, strict=True)) for row in zip(*self.values(), strict=True)]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise PromptFedError("Data frames need pandas: pip install pandas.") from error
        return pandas.DataFrame(self)

    def __repr__(self) -> str:
        return f"<{self.rows} row{'' if self.rows == 1 else 's'} of {', '.join(self)}>"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(_text(value))}</td>' for value in row.values())}</tr>"
            for row in self.records()[:SHOWN]
        )
        more = f"<p>The first {SHOWN} of {self.rows} rows.</p>" if self.rows > SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _text(value: object) -> str:
    """Return a value as a reader wants it."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
