"""What every SVG figure needs: a frame, axes, and labels that do not overlap. Colours are the page's.

A mark's colour is a series number: class `s0` … `s7` picks the palette entry, so a method keeps its colour in every
figure and in light and dark alike.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = 8
SHAPES = ("circle", "square", "diamond")

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Axis:
    """A linear map from values to positions, with its ticks."""

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


def document(frame: Frame, title: str, desc: str, parts: Iterable[str]) -> str:
    """Wrap the parts in an SVG element; its label and description are for screen readers."""
    width, height = n(frame.width), n(frame.height)
    head = f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
    label = escape(title)
    return f'{head} aria-label="{label}"><title>{label}</title><desc>{escape(desc)}</desc>{"".join(parts)}</svg>'


def n(value: float) -> str:
    """A coordinate with at most one decimal, to keep the page small."""
    return f"{value:.1f}".removesuffix(".0")


def short(value: float) -> str:
    """A number as a person writes it: 83.2, 0.0041, 12,500."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def tick_text(value: float) -> str:
    """Write a tick's value."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def cut(text: str, letters: int) -> str:
    """Shorten a text to at most that many letters."""
    return text if len(text) <= letters else text[: letters - 1] + "…"


def heading(title: str) -> str:
    """Write a figure's name at its top left."""
    return f'<text class="name" x="2" y="13">{escape(title)}</text>'


def series_class(number: int) -> str:
    """The CSS class of a series; beyond the palette, colours repeat and only labels differ."""
    return f"s{number % COLOURS}"


def shape_path(series: int, middle: Point) -> str:
    """The outline of a series' mark; beyond the palette the shape changes, so that groups of one colour differ."""
    x, y = middle
    match SHAPES[series // COLOURS % len(SHAPES)]:
        case "circle":
            return f"M{n(x - 5)} {n(y)}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z"
        case "square":
            return f"M{n(x - 4.5)} {n(y - 4.5)}h9v9h-9Z"
        case _:
            return f"M{n(x)} {n(y - 6)}l6 6l-6 6l-6 -6Z"


def x_axis(low: float, high: float, frame: Frame) -> Axis:
    """The axis of rounds: it spans exactly the given range, with whole numbers as ticks."""
    low, high = (low, high) if high > low else (low - 1, high + 1)
    ticks = nice_ticks(low, high, max(3, int(frame.inner / 60)), whole=True)
    inside = tuple(tick for tick in ticks if low <= tick <= high)
    return Axis(low, high, frame.left, frame.left + frame.inner, inside)


def y_axis(low: float, high: float, frame: Frame, ceiling: float | None = None) -> Axis:
    """The axis of values: it ends on ticks, never beyond the ceiling; equal values get the whole scale."""
    if ceiling is not None and high - low <= 1e-9 * ceiling:
        low, high = 0.0, ceiling
    ticks = nice_ticks(low, high)
    ticks = tuple(tick for tick in ticks if ceiling is None or tick <= ceiling)
    top = ticks[-1] if ticks[-1] >= high else high
    return Axis(ticks[0], top, frame.height - frame.bottom, frame.top, ticks)


def y_grid(axis: Axis, frame: Frame, label: str) -> str:
    """Horizontal hairlines with their values, and what they measure above them."""
    parts = [f'<text class="axis" x="2" y="12">{escape(label)}</text>']
    for tick in axis.ticks:
        y = n(axis.at(tick))
        parts.append(f'<path class="grid" d="M{n(frame.left)} {y}H{n(frame.left + frame.inner)}"/>')
        parts.append(f'<text class="tick end" x="{n(frame.left - 7)}" y="{y}" dy=".34em">{tick_text(tick)}</text>')
    return "".join(parts)


def x_ticks(axis: Axis, frame: Frame, label: str) -> str:
    """The numbers under a chart, and their label."""
    foot = frame.height - frame.bottom + 17
    ticks = [f'<text class="tick mid" x="{n(axis.at(t))}" y="{n(foot)}">{tick_text(t)}</text>' for t in axis.ticks]
    middle = n(frame.left + frame.inner / 2)
    return "".join(ticks) + f'<text class="axis mid" x="{middle}" y="{n(frame.height - 5)}">{escape(label)}</text>'


def label_places(points: Sequence[Point], names: Sequence[str], frame: Frame) -> list[tuple[float, float, str, bool]]:
    """A place for the name beside each point, its anchor, and whether it overlaps no point and no earlier name."""
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
