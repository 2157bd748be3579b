"""A figure of the report: its drawings or table, its legend and its caption."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from promptfed.results.report.table import Table

# Drawn at two widths, so that text has the same size on a desktop and on a phone.
WIDE, NARROW, SMALL = 960, 380, 460
# Two of these fit side by side on a desktop and one fills a phone, so one drawing is enough.
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
    """A drawing for wide pages and one for narrow pages (or one for both), or a table; with its legend and caption."""

    wide: Markup
    narrow: Markup
    keys: tuple[Key, ...]
    caption: str
    table: Table | None = None


def both_widths(draw: Chart, keys: Sequence[Key], caption: str) -> Figure:
    """Draw a figure for wide pages and for narrow ones."""
    return Figure(Markup(draw(WIDE)), Markup(draw(NARROW)), tuple(keys), caption)
