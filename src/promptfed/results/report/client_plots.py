"""Figures of clients as SVG text: bars, heat maps, shaded cells, and points in the plane.

Each function takes plain values and a width, and returns one `<svg>`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from promptfed.results.report.plots import Curve, line_chart
from promptfed.results.report.svg import (
    Axis,
    Frame,
    Point,
    cut,
    document,
    heading,
    label_places,
    n,
    series_class,
    shape_path,
    y_axis,
    y_grid,
)

MOST_BARS = 60
LEAST_BAR = 2.0
MOST_TOOLTIPS = 1500
MOST_POINTS = 1000  # of a curve of sorted clients
LARGEST_CELL = 52.0
# A cell this wide has its number written in it.
ROOMY_CELL = 36.0
# More points than this carry no names.
MOST_NAMES = 32


@dataclass(frozen=True)
class Bars:
    """One value per client; None for a client without test images."""

    label: str
    values: tuple[float | None, ...]
    colour: int


@dataclass(frozen=True)
class Head:
    """The name of a row, column or point, and the series and name of its group, if it has one."""

    name: str
    series: int | None = None
    group: str = ""


def client_chart(series: Sequence[Bars], *, width: int, title: str) -> str:
    """One group of bars per client, or for many clients one sorted curve per series."""
    frame = Frame(width, 210 + width / 12, right=8)
    count = max(len(one.values) for one in series)
    slot = frame.inner / count
    bar = min(0.84 * slot / len(series), 30)
    if count > MOST_BARS or bar < LEAST_BAR:
        return _sorted_curves(series, width, title)
    tops = [value for one in series for value in one.values if value is not None]
    up = y_axis(0, max(tops, default=100), frame, ceiling=100)
    parts = [y_grid(up, frame, "accuracy (%)"), _client_ticks(range(count), slot, frame)]
    for client in range(count):
        left = frame.left + (client + 0.5) * slot - bar * len(series) / 2
        for index, one in enumerate(series):
            value = one.values[client] if client < len(one.values) else None
            parts.append(_bar(one, client, value, left + index * bar, bar, up))
    desc = "; ".join(f"{one.label}: {_extent(one.values)}" for one in series)
    return document(frame, title, desc, parts)


def heat_map(
    rows: Sequence[str],
    columns: Sequence[Sequence[int]],
    *,
    width: int,
    title: str,
    noun: str = "images",
    clients: Sequence[int] | None = None,
) -> str:
    """Clients across, classes or domains down; the area of a circle, or the shade of a narrow cell, is the count.

    `clients` are the columns' numbers, where not all are shown.
    """
    numbers = range(len(columns)) if clients is None else clients
    letters = 14 if width > 500 else 10
    left = min(max((len(name) for name in rows), default=0), letters) * 7 + 14
    slot = (width - left - 8) / max(1, len(columns))
    pitch = max(min(slot, 26), 12 if len(rows) > 24 else 18)
    frame = Frame(width, 46 + pitch * len(rows), left=left, right=8, top=6)
    most = max((count for column in columns for count in column), default=0) or 1
    named = math.ceil(len(rows) * 12 / (pitch * len(rows) or 1))
    parts = [_row_name(name, letters, frame, pitch, index) for index, name in enumerate(rows) if index % named == 0]
    parts.append(_client_ticks(numbers, slot, frame))
    marks = sum(1 for column in columns for count in column if count)
    for place, column in enumerate(columns):
        for index, count in enumerate(column):
            if count:
                middle = (left + (place + 0.5) * slot, frame.top + (index + 0.5) * pitch)
                tip = f"client {numbers[place]}, {rows[index]}: {count:,} {noun}" if marks <= MOST_TOOLTIPS else ""
                parts.append(_mark(middle, slot, pitch, count / most, tip))
    desc = f"{len(columns)} clients, {len(rows)} rows; the largest mark is {most:,} {noun}"
    return document(frame, title, desc, parts)


def cell_chart(
    rows: Sequence[Head],
    columns: Sequence[Head],
    values: Sequence[Sequence[float]],
    describe: Callable[[int, int], tuple[str, str]],
    *,
    width: int,
    title: str,
    ends: tuple[str, str] = ("-1", "1"),
) -> str:
    """Clients across, each with the strip of its group; cells shaded from -1 (one colour) over 0 to 1 (the other).

    `describe(row, column)` returns a cell's number, which is written in it if it fits, and its tooltip.
    """
    square = rows == columns
    slot = min((width - 50) / len(columns), LARGEST_CELL)
    pitch = slot if square else max(3.0, min(max(slot, 14.0), 300 / len(rows), 30.0))
    foot = 36 + pitch * len(rows)
    frame = Frame(width, foot + 66, left=42, right=width - 42 - slot * len(columns), top=36, bottom=66)
    parts = [heading(title)]
    parts += [_cell_heads(rows, pitch, frame, down=True), _cell_heads(columns, slot, frame, down=False)]
    many = len(rows) * len(columns) > MOST_TOOLTIPS
    for i in range(len(rows)):
        for j in range(len(columns)):
            corner = (frame.left + j * slot, frame.top + i * pitch)
            number, tip = describe(i, j)
            parts.append(_cell(corner, (slot, pitch), values[i][j], number, "" if many else tip))
    if square:
        parts += [_block(first, size, slot, frame) for first, size in _blocks(rows) if size < len(rows)]
    middle = frame.left + slot * len(columns) / 2
    parts.append(f'<text class="axis mid" x="{n(middle)}" y="{n(foot + 32)}">client</text>')
    parts.append(_scale(frame.left, foot + 56, ends))
    return document(frame, title, f"{len(rows)} rows, {len(columns)} columns, from {ends[0]} to {ends[1]}", parts)


def point_map(heads: Sequence[Head], points: Sequence[Point], *, width: int, title: str) -> str:
    """Points in the plane, coloured and shaped by group, named if there is room; one scale for both axes."""
    frame = Frame(width, 0.88 * width, left=2, right=2, top=26, bottom=2)
    inner = frame.height - frame.top - frame.bottom
    xs, ys = [x for x, _ in points], [y for _, y in points]
    span = max(max(xs) - min(xs), (max(ys) - min(ys)) * frame.inner / inner, 1e-9) * 1.16
    scale = frame.inner / span
    x_middle, y_middle = (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2
    middle = (frame.left + frame.inner / 2, frame.top + inner / 2)
    places = [(middle[0] + (x - x_middle) * scale, middle[1] - (y - y_middle) * scale) for x, y in points]
    box = f'x="{n(frame.left)}" y="{n(frame.top)}" width="{n(frame.inner)}" height="{n(inner)}" rx="4"'
    parts = [heading(title), f'<rect class="grid" {box}/>']
    for head, point, place in zip(heads, points, places, strict=True):
        group = f", {head.group}" if head.group else ""
        tip = f"<title>{escape(f'{head.name}{group}: {point[0]:.3f}, {point[1]:.3f}')}</title>"
        colour = series_class(head.series or 0)
        parts.append(f'<path class="mark {colour}" d="{shape_path(head.series or 0, place)}">{tip}</path>')
    if len(heads) <= MOST_NAMES:
        names = [head.name.rpartition(" ")[2] for head in heads]
        for name, (x, y, anchor, free) in zip(names, label_places(places, names, frame), strict=True):
            if free:
                parts.append(f'<text class="tick {anchor}" x="{n(x)}" y="{n(y)}">{escape(name)}</text>')
    return document(frame, title, f"{len(points)} points", parts)


def evenly(count: int, most: int) -> Sequence[int]:
    """Return at most so many of the numbers below `count`, evenly chosen, the first and the last among them."""
    return range(count) if count <= most else [index * (count - 1) // (most - 1) for index in range(most)]


def _client_ticks(clients: Sequence[int], slot: float, frame: Frame) -> str:
    """Client numbers under their columns, only some of them if space is short."""
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if step * slot >= 22)
    foot = frame.height - frame.bottom + 17
    ticks = [
        f'<text class="tick mid" x="{n(frame.left + (place + 0.5) * slot)}" y="{n(foot)}">{clients[place]}</text>'
        for place in range(0, len(clients), every)
    ]
    middle = n(frame.left + frame.inner / 2)
    return "".join(ticks) + f'<text class="axis mid" x="{middle}" y="{n(frame.height - 5)}">client</text>'


def _sorted_curves(series: Sequence[Bars], width: int, title: str) -> str:
    """For many clients: their accuracies sorted from worst to best."""
    lines = []
    for one in series:
        values = sorted(value for value in one.values if value is not None)
        steps = max(1, len(values) - 1)
        shown = evenly(len(values), MOST_POINTS)
        points = tuple((100 * index / steps, values[index]) for index in shown)
        lines.append(Curve(one.label, points, one.colour, tag=False))
    return line_chart(
        lines, width=width, title=title, y_label="accuracy (%)", x_label="clients, worst to best (%)", unit="%"
    )


def _bar(one: Bars, client: int, value: float | None, left: float, width: float, up: Axis) -> str:
    """One client's bar; a dash on the axis for a client without test images."""
    tip = f"{escape(one.label)}, client {client}: " + ("no test images" if value is None else f"{value:.2f}%")
    top = up.start - 1 if value is None else up.at(value)
    gap = min(1.0, width / 5)
    shape = f'x="{n(left + gap / 2)}" y="{n(top)}" width="{width - gap:.2f}" height="{n(max(0.5, up.start - top))}"'
    kind = "none" if value is None else series_class(one.colour)
    return f'<rect class="bar {kind}" {shape} rx="{1.5 if width > 6 else 0}"><title>{tip}</title></rect>'


def _extent(values: Sequence[float | None]) -> str:
    """The range from worst to best, in words."""
    known = [value for value in values if value is not None]
    return f"{min(known):.1f} to {max(known):.1f} percent" if known else "nothing measured"


def _row_name(name: str, letters: int, frame: Frame, pitch: float, index: int) -> str:
    """A row's name, shortened to fit; its tooltip has it in full."""
    shown = cut(name, letters)
    y = n(frame.top + (index + 0.5) * pitch)
    text = f'<text class="tick end" x="{n(frame.left - 8)}" y="{y}" dy=".34em">{escape(shown)}'
    hair = f'<path class="grid" d="M{n(frame.left)} {y}H{n(frame.width - frame.right)}"/>'
    return f"{hair}{text}<title>{escape(name)}</title></text>"


def _mark(middle: Point, slot: float, pitch: float, share: float, tip: str) -> str:
    """A circle whose area is the share, or a shaded cell if columns are too narrow for circles."""
    title = f"<title>{escape(tip)}</title>" if tip else ""
    x, y = middle
    if slot < 7:
        box = f'x="{x - slot / 2:.2f}" y="{n(y - pitch / 2 + 1)}" width="{slot:.2f}" height="{n(pitch - 2)}"'
        return f'<rect class="mark s0" {box} fill-opacity="{0.15 + 0.85 * math.sqrt(share):.2f}">{title}</rect>'
    radius = max(1.0, 0.47 * min(slot, pitch) * math.sqrt(share))
    return f'<circle class="mark s0" cx="{n(x)}" cy="{n(y)}" r="{radius:.2f}">{title}</circle>'


def _cell_heads(heads: Sequence[Head], step: float, frame: Frame, *, down: bool) -> str:
    """The names along one side, only some if space is short, and the strip of their groups' colours."""
    every = math.ceil((13 if down else 21) / step)
    parts = []
    for index, head in enumerate(heads):
        middle = n((frame.top if down else frame.left) + (index + 0.5) * step)
        foot = frame.height - frame.bottom + 15
        if index % every == 0:
            place = (
                f'end" x="{n(frame.left - 12)}" y="{middle}" dy=".34em"' if down else f'mid" x="{middle}" y="{n(foot)}"'
            )
            parts.append(f'<text class="tick {place}>{escape(head.name)}</text>')
        if head.series is not None:
            start = (frame.top if down else frame.left) + index * step
            box = (frame.left - 9, start, 5.0, step) if down else (start, frame.top - 9, step, 5.0)
            shape = 'x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"'.format(*box)
            tip = f"<title>{escape(head.group)}</title>" if head.group else ""
            parts.append(f'<rect class="strip {series_class(head.series)}" {shape}>{tip}</rect>')
    return "".join(parts)


def _cell(corner: Point, size: Point, value: float, number: str, tip: str) -> str:
    """One shaded cell, with a thin gap beside it if there is room."""
    gap = 1.0 if min(size) >= 10 else 0.0
    shape = f'x="{corner[0]:.2f}" y="{corner[1]:.2f}" width="{size[0] - gap:.2f}" height="{size[1] - gap:.2f}"'
    kind = f'class="cell {"more" if value >= 0 else "less"}"'
    shade = f'fill-opacity="{min(1.0, abs(value)):.2f}"'
    if not tip:
        return f"<rect {kind} {shape} {shade}/>"
    text = ""
    if size[0] >= ROOMY_CELL and size[1] >= 16:
        x, y = corner[0] + (size[0] - gap) / 2, corner[1] + (size[1] - gap) / 2
        text = f'<text class="mid in-cell" x="{n(x)}" y="{n(y)}" dy=".34em">{escape(number)}</text>'
    return f"<g {kind}><rect {shape} {shade}/>{text}<title>{escape(tip)}</title></g>"


def _blocks(heads: Sequence[Head]) -> list[tuple[int, int]]:
    """Runs of at least two neighbours of one group, as (first, count)."""
    found: list[tuple[int, int]] = []
    first = 0
    for index in range(1, len(heads) + 1):
        if index == len(heads) or heads[index].series != heads[first].series:
            if index - first > 1 and heads[first].series is not None:
                found.append((first, index - first))
            first = index
    return found


def _block(first: int, size: int, slot: float, frame: Frame) -> str:
    """The outline of a group's own cells."""
    shape = f'x="{frame.left + first * slot - 0.5:.2f}" y="{frame.top + first * slot - 0.5:.2f}"'
    return f'<rect class="block" {shape} width="{size * slot:.2f}" height="{size * slot:.2f}"/>'


def _scale(left: float, y: float, ends: tuple[str, str]) -> str:
    """The scale of shades from -1 to 1, with both ends named."""
    start = left + 6.6 * len(ends[0]) + 8
    parts = [f'<text class="tick end" x="{n(start - 8)}" y="{n(y)}">{escape(ends[0])}</text>']
    for step in range(-5, 6):
        shape = f'x="{n(start + 10 * (step + 5))}" y="{n(y - 10)}" width="10" height="11"'
        side = "more" if step >= 0 else "less"
        parts.append(f'<rect class="cell {side}" {shape} fill-opacity="{abs(step) / 5:.1f}"/>')
    return "".join(parts) + f'<text class="tick" x="{n(start + 118)}" y="{n(y)}">{escape(ends[1])}</text>'
