"""Lay a table out for the terminal: as it is, transposed, or in parts, so that no number is cut or wrapped."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from promptfed.results.report.table import Cell, Column, Table

# What rich draws beside a column's text: a space on either side and a rule; one more rule closes the table.
BESIDE, CLOSING = 3, 1
# Names are wrapped, but never to a column narrower than this.
LEAST_NAME = 12


@dataclass(frozen=True)
class _Grid:
    """Headings and rows; text and headings may be wrapped if room is short, but numbers may not."""

    heads: tuple[str, ...]
    right: tuple[bool, ...]  # columns that are right-aligned
    rows: tuple[tuple[Text, ...], ...]
    whole: tuple[tuple[bool, ...], ...]  # cells that stay on one line

    def natural(self) -> list[int]:
        """Return the columns' widths without any wrapping."""
        return [max(map(cell_len, (head, *(row[i].plain for row in self.rows)))) for i, head in enumerate(self.heads)]

    def least(self) -> list[int]:
        """Return the columns' smallest widths, with everything wrapped that may be."""
        found = [_longest_word(head) for head in self.heads]
        for row, whole in zip(self.rows, self.whole, strict=True):
            needs = [
                text.cell_len if kept else _longest_word(text.plain) for text, kept in zip(row, whole, strict=True)
            ]
            found = list(map(max, found, needs))
        return found

    def drawn(self, widths: Sequence[int | None], caption: str | None = None) -> RichTable:
        """Return the table with columns of these widths."""
        out = RichTable(caption=caption, caption_justify="left", header_style="")
        for head, right, width in zip(self.heads, self.right, widths, strict=True):
            # Unlike rich's ellipsis, wrapping loses nothing even on a very narrow terminal.
            out.add_column(Text(head), justify="right" if right else "left", width=width, overflow="fold")
        for row in self.rows:
            out.add_row(*row)
        return out


def to_rich(table: Table, width: int | None = None) -> RenderableType:
    """Render for a terminal; a table wider than `width` is transposed, or split into parts below each other."""
    flat = _flat(table.columns, table.rows)
    if width is None:
        return flat.drawn([None] * len(flat.heads), table.legend)
    below = [Text(table.legend, style="table.caption")] if table.legend else []  # as wide as the terminal
    if _total(flat.natural()) <= width:
        return Group(flat.drawn(flat.natural()), *below)
    transposed = _transposed(table)
    natural, least = transposed.natural(), transposed.least()
    least[0] = natural[0]  # the measures' names
    if _total(least) <= width or len(table.rows) == 1:
        return Group(transposed.drawn(_shared(least, natural, width)), *below)
    return Group(*_parts(table, width), *below)


def _flat(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> _Grid:
    """Return the table as it is."""
    numeric = tuple(column.numeric for column in columns)
    shown = tuple(tuple(_text(cell) for cell in row) for row in rows)
    return _Grid(tuple(column.title for column in columns), numeric, shown, (numeric,) * len(shown))


def _transposed(table: Table) -> _Grid:
    """Return the table transposed."""
    heads = (table.columns[0].title, *(row[0].text for row in table.rows))
    rows = tuple(
        (Text(column.title), *(_text(row[number]) for row in table.rows))
        for number, column in enumerate(table.columns[1:], 1)
    )
    whole = tuple((True, *[column.numeric] * len(table.rows)) for column in table.columns[1:])
    return _Grid(heads, (False, *[True] * len(table.rows)), rows, whole)


def _parts(table: Table, width: int) -> list[RichTable]:
    """Return the table in parts: as many columns as fit, each time beside the rows' names."""
    names, heads = _names(table)
    measures = _flat(table.columns[table.names :], [row[table.names :] for row in table.rows])
    natural = measures.natural()
    widest = max((size for size, number in zip(natural, measures.right, strict=True) if number), default=0)
    longest = max(map(cell_len, (heads, *names)))
    first = max(LEAST_NAME, min(longest, width // 2, width - CLOSING - 2 * BESIDE - widest))
    room = max(1, width - CLOSING - BESIDE - first)
    parts: list[list[int]] = [[]]
    sizes = [min(size, max(1, room - BESIDE)) for size in natural]
    for number, size in enumerate(sizes):
        if parts[-1] and sum(sizes[i] + BESIDE for i in parts[-1]) + size + BESIDE > room:
            parts.append([])
        parts[-1].append(number)
    grids = [
        _Grid(
            (heads, *(measures.heads[i] for i in part)),
            (False, *(measures.right[i] for i in part)),
            tuple((Text(name), *(row[i] for i in part)) for name, row in zip(names, measures.rows, strict=True)),
            (),
        )
        for part in parts
    ]
    return [grid.drawn([first, *(sizes[i] for i in part)]) for grid, part in zip(grids, parts, strict=True)]


def _names(table: Table) -> tuple[list[str], str]:
    """Return one name per row, such as "pfedpt, office, 20 clients", and their heading."""
    columns = table.columns[: table.names]
    names = [
        ", ".join(
            f"{cell.text} {column.title}" if column.numeric else cell.text
            for column, cell in zip(columns, row, strict=False)
        )
        for row in table.rows
    ]
    return names, ", ".join(column.title for column in columns)


def _shared(least: Sequence[int], natural: Sequence[int], width: int) -> list[int]:
    """Return each column's least width, plus the remaining room for the first that can use it; the last may shrink."""
    left = width - _total(least)
    found = []
    for low, high in zip(least, natural, strict=True):
        more = min(left, high - low) if left > 0 else 0
        found.append(low + more)
        left -= more
    found[-1] = max(1, found[-1] + min(0, left))
    return found


def _total(widths: Sequence[int]) -> int:
    return sum(size + BESIDE for size in widths) + CLOSING


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)


def _text(cell: Cell) -> Text:
    return Text(cell.text, style="bold" if cell.best else "")
