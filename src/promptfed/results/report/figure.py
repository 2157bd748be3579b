"""A figure of the report: its drawing, drawings or table, its legend, and what one sees in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from promptfed.results.report.table import Table

# Drawn twice at these widths, so that text keeps its size on a desk and on a phone.
WIDE, NARROW, SMALL = 960, 380, 460
# Two of these stand side by side on a desk and one fills a phone, so once is enough.
SQUARE = 400

Chart = Callable[[int], str]


@dataclass(frozen=True)
class Key:
    """One entry of a legend: its mark ("line", "dash", "dot", "band", "bar" or "group"), series and text."""

    kind: str
    series: int
    text: str


@dataclass(frozen=True)
class Figure:
    """A drawing for wide pages, one for narrow pages (or one for both), its legend and what one sees in it.

    In place of drawings there may be a table.
    """

    wide: Markup
    narrow: Markup
    keys: tuple[Key, ...]
    caption: str
    table: Table | None = None


def both_widths(draw: Chart, keys: Sequence[Key], caption: str) -> Figure:
    """Draw a figure for wide pages and for narrow ones."""
    return Figure(Markup(draw(WIDE)), Markup(draw(NARROW)), tuple(keys), caption)
