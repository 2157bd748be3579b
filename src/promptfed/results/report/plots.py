"""Figures of methods as SVG text: curves over rounds, traffic, accuracy against traffic.

Each function takes plain values and a width, and returns one `<svg>`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from promptfed.results.report.svg import (
    Axis,
    Frame,
    Point,
    cut,
    document,
    label_places,
    n,
    series_class,
    short,
    tick_text,
    x_axis,
    x_ticks,
    y_axis,
    y_grid,
)
from promptfed.results.report.table import human_bytes


@dataclass(frozen=True)
class Curve:
    """One curve: points, an optional (x, low, high) band, its colour, and its dash ("", "dash" or "dot")."""

    label: str
    points: tuple[Point, ...]
    colour: int
    dash: str = ""
    band: tuple[tuple[float, float, float], ...] = ()
    tag: bool = True


@dataclass(frozen=True)
class Load:
    """What one method sends per client and round, in bytes."""

    label: str
    down: float
    up: float
    colour: int
    notes: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Spot:
    """The accuracy of one method (percent, with its spread over seeds) and how many numbers it exchanges."""

    label: str
    floats: float
    value: float
    spread: float
    colour: int


def line_chart(
    lines: Sequence[Curve],
    *,
    width: int,
    title: str,
    y_label: str,
    x_label: str = "round",
    unit: str = "",
    events: Mapping[float, str] | None = None,
) -> str:
    """Curves over rounds, each with its band and with its last value at its end; an event is a vertical line."""
    frame = Frame(width, 200 + width / 8)
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [e for line in lines for b in line.band for e in b[1:]]
    if not xs:
        return ""
    across = x_axis(min(xs), max(xs), frame)
    # Accuracies are compared with each other; other measures start at zero.
    low = min(ys) if unit == "%" else min(0.0, *ys)
    up = y_axis(low, max(ys), frame, ceiling=100 if unit == "%" else None)
    parts = [y_grid(up, frame, y_label), x_ticks(across, frame, x_label)]
    parts += [_event(x, text, across, frame) for x, text in (events or {}).items() if across.low <= x <= across.high]
    parts += [_band(line, across, up) for line in lines if line.band]
    parts += [_curve(line, across, up, x_label, unit) for line in lines]
    parts.append(_end_values(lines, across, up))
    finals = "; ".join(f"{line.label} ends at {short(line.points[-1][1])}{unit}" for line in lines if line.points)
    return document(frame, title, finals, parts)


def traffic_chart(loads: Sequence[Load], *, width: int, title: str) -> str:
    """Two bars per method, down and up, on a logarithmic scale."""
    frame = Frame(width, 34 + 62 * len(loads), left=8, right=8, top=4)
    sizes = [size for load in loads for size in (load.down, load.up) if size > 0]
    low = math.floor(math.log10(min(sizes, default=1))) - 1
    high = max(math.ceil(math.log10(max(sizes, default=1)) + 1e-9), low + 2)
    # The value is written after its bar, so the scale ends before the frame does.
    across = Axis(low, high, frame.left, frame.left + frame.inner * 0.8, tuple(map(float, range(low, high + 1))))
    parts = [_decades(across, frame)]
    for index, load in enumerate(loads):
        top = frame.top + 62 * index
        parts.append(f'<text class="name" x="{frame.left}" y="{n(top + 13)}">{escape(load.label)}</text>')
        for row, (way, size) in enumerate((("down", load.down), ("up", load.up))):
            parts.append(_load_bar(load, way, size, load.notes[row], across, top + 19 + 18 * row))
    desc = "; ".join(f"{one.label}: {human_bytes(one.down)} down, {human_bytes(one.up)} up" for one in loads)
    return document(frame, title, desc, parts)


def exchange_chart(spots: Sequence[Spot], *, width: int, title: str) -> str:
    """Accuracy against the numbers exchanged, on a logarithmic scale; methods that send nothing are at the left."""
    frame = Frame(width, 250 + width / 8, right=16)
    if not spots:
        return ""
    up = y_axis(
        min(one.value - one.spread for one in spots),
        max(min(100.0, one.value + one.spread) for one in spots),
        frame,
        ceiling=100,
    )
    across = _powers([one.floats for one in spots if one.floats > 0], any(one.floats <= 0 for one in spots), frame)
    silent = frame.left + 26
    parts = [y_grid(up, frame, "mean accuracy (%)"), _power_ticks(across, frame)]
    if across.start > silent:
        foot = frame.height - frame.bottom
        parts.append(f'<path class="grid" d="M{n(silent)} {n(frame.top)}V{n(foot)}"/>')
        parts.append(f'<text class="tick mid" x="{n(silent)}" y="{n(foot + 17)}">none</text>')
    places = [(across.at(math.log10(one.floats)) if one.floats > 0 else silent, up.at(one.value)) for one in spots]
    parts += [_spot(one, place, up) for one, place in zip(spots, places, strict=True)]
    letters = 40 if width > 500 else 18
    names = [cut(one.label, letters) for one in spots]
    for one, name, (x, y, anchor, _) in zip(spots, names, label_places(places, names, frame), strict=True):
        parts.append(
            f'<text class="tag {anchor} {series_class(one.colour)}" x="{n(x)}" y="{n(y)}">{escape(name)}</text>'
        )
    desc = "; ".join(f"{one.label}: {short(one.value)}% for {short(one.floats)} numbers" for one in spots)
    return document(frame, title, desc, parts)


def _path(points: Iterable[Point], across: Axis, up: Axis) -> str:
    return "L".join(f"{n(across.at(x))} {n(up.at(y))}" for x, y in points)


def _event(x: float, text: str, across: Axis, frame: Frame) -> str:
    """A vertical line with its name above it, on the side with more room."""
    place, left = across.at(x), across.at(x) < frame.left + frame.inner / 2
    name = (
        f'<text class="tick {"start" if left else "end"}" x="{n(place)}" y="{n(frame.top - 5)}">{escape(text)}</text>'
    )
    return f'<path class="event" d="M{n(place)} {n(frame.top)}V{n(frame.height - frame.bottom)}"/>{name}'


def _band(line: Curve, across: Axis, up: Axis) -> str:
    """The area between the low and the high edge."""
    there = _path([(x, high) for x, _, high in line.band], across, up)
    back = _path([(x, low) for x, low, _ in reversed(line.band)], across, up)
    return f'<path class="band {series_class(line.colour)}" d="M{there}L{back}Z"/>'


def _curve(line: Curve, across: Axis, up: Axis, x_label: str, unit: str) -> str:
    """The line, and dots with their values as tooltips; of many points only some have a dot."""
    colour = series_class(line.colour)
    parts = [f'<path class="line {line.dash} {colour}" d="M{_path(line.points, across, up)}"/>'] if line.points else []
    every = math.ceil(len(line.points) / 40)
    for x, y in line.points[::-1][::every]:
        tip = f"{escape(line.label)}, {x_label} {tick_text(x)}: {short(y)}{unit}"
        place = f'cx="{n(across.at(x))}" cy="{n(up.at(y))}"'
        parts.append(f'<g class="dot {colour}"><circle {place} r="2.5"/><circle class="hit" {place} r="9"/>')
        parts.append(f"<title>{tip}</title></g>")
    return "".join(parts)


def _end_values(lines: Sequence[Curve], across: Axis, up: Axis) -> str:
    """The last value of each curve at its end, moved apart where two would overlap."""
    ends: dict[float, list[Curve]] = {}
    for line in lines:
        if line.points and line.tag:
            ends.setdefault(line.points[-1][0], []).append(line)
    parts = []
    for x, some in ends.items():
        ordered = sorted(some, key=lambda line: -line.points[-1][1])
        places = _apart([up.at(line.points[-1][1]) for line in ordered], 13, up.start)
        for line, y in zip(ordered, places, strict=True):
            place = f'x="{n(across.at(x) + 7)}" y="{n(y)}" dy=".34em"'
            parts.append(f'<text class="tag {series_class(line.colour)}" {place}>{short(line.points[-1][1])}</text>')
    return "".join(parts)


def _apart(wanted: Sequence[float], gap: float, limit: float) -> list[float]:
    """Sorted positions moved down to keep a gap, then up again to stay within the limit."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + gap) if places else place)
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - gap
    return places


def _decades(axis: Axis, frame: Frame) -> str:
    """Vertical hairlines at powers of ten, named in bytes."""
    foot = frame.height - frame.bottom
    every = max(1, math.ceil(len(axis.ticks) * 52 / (axis.stop - axis.start)))
    return "".join(
        f'<path class="grid" d="M{n(axis.at(tick))} {n(frame.top + 16)}V{n(foot + 8)}"/>'
        f'<text class="tick mid" x="{n(max(axis.at(tick), 16))}" y="{n(foot + 22)}">{human_bytes(10**tick)}</text>'
        for tick in axis.ticks[::every]
    )


def _load_bar(load: Load, way: str, size: float, note: str, across: Axis, top: float) -> str:
    """One direction's bar with its size; an arrow shows the direction without colour."""
    stop = across.at(math.log10(size)) if size > 0 else across.start
    value = human_bytes(size) if size > 0 else "nothing"
    tip = f"{escape(load.label)}, {way}: {value}" + (f", {escape(note)}" if note else "")
    shape = f'x="{n(across.start)}" y="{n(top)}" width="{n(stop - across.start)}" height="14" rx="2"'
    text = f'<text class="tick" x="{n(stop + 6)}" y="{n(top + 7)}" dy=".34em">{"↓" if way == "down" else "↑"} {value}'
    return f'<g class="load {way} {series_class(load.colour)}"><rect {shape}/>{text}</text><title>{tip}</title></g>'


def _powers(floats: Sequence[float], silent: bool, frame: Frame) -> Axis:
    """An axis of powers of ten around what is sent, with room for methods that send nothing."""
    low = math.floor(math.log10(min(floats, default=1)))
    high = max(math.ceil(math.log10(max(floats, default=1))), low + 1)
    start = frame.left + (78 if silent else 14)
    return Axis(low, high, start, frame.width - frame.right - 8, tuple(map(float, range(low, high + 1))))


def _power_ticks(axis: Axis, frame: Frame) -> str:
    """Vertical lines at powers of ten, and what they count."""
    foot = frame.height - frame.bottom
    every = max(1, math.ceil(len(axis.ticks) * 40 / (axis.stop - axis.start)))
    parts = [
        f'<path class="grid" d="M{n(axis.at(tick))} {n(frame.top)}V{n(foot)}"/>'
        f'<text class="tick mid" x="{n(axis.at(tick))}" y="{n(foot + 17)}">{_power_text(int(tick))}</text>'
        for tick in axis.ticks[::every]
    ]
    middle = n(frame.left + frame.inner / 2)
    label = "numbers exchanged per client and round"
    return "".join(parts) + f'<text class="axis mid" x="{middle}" y="{n(frame.height - 5)}">{label}</text>'


def _power_text(power: int) -> str:
    """A power of ten with its letter: 100, 10k, 1M, 10G."""
    letter = ("", "k", "M", "G", "T")[min(power // 3, 4)]
    return f"{10 ** (power - 3 * min(power // 3, 4)):,}{letter}"


def _spot(one: Spot, place: Point, up: Axis) -> str:
    """A dot with its spread over seeds."""
    x, y = place
    spread = f" ± {one.spread:.2f}" if one.spread else ""
    sent = f"{one.floats:,.0f} numbers" if one.floats > 0 else "no number"
    tip = f"{escape(one.label)}: {one.value:.2f}{spread}%, {sent} exchanged per client and round"
    bar = ""
    if one.spread:
        low, high = up.at(one.value - one.spread), up.at(min(100.0, one.value + one.spread))
        caps = f"M{n(x - 5)} {n(low)}H{n(x + 5)}M{n(x - 5)} {n(high)}H{n(x + 5)}"
        bar = f'<path class="line thin {series_class(one.colour)}" d="M{n(x)} {n(low)}V{n(high)}{caps}"/>'
    dot = f'cx="{n(x)}" cy="{n(y)}"'
    circles = f'<circle {dot} r="5.5"/><circle class="hit" {dot} r="12"/>'
    return f'{bar}<g class="dot spot {series_class(one.colour)}">{circles}<title>{tip}</title></g>'
