"""Figures as hand-made SVG text: shapes here, every colour a CSS custom property of the page.

Each function takes plain values and a width, and returns one `<svg>`. A mark's colour is a series number: class
`s0` … `s7` picks the palette entry, so a method keeps its colour in every figure and in light and dark alike.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from promptfed.report.tables import human_bytes

COLOURS = 8
MOST_BARS = 60
LEAST_BAR = 2.0
MOST_TOOLTIPS = 1500

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve: points, an optional (x, low, high) band, its colour, and its dash ("", "dash" or "dot")."""

    label: str
    points: tuple[Point, ...]
    colour: int
    dash: str = ""
    band: tuple[tuple[float, float, float], ...] = ()
    tag: bool = True


@dataclass(frozen=True)
class Bars:
    """One value per client; None where a client has nothing to measure."""

    label: str
    values: tuple[float | None, ...]
    colour: int


@dataclass(frozen=True)
class Load:
    """What one method sends per client and round, in bytes."""

    label: str
    down: float
    up: float
    colour: int
    notes: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Axis:
    """A straight map from values to positions, with its ticks."""

    low: float
    high: float
    start: float
    stop: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """The position of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


@dataclass(frozen=True)
class Frame:
    """The plotting area inside the margins."""

    width: float
    height: float
    left: float = 46
    right: float = 54
    top: float = 30
    bottom: float = 40

    @property
    def inner(self) -> float:
        """The width of the plotting area."""
        return self.width - self.left - self.right


def nice_ticks(low: float, high: float, count: int = 5, whole: bool = False) -> tuple[float, ...]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten apart) that enclose low … high, about `count` of them."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [factor * power for factor in (1, 2, 2.5, 5, 10) if not whole or (factor * power).is_integer()]
    step = next((step for step in steps if step >= rough * 0.999), 1.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))


def line_chart(
    lines: Sequence[Line], *, width: int, title: str, y_label: str, x_label: str = "round", unit: str = ""
) -> str:
    """Curves over rounds, each with its band, its last value written at its end."""
    frame = Frame(width, 200 + width / 8)
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [e for line in lines for b in line.band for e in b[1:]]
    if not xs:
        return ""
    across = _x_axis(min(xs), max(xs), frame)
    # Accuracies are compared with each other, other measures with nothing: those start at zero.
    low = min(ys) if unit == "%" else min(0.0, *ys)
    up = _y_axis(low, max(ys), frame, ceiling=100 if unit == "%" else None)
    parts = [_y_grid(up, frame, y_label), _x_ticks(across, frame, x_label)]
    parts += [_band(line, across, up) for line in lines if line.band]
    parts += [_curve(line, across, up, x_label, unit) for line in lines]
    parts.append(_end_values(lines, across, up))
    finals = "; ".join(f"{line.label} ends at {_short(line.points[-1][1])}{unit}" for line in lines if line.points)
    return _svg(frame, title, finals, parts)


def client_chart(series: Sequence[Bars], *, width: int, title: str) -> str:
    """One group of bars per client, or for many clients one sorted curve per series."""
    frame = Frame(width, 210 + width / 12, right=8)
    count = max(len(one.values) for one in series)
    slot = frame.inner / count
    bar = min(0.84 * slot / len(series), 30)
    if count > MOST_BARS or bar < LEAST_BAR:
        return _sorted_curves(series, width, title)
    tops = [value for one in series for value in one.values if value is not None]
    up = _y_axis(0, max(tops, default=100), frame, ceiling=100)
    parts = [_y_grid(up, frame, "accuracy (%)"), _client_ticks(count, slot, frame)]
    for client in range(count):
        left = frame.left + (client + 0.5) * slot - bar * len(series) / 2
        for index, one in enumerate(series):
            value = one.values[client] if client < len(one.values) else None
            parts.append(_bar(one, client, value, left + index * bar, bar, up))
    desc = "; ".join(f"{one.label}: {_extent(one.values)}" for one in series)
    return _svg(frame, title, desc, parts)


def heat_map(
    rows: Sequence[str], columns: Sequence[Sequence[int]], *, width: int, title: str, noun: str = "images"
) -> str:
    """Clients across, classes (or domains) down; a circle's area, or where it would be tiny a shade, shows how many."""
    letters = 14 if width > 500 else 10
    left = min(max((len(name) for name in rows), default=0), letters) * 7 + 14
    slot = (width - left - 8) / max(1, len(columns))
    pitch = max(min(slot, 26), 12 if len(rows) > 24 else 18)
    frame = Frame(width, 46 + pitch * len(rows), left=left, right=8, top=6)
    most = max((count for column in columns for count in column), default=0) or 1
    named = math.ceil(len(rows) * 12 / (pitch * len(rows) or 1))
    parts = [_row_name(name, letters, frame, pitch, index) for index, name in enumerate(rows) if index % named == 0]
    parts.append(_client_ticks(len(columns), slot, frame))
    marks = sum(1 for column in columns for count in column if count)
    for client, column in enumerate(columns):
        for index, count in enumerate(column):
            if count:
                middle = (left + (client + 0.5) * slot, frame.top + (index + 0.5) * pitch)
                told = f"client {client}, {rows[index]}: {count:,} {noun}" if marks <= MOST_TOOLTIPS else ""
                parts.append(_mark(middle, slot, pitch, count / most, told))
    desc = f"{len(columns)} clients, {len(rows)} rows; the largest mark is {most:,} {noun}"
    return _svg(frame, title, desc, parts)


def traffic_chart(loads: Sequence[Load], *, width: int, title: str) -> str:
    """Two bars per method, down and up, on a logarithmic scale."""
    frame = Frame(width, 34 + 62 * len(loads), left=8, right=8, top=4)
    sizes = [size for load in loads for size in (load.down, load.up) if size > 0]
    low = math.floor(math.log10(min(sizes, default=1))) - 1
    high = max(math.ceil(math.log10(max(sizes, default=1)) + 1e-9), low + 2)
    # The name of the value stands after its bar, so the scale ends before the frame does.
    across = Axis(low, high, frame.left, frame.left + frame.inner * 0.8, tuple(map(float, range(low, high + 1))))
    parts = [_decades(across, frame)]
    for index, load in enumerate(loads):
        top = frame.top + 62 * index
        parts.append(f'<text class="name" x="{frame.left}" y="{_n(top + 13)}">{escape(load.label)}</text>')
        for row, (way, size) in enumerate((("down", load.down), ("up", load.up))):
            parts.append(_load_bar(load, way, size, load.notes[row], across, top + 19 + 18 * row))
    desc = "; ".join(f"{one.label}: {human_bytes(one.down)} down, {human_bytes(one.up)} up" for one in loads)
    return _svg(frame, title, desc, parts)


def _svg(frame: Frame, title: str, desc: str, parts: Iterable[str]) -> str:
    """Wrap the parts; the label and description speak to those who cannot see the figure."""
    width, height = _n(frame.width), _n(frame.height)
    head = f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
    label = escape(title)
    return f'{head} aria-label="{label}"><title>{label}</title><desc>{escape(desc)}</desc>{"".join(parts)}</svg>'


def _n(value: float) -> str:
    """A coordinate with at most one decimal, to keep the page small."""
    return f"{value:.1f}".removesuffix(".0")


def _short(value: float) -> str:
    """A number as a person writes it: 83.2, 0.0041, 12,500."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def _tick_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _x_axis(low: float, high: float, frame: Frame) -> Axis:
    """Rounds: the axis spans exactly what there is, ticks are whole numbers inside it."""
    low, high = (low, high) if high > low else (low - 1, high + 1)
    ticks = nice_ticks(low, high, max(3, int(frame.inner / 60)), whole=True)
    inside = tuple(tick for tick in ticks if low <= tick <= high)
    return Axis(low, high, frame.left, frame.left + frame.inner, inside)


def _y_axis(low: float, high: float, frame: Frame, ceiling: float | None = None) -> Axis:
    """Values: the axis ends on ticks, and percents never pass 100."""
    ticks = nice_ticks(low, high)
    ticks = tuple(tick for tick in ticks if ceiling is None or tick <= ceiling)
    top = ticks[-1] if ticks[-1] >= high else high
    return Axis(ticks[0], top, frame.height - frame.bottom, frame.top, ticks)


def _y_grid(axis: Axis, frame: Frame, label: str) -> str:
    """Horizontal hairlines with their values, and what they measure above them."""
    parts = [f'<text class="axis" x="2" y="12">{escape(label)}</text>']
    for tick in axis.ticks:
        y = _n(axis.at(tick))
        parts.append(f'<path class="grid" d="M{_n(frame.left)} {y}H{_n(frame.left + frame.inner)}"/>')
        parts.append(f'<text class="tick end" x="{_n(frame.left - 7)}" y="{y}" dy=".34em">{_tick_text(tick)}</text>')
    return "".join(parts)


def _x_ticks(axis: Axis, frame: Frame, label: str) -> str:
    """The numbers under a chart, and what they count."""
    foot = frame.height - frame.bottom + 17
    ticks = [f'<text class="tick mid" x="{_n(axis.at(t))}" y="{_n(foot)}">{_tick_text(t)}</text>' for t in axis.ticks]
    middle = _n(frame.left + frame.inner / 2)
    return "".join(ticks) + f'<text class="axis mid" x="{middle}" y="{_n(frame.height - 5)}">{escape(label)}</text>'


def _client_ticks(count: int, slot: float, frame: Frame) -> str:
    """Client numbers under their columns, thinned where they would touch."""
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if step * slot >= 22)
    foot = frame.height - frame.bottom + 17
    ticks = [
        f'<text class="tick mid" x="{_n(frame.left + (client + 0.5) * slot)}" y="{_n(foot)}">{client}</text>'
        for client in range(0, count, every)
    ]
    middle = _n(frame.left + frame.inner / 2)
    return "".join(ticks) + f'<text class="axis mid" x="{middle}" y="{_n(frame.height - 5)}">client</text>'


def _series(number: int) -> str:
    """The class of a series; past the palette the colours repeat, and the labels tell them apart."""
    return f"s{number % COLOURS}"


def _path(points: Iterable[Point], across: Axis, up: Axis) -> str:
    return "L".join(f"{_n(across.at(x))} {_n(up.at(y))}" for x, y in points)


def _band(line: Line, across: Axis, up: Axis) -> str:
    """The area between the low and the high edge."""
    there = _path([(x, high) for x, _, high in line.band], across, up)
    back = _path([(x, low) for x, low, _ in reversed(line.band)], across, up)
    return f'<path class="band {_series(line.colour)}" d="M{there}L{back}Z"/>'


def _curve(line: Line, across: Axis, up: Axis, x_label: str, unit: str) -> str:
    """The stroke, and dots that name their values; of very many points only some carry a dot."""
    colour = _series(line.colour)
    parts = [f'<path class="line {line.dash} {colour}" d="M{_path(line.points, across, up)}"/>'] if line.points else []
    every = math.ceil(len(line.points) / 40)
    for x, y in line.points[::-1][::every]:
        told = f"{escape(line.label)}, {x_label} {_tick_text(x)}: {_short(y)}{unit}"
        place = f'cx="{_n(across.at(x))}" cy="{_n(up.at(y))}"'
        parts.append(f'<g class="dot {colour}"><circle {place} r="2.5"/><circle class="hit" {place} r="9"/>')
        parts.append(f"<title>{told}</title></g>")
    return "".join(parts)


def _end_values(lines: Sequence[Line], across: Axis, up: Axis) -> str:
    """The last value of each curve at its end, moved apart where two would overlap."""
    ends: dict[float, list[Line]] = {}
    for line in lines:
        if line.points and line.tag:
            ends.setdefault(line.points[-1][0], []).append(line)
    parts = []
    for x, some in ends.items():
        ordered = sorted(some, key=lambda line: -line.points[-1][1])
        places = _apart([up.at(line.points[-1][1]) for line in ordered], 13, up.start)
        for line, y in zip(ordered, places, strict=True):
            place = f'x="{_n(across.at(x) + 7)}" y="{_n(y)}" dy=".34em"'
            parts.append(f'<text class="tag {_series(line.colour)}" {place}>{_short(line.points[-1][1])}</text>')
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


def _sorted_curves(series: Sequence[Bars], width: int, title: str) -> str:
    """For many clients: the accuracy that a given share of the clients stays below."""
    lines = []
    for one in series:
        values = sorted(value for value in one.values if value is not None)
        steps = max(1, len(values) - 1)
        points = tuple((100 * index / steps, value) for index, value in enumerate(values))
        lines.append(Line(one.label, points, one.colour, tag=False))
    return line_chart(
        lines, width=width, title=title, y_label="accuracy (%)", x_label="clients, worst to best (%)", unit="%"
    )


def _bar(one: Bars, client: int, value: float | None, left: float, width: float, up: Axis) -> str:
    """One client's bar; a dash on the ground where there is nothing to measure."""
    told = f"{escape(one.label)}, client {client}: " + ("no test images" if value is None else f"{value:.2f}%")
    top = up.start - 1 if value is None else up.at(value)
    gap = min(1.0, width / 5)
    shape = f'x="{_n(left + gap / 2)}" y="{_n(top)}" width="{width - gap:.2f}" height="{_n(max(0.5, up.start - top))}"'
    kind = "none" if value is None else _series(one.colour)
    return f'<rect class="bar {kind}" {shape} rx="{1.5 if width > 6 else 0}"><title>{told}</title></rect>'


def _extent(values: Sequence[float | None]) -> str:
    """From the worst to the best, in words."""
    known = [value for value in values if value is not None]
    return f"{min(known):.1f} to {max(known):.1f} percent" if known else "nothing measured"


def _row_name(name: str, letters: int, frame: Frame, pitch: float, index: int) -> str:
    """A row's name, cut to fit, whole in its tooltip."""
    shown = name if len(name) <= letters else name[: letters - 1] + "…"
    y = _n(frame.top + (index + 0.5) * pitch)
    text = f'<text class="tick end" x="{_n(frame.left - 8)}" y="{y}" dy=".34em">{escape(shown)}'
    hair = f'<path class="grid" d="M{_n(frame.left)} {y}H{_n(frame.width - frame.right)}"/>'
    return f"{hair}{text}<title>{escape(name)}</title></text>"


def _mark(middle: Point, slot: float, pitch: float, share: float, told: str) -> str:
    """A circle whose area is the share, or a shaded cell where columns are too narrow for circles."""
    tip = f"<title>{escape(told)}</title>" if told else ""
    x, y = middle
    if slot < 7:
        box = f'x="{x - slot / 2:.2f}" y="{_n(y - pitch / 2 + 1)}" width="{slot:.2f}" height="{_n(pitch - 2)}"'
        return f'<rect class="mark s0" {box} fill-opacity="{0.15 + 0.85 * math.sqrt(share):.2f}">{tip}</rect>'
    radius = max(1.0, 0.47 * min(slot, pitch) * math.sqrt(share))
    return f'<circle class="mark s0" cx="{_n(x)}" cy="{_n(y)}" r="{radius:.2f}">{tip}</circle>'


def _decades(axis: Axis, frame: Frame) -> str:
    """Vertical hairlines at powers of ten, named in bytes."""
    foot = frame.height - frame.bottom
    every = max(1, math.ceil(len(axis.ticks) * 52 / (axis.stop - axis.start)))
    return "".join(
        f'<path class="grid" d="M{_n(axis.at(tick))} {_n(frame.top + 16)}V{_n(foot + 8)}"/>'
        f'<text class="tick mid" x="{_n(max(axis.at(tick), 16))}" y="{_n(foot + 22)}">{human_bytes(10**tick)}</text>'
        for tick in axis.ticks[::every]
    )


def _load_bar(load: Load, way: str, size: float, note: str, across: Axis, top: float) -> str:
    """One direction's bar with its size; an arrow tells down from up without colour."""
    stop = across.at(math.log10(size)) if size > 0 else across.start
    value = human_bytes(size) if size > 0 else "nothing"
    told = f"{escape(load.label)}, {way}: {value}" + (f", {escape(note)}" if note else "")
    shape = f'x="{_n(across.start)}" y="{_n(top)}" width="{_n(stop - across.start)}" height="14" rx="2"'
    text = f'<text class="tick" x="{_n(stop + 6)}" y="{_n(top + 7)}" dy=".34em">{"↓" if way == "down" else "↑"} {value}'
    return f'<g class="load {way} {_series(load.colour)}"><rect {shape}/>{text}</text><title>{told}</title></g>'
