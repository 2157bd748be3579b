"""A table of results as one value, and its rendering as Markdown, LaTeX and CSV; layout.py has the terminal's."""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A heading, its meaning for the legend, and the names of its numbers in a CSV file."""

    title: str
    legend: str
    fields: tuple[str, ...]
    numeric: bool = True


@dataclass(frozen=True)
class Cell:
    """The text a reader sees, its plain numbers, and whether it is the best of its column."""

    text: str
    fields: tuple[str, ...]
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Columns and rows, ready for any renderer."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    names: int = 1  # how many columns at the left name the row
    about: str = ""  # what all cells show, for the legend

    @property
    def legend(self) -> str:
        """Return one line that explains the columns."""
        each = (f"{column.title}: {column.legend}" for column in self.columns if column.legend)
        line = "; ".join(filter(None, (self.about, *each)))
        return f"{line}. Bold: best of its column." if any(c.best for row in self.rows for c in row) else f"{line}."

    def to_markdown(self) -> str:
        """Render as a GitHub table with the legend under it."""
        head = "| " + " | ".join(column.title for column in self.columns) + " |"
        rule = "|" + "|".join("---:" if column.numeric else "---" for column in self.columns) + "|"
        rows = ["| " + " | ".join(_strong(cell, "**{}**", _pipe) for cell in row) + " |" for row in self.rows]
        return "\n".join([head, rule, *rows, "", self.legend]) + "\n"

    def to_latex(self) -> str:
        """Render as a booktabs table whose caption is the legend."""
        kinds = "".join("r" if column.numeric else "l" for column in self.columns)
        head = " & ".join(_latex(column.title) for column in self.columns) + r" \\"
        rows = [" & ".join(_strong(cell, r"\textbf{{{}}}", _latex) for cell in row) + r" \\" for row in self.rows]
        opening = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", head, r"\midrule"]
        closing = [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_latex(self.legend)}}}", r"\end{table}"]
        return "\n".join([*opening, *rows, *closing]) + "\n"

    def to_csv(self) -> str:
        """Render plain numbers: percent, bytes, floats and seconds, the spread over seeds in columns of its own."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([field for column in self.columns for field in column.fields])
        writer.writerows([[_no_formula(field) for cell in row for field in cell.fields] for row in self.rows])
        return out.getvalue()


def percent(fraction: float) -> str:
    """Write a fraction as percent with two decimals, without the sign."""
    return f"{100 * fraction:.2f}"


def human_bytes(count: float) -> str:
    """Write bytes with a decimal unit: 999 B, 30.7 kB, 3.51 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB" if count < 999.5 else f"{count:,.0f} TB"


def _strong(cell: Cell, bold: str, escape: Callable[[str], str]) -> str:
    return bold.format(escape(cell.text)) if cell.best else escape(cell.text)


def _no_formula(field: str) -> str:
    """Return a field that no spreadsheet takes for a formula: a name that begins like one gets an apostrophe."""
    return f"'{field}" if re.match(r"\s*([=@]|[+-](?!\d*\.?\d+(e[+-]?\d+)?$))", field) else field


def _pipe(text: str) -> str:
    """Escape what Markdown would read as a column or as HTML."""
    return _one_line(text).replace("|", "\\|").replace("<", "&lt;")


def _one_line(text: str) -> str:
    """Return text without control characters and marks that turn the direction of what follows."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def _latex(text: str) -> str:
    """Escape what LaTeX would read as a command."""
    special = {
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
        "–": "--",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
    return "".join(special.get(sign, f"\\{sign}" if sign in "&%$#_{}" else sign) for sign in _one_line(text))
