"""How figures are drawn, with matplotlib: from arrays to a plot."""

from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptfed.core.errors import PromptFedError

# The report's colours on white, in its order.
COLOURS = ("#0068a8", "#cc5200", "#00805c", "#b5508a", "#a87400", "#2d93cf", "#6b5bb5", "#6c757d")
# More names than this along an axis are thinned.
MOST_NAMES = 40
# Panels of points side by side, and names one below the other beside them.
MOST_ACROSS, MOST_DOWN = 3, 14
# Letters of a name above a picture before it wraps, and numbers along an axis before they are thinned.
MOST_LETTERS, MOST_PLACES = 72, 16

Plot = Any  # a matplotlib Figure


def blank(width: float, height: float) -> Plot:
    """Return an empty plot of so many inches, or say that matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PromptFedError('Figures need matplotlib: pip install "promptfed[analysis]".') from error
    return Figure(figsize=(width, height), layout="constrained")


def lines(curves: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str) -> Plot:
    """Draw one curve per name; a curve starts at zero, since it is compared with nothing."""
    names, columns, height = _legend(curves)
    picture = blank(6.4, 3.6 + height)
    axes = picture.add_subplot()
    for number, (label, points) in enumerate(zip(names, curves.values(), strict=True)):
        xs, ys = zip(*points, strict=True)
        dotted = "o-" if len(points) == 1 else "-"
        axes.plot(xs, ys, dotted, color=COLOURS[number % len(COLOURS)], label=label)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _tidy(axes)
    if len(curves) > 1:
        picture.legend(frameon=False, loc="outside upper left", ncols=columns, fontsize=9)
    return picture


def times(curves: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str) -> Plot:
    """Draw one curve per name over the logarithm of time."""
    names, columns, height = _legend(curves)
    picture = blank(6.4, 3.6 + height)
    axes = picture.add_subplot()
    for number, (label, points) in enumerate(zip(names, curves.values(), strict=True)):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, "o-", markersize=3, color=COLOURS[number % len(COLOURS)], label=label)
    axes.set_xscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    _tidy(axes)
    picture.legend(frameon=False, loc="outside upper left", ncols=columns, fontsize=9)
    return picture


def spreads(curves: Mapping[str, Sequence[tuple[float, float, float]]], across: str, up: str) -> Plot:
    """Draw one curve per name through points (x, y, spread of y), with a bar where the spread is not zero.

    The axis does not start at zero: such curves are close together, far above it.
    """
    names, columns, height = _legend(curves)
    picture = blank(6.4, 3.6 + height)
    axes = picture.add_subplot()
    for number, (name, points) in enumerate(zip(names, curves.values(), strict=True)):
        xs, ys, bars = zip(*points, strict=True)
        colour, marker = COLOURS[number % len(COLOURS)], "osD^v"[number % 5]
        # a bar of length zero would be a cap across the point
        lengths = [length or float("nan") for length in bars]
        axes.errorbar(xs, ys, lengths, fmt=f"{marker}-", color=colour, label=name, markersize=4, capsize=3)
    places = sorted({x for points in curves.values() for x, _, _ in points})
    if len(places) <= MOST_PLACES:
        axes.set_xticks(places)
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    _tidy(axes)
    picture.legend(frameon=False, loc="outside upper left", ncols=columns, fontsize=9)
    return picture


def _legend(names: Iterable[str]) -> tuple[list[str], int, float]:
    """Return names broken into lines for a legend above the axes, its columns and its height."""
    broken = [fill(name, MOST_LETTERS) for name in names]
    columns = 1 if max(map(len, broken)) > MOST_LETTERS // 3 else min(len(broken), MOST_ACROSS)
    return broken, columns, 0.2 * (len(broken) / columns + sum(name.count("\n") for name in broken))


def heat_maps(panels: Mapping[str, NDArray[Any]], rows: Sequence[str], columns: Sequence[str], across: str) -> Plot:
    """Draw panels of values [rows, columns] one above the other, all on one scale from zero."""
    width = min(12.0, max(4.5, 2.0 + 0.28 * len(columns)))
    picture = blank(width, len(panels) * min(7.0, max(1.6, 0.8 + 0.2 * len(rows))))
    most = max(float(values.max(initial=0)) for values in panels.values()) or 1.0
    every = picture.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (title, values) in zip(every, panels.items(), strict=True):
        shown = axes.imshow(values, aspect="auto", cmap="Blues", vmin=0, vmax=most, interpolation="nearest")
        axes.set_title(title, fontsize=10, loc="left")
        _names(axes.set_yticks, rows)
        _names(axes.set_xticks, columns)
    every[-1].set_xlabel(across)
    picture.colorbar(shown, ax=list(every), shrink=0.9)
    return picture


def scatter(points: NDArray[Any], groups: NDArray[Any], noun: str) -> Plot:
    """Draw points [N, 2] of the plane, coloured and shaped by their groups [N]."""
    picture = blank(6.4, 4.8)
    axes = picture.add_subplot()
    _dots(axes, points, groups, noun)
    if len(set(groups.tolist())) <= MOST_NAMES:
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return picture


def scatters(panels: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], noun: str) -> Plot:
    """Draw panels of points [N, G, 2] of G groups side by side, and over them a cross for each group [G, 2]."""
    across = min(len(panels), MOST_ACROSS)
    down = -(-len(panels) // across)
    picture = blank(4.2 * across + 2.2, 4.4 * down)
    grid = picture.subplots(down, across, squeeze=False)
    for axes, (title, (points, crosses)) in zip(grid.flat, panels.items(), strict=False):
        groups = np.arange(len(crosses))
        _dots(axes, points.reshape(-1, 2), np.tile(groups, len(points)), noun)
        colours = [COLOURS[group % len(COLOURS)] for group in groups]
        axes.scatter(crosses[:, 0], crosses[:, 1], s=60, marker="x", color=colours)
        axes.set_title(title, fontsize=10, loc="left")
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    handles, names = grid[0, 0].get_legend_handles_labels()
    if len(names) <= MOST_NAMES:
        columns = -(-len(names) // MOST_DOWN)
        picture.legend(handles, names, frameon=False, loc="outside right center", fontsize=8, ncols=columns)
    return picture


def _dots(axes: Any, points: NDArray[Any], groups: NDArray[Any], noun: str) -> None:
    for number, group in enumerate(dict.fromkeys(groups.tolist())):
        own = points[groups == group]
        marker = "osD^v"[number // len(COLOURS) % 5]
        colour = COLOURS[number % len(COLOURS)]
        axes.scatter(own[:, 0], own[:, 1], s=12, marker=marker, color=colour, label=f"{noun} {group}")
    axes.set_xticks([])
    axes.set_yticks([])


def bars(
    series: Mapping[str, Sequence[float]], columns: Sequence[str], across: str, up: str, levels: Mapping[str, float]
) -> Plot:
    """Draw a group of bars per column, one of each series, and the level it is to be compared with as a dotted line."""
    names, abreast, height = _legend(series)
    picture = blank(min(12.0, max(6.4, 1.5 + 0.35 * len(columns) * max(1, len(series) / 2))), 3.6 + height)
    axes = picture.add_subplot()
    places, width = np.arange(len(columns)), 0.8 / len(series)
    for number, (label, values) in enumerate(zip(names, series.values(), strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(places + (number + 0.5) * width - 0.4, values, width, color=colour, label=label)
    for level in dict.fromkeys(round(value, 6) for value in levels.values()):
        axes.axhline(level, color="#5a6470", linestyle=":", linewidth=1)
    _names(axes.set_xticks, columns)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_ylim(0, 1)
    _tidy(axes)
    picture.legend(frameon=False, loc="outside upper left", ncols=abreast, fontsize=9)
    return picture


def pictures(rows: Mapping[str, Sequence[NDArray[Any]]], columns: Sequence[str]) -> Plot:
    """Draw images [H, W, 3] in rows of one kind each, a column per example."""
    picture = blank(0.9 + 1.25 * len(columns), 0.5 + 1.3 * len(rows))
    grid = picture.subplots(len(rows), len(columns), squeeze=False)
    for line, (name, images) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(line, images, strict=True):
            axes.imshow(image, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(name, fontsize=8)
    for axes, title in zip(grid[0], columns, strict=True):
        axes.set_title(title, fontsize=7)
    return picture


def _names(set_ticks: Any, names: Sequence[str]) -> None:
    """Name the places along an axis, thinned where there are many."""
    every = -(-len(names) // MOST_NAMES) or 1
    set_ticks(range(0, len(names), every), names[::every], fontsize=8)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e6ea")
    axes.set_axisbelow(True)
