"""Figures as hand-made SVG text: shapes here, every colour a CSS custom property of the page.

Each function takes plain values and a width, and returns one `<svg>`. A mark's colour is a series number: class
`s0` … `s7` picks the palette entry, so a method keeps its colour in every figure and in light and dark alike.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from promptfed.report.tables import human_bytes

COLOURS = 8
MOST_BARS = 60
LEAST_BAR = 2.0
MOST_TOOLTIPS = 1500
LARGEST_CELL = 52.0
# A cell this wide has its number written in it.
ROOMY_CELL = 36.0
# More points than this carry no names.
MOST_NAMES = 32
SHAPES = ("circle", "square", "diamond")

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


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
class Spot:
    """What one method reaches (percent, with its spread over seeds) and how many numbers it exchanges for that."""

    label: str
    floats: float
    value: float
    spread: float
    colour: int


@dataclass(frozen=True)
class Head:
    """The name of a row, a column or a point, and the group it belongs to, if any, by series and name."""

    name: str
    series: int | None = None
    group: str = ""


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


def exchange_chart(spots: Sequence[Spot], *, width: int, title: str) -> str:
    """Accuracy against the numbers exchanged, on a logarithmic scale; who sends nothing stands apart at the left."""
    frame = Frame(width, 250 + width / 8, right=16)
    if not spots:
        return ""
    up = _y_axis(
        min(one.value - one.spread for one in spots),
        max(min(100.0, one.value + one.spread) for one in spots),
        frame,
        ceiling=100,
    )
    across = _powers([one.floats for one in spots if one.floats > 0], any(one.floats <= 0 for one in spots), frame)
    silent = frame.left + 26
    parts = [_y_grid(up, frame, "mean accuracy (%)"), _power_ticks(across, frame)]
    if across.start > silent:
        foot = frame.height - frame.bottom
        parts.append(f'<path class="grid" d="M{_n(silent)} {_n(frame.top)}V{_n(foot)}"/>')
        parts.append(f'<text class="tick mid" x="{_n(silent)}" y="{_n(foot + 17)}">none</text>')
    places = [(across.at(math.log10(one.floats)) if one.floats > 0 else silent, up.at(one.value)) for one in spots]
    parts += [_spot(one, place, up) for one, place in zip(spots, places, strict=True)]
    letters = 40 if width > 500 else 18
    names = [_cut(one.label, letters) for one in spots]
    for one, name, (x, y, anchor, _) in zip(spots, names, _label_places(places, names, frame), strict=True):
        parts.append(f'<text class="tag {anchor} {_series(one.colour)}" x="{_n(x)}" y="{_n(y)}">{escape(name)}</text>')
    desc = "; ".join(f"{one.label}: {_short(one.value)}% for {_short(one.floats)} numbers" for one in spots)
    return _svg(frame, title, desc, parts)


def cell_chart(
    rows: Sequence[Head],
    columns: Sequence[Head],
    values: Sequence[Sequence[float]],
    told: Callable[[int, int], tuple[str, str]],
    *,
    width: int,
    title: str,
    ends: tuple[str, str] = ("-1", "1"),
) -> str:
    """Clients across, each with the strip of its group; cells shaded from -1 (one colour) over 0 to 1 (the other).

    `told(row, column)` gives a cell's number as written in it where it fits, and its tooltip.
    """
    square = rows == columns
    slot = min((width - 50) / len(columns), LARGEST_CELL)
    pitch = slot if square else max(3.0, min(max(slot, 14.0), 300 / len(rows), 30.0))
    foot = 36 + pitch * len(rows)
    frame = Frame(width, foot + 66, left=42, right=width - 42 - slot * len(columns), top=36, bottom=66)
    parts = [_heading(title)]
    parts += [_cell_heads(rows, pitch, frame, down=True), _cell_heads(columns, slot, frame, down=False)]
    many = len(rows) * len(columns) > MOST_TOOLTIPS
    for i in range(len(rows)):
        for j in range(len(columns)):
            corner = (frame.left + j * slot, frame.top + i * pitch)
            number, tip = told(i, j)
            parts.append(_cell(corner, (slot, pitch), values[i][j], number, "" if many else tip))
    if square:
        parts += [_block(first, size, slot, frame) for first, size in _blocks(rows) if size < len(rows)]
    middle = frame.left + slot * len(columns) / 2
    parts.append(f'<text class="axis mid" x="{_n(middle)}" y="{_n(foot + 32)}">client</text>')
    parts.append(_scale(frame.left, foot + 56, ends))
    return _svg(frame, title, f"{len(rows)} rows, {len(columns)} columns, from {ends[0]} to {ends[1]}", parts)


def point_map(heads: Sequence[Head], points: Sequence[Point], *, width: int, title: str) -> str:
    """Points in the plane, colour and shape by group, named where there is room; one scale for both axes."""
    frame = Frame(width, 0.88 * width, left=2, right=2, top=26, bottom=2)
    inner = frame.height - frame.top - frame.bottom
    xs, ys = [x for x, _ in points], [y for _, y in points]
    span = max(max(xs) - min(xs), (max(ys) - min(ys)) * frame.inner / inner, 1e-9) * 1.16
    scale = frame.inner / span
    x_middle, y_middle = (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2
    middle = (frame.left + frame.inner / 2, frame.top + inner / 2)
    places = [(middle[0] + (x - x_middle) * scale, middle[1] - (y - y_middle) * scale) for x, y in points]
    box = f'x="{_n(frame.left)}" y="{_n(frame.top)}" width="{_n(frame.inner)}" height="{_n(inner)}" rx="4"'
    parts = [_heading(title), f'<rect class="grid" {box}/>']
    for head, point, place in zip(heads, points, places, strict=True):
        group = f", {head.group}" if head.group else ""
        tip = f"<title>{escape(f'{head.name}{group}: {point[0]:.3f}, {point[1]:.3f}')}</title>"
        colour = _series(head.series or 0)
        parts.append(f'<path class="mark {colour}" d="{shape_path(head.series or 0, place)}">{tip}</path>')
    if len(heads) <= MOST_NAMES:
        names = [head.name.rpartition(" ")[2] for head in heads]
        for name, (x, y, anchor, free) in zip(names, _label_places(places, names, frame), strict=True):
            if free:
                parts.append(f'<text class="tick {anchor}" x="{_n(x)}" y="{_n(y)}">{escape(name)}</text>')
    return _svg(frame, title, f"{len(points)} points", parts)


def shape_path(series: int, middle: Point) -> str:
    """The outline of a series' mark: past the palette the shape changes, so that groups of one colour differ."""
    x, y = middle
    match SHAPES[series // COLOURS % len(SHAPES)]:
        case "circle":
            return f"M{_n(x - 5)} {_n(y)}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z"
        case "square":
            return f"M{_n(x - 4.5)} {_n(y - 4.5)}h9v9h-9Z"
        case _:
            return f"M{_n(x)} {_n(y - 6)}l6 6l-6 6l-6 -6Z"


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
    shown = _cut(name, letters)
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


def _heading(title: str) -> str:
    return f'<text class="name" x="2" y="13">{escape(title)}</text>'


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _powers(floats: Sequence[float], silent: bool, frame: Frame) -> Axis:
    """Powers of ten around what is sent, room being left for those who send nothing."""
    low = math.floor(math.log10(min(floats, default=1)))
    high = max(math.ceil(math.log10(max(floats, default=1))), low + 1)
    start = frame.left + (78 if silent else 14)
    return Axis(low, high, start, frame.width - frame.right - 8, tuple(map(float, range(low, high + 1))))


def _power_ticks(axis: Axis, frame: Frame) -> str:
    """Vertical hairlines at powers of ten, and what is counted."""
    foot = frame.height - frame.bottom
    every = max(1, math.ceil(len(axis.ticks) * 40 / (axis.stop - axis.start)))
    parts = [
        f'<path class="grid" d="M{_n(axis.at(tick))} {_n(frame.top)}V{_n(foot)}"/>'
        f'<text class="tick mid" x="{_n(axis.at(tick))}" y="{_n(foot + 17)}">{_power_text(int(tick))}</text>'
        for tick in axis.ticks[::every]
    ]
    middle = _n(frame.left + frame.inner / 2)
    label = "numbers exchanged per client and round"
    return "".join(parts) + f'<text class="axis mid" x="{middle}" y="{_n(frame.height - 5)}">{label}</text>'


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
        caps = f"M{_n(x - 5)} {_n(low)}H{_n(x + 5)}M{_n(x - 5)} {_n(high)}H{_n(x + 5)}"
        bar = f'<path class="line thin {_series(one.colour)}" d="M{_n(x)} {_n(low)}V{_n(high)}{caps}"/>'
    dot = f'cx="{_n(x)}" cy="{_n(y)}"'
    circles = f'<circle {dot} r="5.5"/><circle class="hit" {dot} r="12"/>'
    return f'{bar}<g class="dot spot {_series(one.colour)}">{circles}<title>{tip}</title></g>'


def _label_places(points: Sequence[Point], names: Sequence[str], frame: Frame) -> list[tuple[float, float, str, bool]]:
    """A place beside each point, its anchor, and whether it is free: covers no point and no earlier name."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    found = []
    for (x, y), name in zip(points, names, strict=True):
        length = 7.8 * len(name) + 4
        tries = [(x + 10, y + rise, "start", x + 9) for rise in (4, 13, -5)]
        tries += [(x - 10, y + rise, "end", x - 9 - length) for rise in (4, 13, -5)]
        tries += [(x, y + rise, "mid", x - length / 2) for rise in (-11, 20)]
        boxes = [(left, base - 11, left + length, base + 3) for _, base, _, left in tries]
        inside = [index for index, box in enumerate(boxes) if _inside(box, frame)]
        free = [index for index in inside if not any(_overlap(boxes[index], other) for other in taken)]
        best = (free or inside or [0])[0]
        if best in free:
            taken.append(boxes[best])
        found.append((*tries[best][:3], best in free))
    return found


def _inside(box: Box, frame: Frame) -> bool:
    left, top, right, bottom = box
    return left >= 4 and top >= frame.top - 4 and right <= frame.width - 2 and bottom <= frame.height - frame.bottom + 4


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _cell_heads(heads: Sequence[Head], step: float, frame: Frame, *, down: bool) -> str:
    """The names along one side, thinned where they would touch, and the strip of their groups' colours."""
    every = math.ceil((13 if down else 21) / step)
    parts = []
    for index, head in enumerate(heads):
        middle = _n((frame.top if down else frame.left) + (index + 0.5) * step)
        foot = frame.height - frame.bottom + 15
        if index % every == 0:
            place = (
                f'end" x="{_n(frame.left - 12)}" y="{middle}" dy=".34em"'
                if down
                else f'mid" x="{middle}" y="{_n(foot)}"'
            )
            parts.append(f'<text class="tick {place}>{escape(head.name)}</text>')
        if head.series is not None:
            start = (frame.top if down else frame.left) + index * step
            box = (frame.left - 9, start, 5.0, step) if down else (start, frame.top - 9, step, 5.0)
            shape = 'x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"'.format(*box)
            tip = f"<title>{escape(head.group)}</title>" if head.group else ""
            parts.append(f'<rect class="strip {_series(head.series)}" {shape}>{tip}</rect>')
    return "".join(parts)


def _cell(corner: Point, size: Point, value: float, number: str, tip: str) -> str:
    """One shaded cell, with a hairline of paper beside it where there is room."""
    gap = 1.0 if min(size) >= 10 else 0.0
    shape = f'x="{corner[0]:.2f}" y="{corner[1]:.2f}" width="{size[0] - gap:.2f}" height="{size[1] - gap:.2f}"'
    kind = f'class="cell {"more" if value >= 0 else "less"}"'
    shade = f'fill-opacity="{min(1.0, abs(value)):.2f}"'
    if not tip:
        return f"<rect {kind} {shape} {shade}/>"
    text = ""
    if size[0] >= ROOMY_CELL and size[1] >= 16:
        x, y = corner[0] + (size[0] - gap) / 2, corner[1] + (size[1] - gap) / 2
        text = f'<text class="mid in-cell" x="{_n(x)}" y="{_n(y)}" dy=".34em">{escape(number)}</text>'
    return f"<g {kind}><rect {shape} {shade}/>{text}<title>{escape(tip)}</title></g>"


def _blocks(heads: Sequence[Head]) -> list[tuple[int, int]]:
    """Neighbours of one group, as (first, how many), where there are at least two."""
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
    """The shades from -1 to 1 between the names of their ends."""
    start = left + 6.6 * len(ends[0]) + 8
    parts = [f'<text class="tick end" x="{_n(start - 8)}" y="{_n(y)}">{escape(ends[0])}</text>']
    for step in range(-5, 6):
        shape = f'x="{_n(start + 10 * (step + 5))}" y="{_n(y - 10)}" width="10" height="11"'
        side = "more" if step >= 0 else "less"
        parts.append(f'<rect class="cell {side}" {shape} fill-opacity="{abs(step) / 5:.1f}"/>')
    return "".join(parts) + f'<text class="tick" x="{_n(start + 118)}" y="{_n(y)}">{escape(ends[1])}</text>'
