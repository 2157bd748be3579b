"""Figures of classes as SVG text: confusion matrices, recalls, and confidence against accuracy.

Each function takes plain values and a width, and returns one `<svg>`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from promptfed.results.folder.metrics import ReliabilityBin
from promptfed.results.report.svg import (
    Axis,
    Frame,
    cut,
    document,
    heading,
    n,
    series_class,
    x_ticks,
    y_grid,
)

MOST_NUMBERED = 15  # classes whose counts are written in the cells, with tooltips
MOST_RECALLS = 40  # classes that have a bar
SHADES = 20
LEAST = 0.01  # the share of answers that a bin needs for the line to go through it
PERCENT = (0.0, 25.0, 50.0, 75.0, 100.0)


@dataclass(frozen=True)
class RecallBar:
    """One class in percent: of all test images with its interval, and of one client; None where there are no images."""

    name: str
    value: float | None
    interval: tuple[float, float] | None
    other: float | None


@dataclass(frozen=True)
class ReliabilityLine:
    """The bins of one method, or of one client."""

    label: str
    bins: tuple[ReliabilityBin, ...]
    colour: int


def confusion_chart(classes: Sequence[str], counts: Sequence[Sequence[int]], *, width: int, title: str) -> str:
    """True classes down, answers across; the darker a cell, the larger its share of its row."""
    count = len(classes)
    letters = 14 if count <= MOST_NUMBERED else 10
    left = 7.0 * min(letters, max(map(len, classes), default=0)) + 30
    slot = min((width - left - 4) / count, 40)
    frame = Frame(width, 80 + slot * count, left=left, right=width - left - slot * count, top=40, bottom=40)
    every = math.ceil(13 / slot)
    parts = [heading(title)]
    for index in range(0, count, every):
        middle = (index + 0.5) * slot
        name = f"{cut(classes[index], letters)} {index}"
        place = f'x="{n(left - 6)}" y="{n(frame.top + middle)}" dy=".34em"'
        parts.append(f'<text class="tick end" {place}>{escape(name)}<title>{escape(classes[index])}</title></text>')
    for index in range(0, count, math.ceil(22 / slot)):
        middle = left + (index + 0.5) * slot
        parts.append(f'<text class="tick mid" x="{n(middle)}" y="{n(frame.top - 5)}">{index}</text>')
    parts.append(f'<rect class="grid" x="{n(left)}" y="40" width="{n(slot * count)}" height="{n(slot * count)}"/>')
    draw = _numbered if count <= MOST_NUMBERED else _shaded
    parts.append(draw(classes, counts, slot, frame))
    parts.append(
        f'<text class="axis mid" x="{n(left + slot * count / 2)}" y="{n(frame.height - 14)}">answer, by number</text>'
    )
    right, total = sum(counts[i][i] for i in range(count)), sum(map(sum, counts))
    return document(frame, title, f"{count} classes; {right:,} of {total:,} answers are right", parts)


def _numbered(classes: Sequence[str], counts: Sequence[Sequence[int]], slot: float, frame: Frame) -> str:
    """Return the cells that are not empty, each with its count."""
    parts = []
    for i, row in enumerate(counts):
        for j, images in enumerate(row):
            if not images:
                continue
            x, y, share = frame.left + j * slot, frame.top + i * slot, images / sum(row)
            shape = f'x="{n(x + 0.5)}" y="{n(y + 0.5)}" width="{n(slot - 1)}" height="{n(slot - 1)}"'
            middle = f'x="{n(x + slot / 2)}" y="{n(y + slot / 2)}"'
            number = f'<text class="mid in-cell" {middle} dy=".34em">{images}</text>'
            text = number if images < 10 ** (slot / 7.5) else ""
            tip = escape(f"{classes[i]} answered as {classes[j]}: {images:,} of {sum(row):,}")
            parts.append(
                f'<g class="cell {"more" if i == j else "less"}"><rect {shape} fill-opacity="{share:.2f}"/>{text}'
                f"<title>{tip}</title></g>"
            )
    return "".join(parts)


def _shaded(classes: Sequence[str], counts: Sequence[Sequence[int]], slot: float, frame: Frame) -> str:
    """Return the cells that are not empty, a path for each shade: there may be many."""
    del classes
    paths: dict[tuple[str, int], list[str]] = {}
    for i, row in enumerate(counts):
        for j, images in enumerate(row):
            if images:
                kind, shade = "more" if i == j else "less", math.ceil(SHADES * images / sum(row))
                corner = f"M{n(frame.left + j * slot)} {n(frame.top + i * slot)}"
                paths.setdefault((kind, shade), []).append(f"{corner}h{slot:.2f}v{slot:.2f}h-{slot:.2f}z")
    return "".join(
        f'<path class="cell {kind}" fill-opacity="{shade / SHADES:.2f}" d="{"".join(cells)}"/>'
        for (kind, shade), cells in sorted(paths.items())
    )


def recall_chart(bars: Sequence[RecallBar], *, width: int, title: str, other: str) -> str:
    """A bar per class with its interval as a line; a circle marks the other recall."""
    pitch = 18.0
    left = 7.0 * min(16, max((len(one.name) for one in bars), default=0)) + 14
    frame = Frame(width, 66 + pitch * len(bars), left=left, right=16, top=26, bottom=40)
    across = Axis(0, 100, frame.left, frame.left + frame.inner, PERCENT)
    foot = frame.height - frame.bottom
    parts = [heading(title)]
    parts += [f'<path class="grid" d="M{n(across.at(tick))} {n(frame.top)}V{n(foot)}"/>' for tick in PERCENT]
    parts.append(x_ticks(across, frame, "recall (%)"))
    for index, one in enumerate(bars):
        y = frame.top + (index + 0.5) * pitch
        name = f"<title>{escape(one.name)}</title></text>"
        parts.append(
            f'<text class="tick end" x="{n(left - 8)}" y="{n(y)}" dy=".34em">{escape(cut(one.name, 16))}{name}'
        )
        parts.append(_recall(one, y, across, other))
    return document(frame, title, f"the recall of {len(bars)} classes", parts)


def _recall(one: RecallBar, y: float, across: Axis, other: str) -> str:
    if one.value is None:
        return f'<text class="tick" x="{n(across.start + 4)}" y="{n(y)}" dy=".34em">no test images</text>'
    low, high = one.interval or (one.value, one.value)
    tip = f"{one.name}: {one.value:.1f} % ({low:.1f}–{high:.1f})"
    tip += "" if one.other is None else f"; {other} {one.other:.1f} %"
    long = max(0.5, across.at(one.value) - across.start)
    parts = [
        f'<rect class="bar s0" x="{n(across.start)}" y="{n(y - 5)}" width="{n(long)}" height="10" fill-opacity=".55"/>',
        f'<path class="line thin s7" d="M{n(across.at(low))} {n(y)}H{n(across.at(high))}"/>',
    ]
    if one.other is not None:
        parts.append(f'<circle class="mark s1" cx="{n(across.at(one.other))}" cy="{n(y)}" r="3.5"/>')
    return f"<g>{''.join(parts)}<title>{escape(tip)}</title></g>"


def reliability_chart(lines: Sequence[ReliabilityLine], *, width: int, title: str) -> str:
    """Accuracy against confidence; on the diagonal they are equal. The larger a dot, the more answers it stands for."""
    frame = Frame(width, 0.86 * width, right=14)
    across = Axis(0, 100, frame.left, frame.left + frame.inner, PERCENT)
    up = Axis(0, 100, frame.height - frame.bottom, frame.top, PERCENT)
    parts = [y_grid(up, frame, "right (%)"), x_ticks(across, frame, "confidence (%)")]
    parts.append(f'<path class="event" d="M{n(across.start)} {n(up.start)}L{n(across.stop)} {n(up.stop)}"/>')
    for line in lines:
        total = sum(one.images for one in line.bins)
        places = [(across.at(100 * one.confidence), up.at(100 * one.accuracy)) for one in line.bins]
        colour = series_class(line.colour)
        firm = [place for one, place in zip(line.bins, places, strict=True) if one.images >= LEAST * total]
        parts.append(f'<path class="line {colour}" d="M{"L".join(f"{n(x)} {n(y)}" for x, y in firm)}"/>')
        for one, (x, y) in zip(line.bins, places, strict=True):
            radius = 2.5 + 7 * math.sqrt(one.images / total)
            tip = (
                f"{line.label}: {one.images:,} answers, {100 * one.confidence:.1f} % sure, "
                f"{100 * one.accuracy:.1f} % right"
            )
            circle = f'<circle cx="{n(x)}" cy="{n(y)}" r="{n(radius)}" fill-opacity=".6"/>'
            parts.append(f'<g class="dot {colour}">{circle}<title>{escape(tip)}</title></g>')
    return document(frame, title, f"confidence against accuracy: {', '.join(line.label for line in lines)}", parts)
