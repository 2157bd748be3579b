"""Accuracy over the rounds, of one row in detail or of several against each other."""

from collections.abc import Sequence
from dataclasses import dataclass

from promptfed.results.report.figure import Chart, Figure, Key, both_widths
from promptfed.results.report.plots import Curve, line_chart
from promptfed.results.report.svg import Point


@dataclass(frozen=True)
class Trace:
    """How accurate the clients of one row were, as points (round, percent)."""

    label: str
    colour: int
    mean: tuple[Point, ...]
    worst: tuple[Point, ...] = ()
    best: tuple[Point, ...] = ()
    trained: tuple[Point, ...] = ()  # the participants, right after local training
    deployed: tuple[Point, ...] = ()  # the server's own model
    joined: int | None = None  # the round in which newcomers came
    adapts: bool = False  # whether the final models are adapted ones, which these are not


def draw_traces(traces: Sequence[Trace], where: str = "") -> Figure:
    """Draw one row with its band, or the mean and the worst client of several; the caption begins with `where`."""
    lines, keys = _one(traces[0]) if len(traces) == 1 else _many(traces)
    caption = "Test accuracy of the clients with the model they have at the start of a round. "
    caption += (
        "Line: their mean; band: from the worst to the best client."
        if len(traces) == 1
        else "Solid: the mean of the clients; dashed: the worst client."
    )
    joined: dict[int, list[str]] = {}
    for trace in traces:
        if trace.joined is not None:
            joined.setdefault(trace.joined, []).append(trace.label)
    if joined:
        some = [
            f"in round {when}" + ("" if len(names) == len(traces) else f" of {' and '.join(names)}")
            for when, names in joined.items()
        ]
        caption += f" Vertical line: newcomers join {', '.join(some)} and count from then on."
    if adapting := [trace.label for trace in traces if trace.adapts]:
        caption += f" The final accuracy of {' and '.join(adapting)}, after adaptation, is only in the table."
    draw: Chart = lambda width: line_chart(  # noqa: E731
        lines,
        width=width,
        title="Accuracy over the rounds",
        y_label="accuracy (%)",
        unit="%",
        events=dict.fromkeys(map(float, joined), "newcomers join"),
    )
    return both_widths(draw, keys, where + caption)


def _one(trace: Trace) -> tuple[list[Curve], list[Key]]:
    """Return the mean with its band, the mean after local training, and the server's own model."""
    band = tuple((x, worst, best) for (x, worst), (_, best) in zip(trace.worst, trace.best, strict=True))
    lines = [Curve(trace.label, trace.mean, trace.colour, band=band)]
    keys = [Key("line", trace.colour, "mean"), Key("band", trace.colour, "worst to best client")]
    more = {"after local training": trace.trained, "the server's own model": trace.deployed}
    # The palette's last two colours, so that these are not taken for methods.
    for (label, points), dash, other in zip(more.items(), ("dash", "dot"), (6, 7), strict=True):
        if points:
            lines.append(Curve(label, points, other, dash=dash))
            keys.append(Key(dash, other, label))
    return lines, keys


def _many(traces: Sequence[Trace]) -> tuple[list[Curve], list[Key]]:
    """Return the mean and the worst client of each row; bands would overlap."""
    lines = []
    for one in traces:
        lines.append(Curve(one.label, one.mean, one.colour))
        lines.append(Curve(f"{one.label}, worst client", one.worst, one.colour, dash="dash thin", tag=False))
    return lines, [Key("line", line.colour, line.label) for line in lines[::2]]
