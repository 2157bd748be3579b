"""How sure a run's numbers are, and for whom they hold: intervals, classes, and confidence."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from markupsafe import Markup

from promptfed.results.folder import names
from promptfed.results.folder.metrics import Interval, Metrics
from promptfed.results.folder.reader import RunFolder
from promptfed.results.metrics import LESS_IS_BETTER, METRICS, TITLES
from promptfed.results.metrics.resampling import LEVEL, RESAMPLES
from promptfed.results.report.class_plots import (
    MOST_RECALLS,
    RecallBar,
    ReliabilityLine,
    confusion_chart,
    recall_chart,
    reliability_chart,
)
from promptfed.results.report.figure import SMALL, Figure, Key
from promptfed.results.report.groups import RunGroup
from promptfed.results.report.measures import shared_headline
from promptfed.results.report.table import Cell, Column, Table, percent

MOST_WHOLE = 6  # methods that are shown with every measure
MOST_DRAWN = 4  # methods whose classes are drawn one by one


def draw_intervals(groups: Sequence[RunGroup], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Show every measure with its interval: of all images, of the mean client and of the worst one."""
    del colours
    found = _measured(groups)
    if found:
        yield Figure(Markup(), Markup(), (), where + _about(groups), _table(found))
    if any((run.path / names.FEDERATION).is_file() for group in groups for run in group.runs):
        words = (
            "Over real sites there are none of these: they need the answer for every test image, and those answers "
            "stay at the sites."
        )
        yield Figure(Markup('<p class="note">{}</p>').format(words), Markup(), (), "")


def draw_classes(groups: Sequence[RunGroup], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Draw confidence against accuracy, and for a few methods the classes that are recalled and confused."""
    found = _measured(groups)
    if not found:
        return
    lines = [ReliabilityLine(label, one.reliability, colours[label]) for label, _, one in found]
    if len(found) == 1 and found[0][2].worst_reliability:
        one = found[0][2]
        lines = [ReliabilityLine("all test images", one.reliability, 0)]
        lines.append(ReliabilityLine(f"client {one.worst_client}", one.worst_reliability, 1))
    keys = [Key("line", line.colour, line.label) for line in lines] if len(lines) > 1 else []
    drawn = reliability_chart(lines, width=SMALL, title="Confidence against accuracy")
    caption = (
        f"{where}How often answers are right, by how sure they are. On the dashed line both are equal; below it the "
        "model is too sure. The larger a dot, the more answers."
    )
    yield Figure(Markup(drawn), Markup(), tuple(keys), caption)
    if len(found) <= MOST_DRAWN:
        for label, run, one in found:
            yield from _one_group(f"{where}{label}. " if len(found) > 1 else where, run, one)


def headline_tiles(groups: Sequence[RunGroup]) -> list[tuple[str, str, str]]:
    """Return name, value and detail of the main numbers, if they are of another measure than accuracy."""
    first = shared_headline([run for group in groups for run in group.runs])
    found = [(label, one.scores[first]) for label, _, one in _measured(groups)]
    if first == METRICS[0] or any(one.mean is None or one.worst is None for _, one in found):
        return []
    pick = min if first in LESS_IS_BETTER else max
    label, mean = pick(found, key=lambda pair: pair[1].mean or 0)
    other, worst = pick(found, key=lambda pair: pair[1].worst or 0)
    several = len(found) > 1
    return [
        (
            f"Mean {TITLES[first]}",
            percent(mean.mean or 0),
            f"best of all: {label}" if several else _range(mean.mean_interval, " % with other test images"),
        ),
        (
            "Worst client",
            percent(worst.worst or 0),
            f"best of all: {other}"
            if several
            else f"client {worst.worst_client}; {_range(worst.worst_interval, ' %')}",
        ),
    ]


def _measured(groups: Sequence[RunGroup]) -> list[tuple[str, RunFolder, Metrics]]:
    """Return the first run of each group that has measures."""
    found = []
    for group in groups:
        run = next((run for run in group.runs if run.metrics), None)
        if run is not None and run.metrics is not None:
            found.append((group.label, run, run.metrics))
    return found


def _about(groups: Sequence[RunGroup]) -> str:
    seeds = " They are of each method's first seed." if any(len(group.runs) > 1 for group in groups) else ""
    return (
        f"In percent; below each number the middle {100 * LEVEL:.0f} % of {RESAMPLES:,} resamples of the test images, "
        "drawn within each client: how much it would vary with other test images of the same clients, not with other "
        "clients or another training. Balanced accuracy, macro-F1 and AUROC count every class once, however rare. ECE, "
        f"the expected calibration error, is better the lower it is.{seeds}"
    )


def _table(found: Sequence[tuple[str, RunFolder, Metrics]]) -> Table:
    """Return a row per measure, or per method where there are many."""
    several = len(found) > 1
    first = shared_headline([run for _, run, _ in found])
    shown = (first, *(metric for metric in METRICS if metric != first)) if len(found) <= MOST_WHOLE else (first,)
    heads = [Column("method", "", ("method",), False)] if several else []
    heads += [Column("measure", "", ("measure",), False)]
    heads += [Column(title, "", (title,)) for title in ("all images", "mean of clients", "worst client")]
    rows = []
    for metric in shown:
        for label, _, one in found:
            scores = one.scores[metric]
            cells = [_text(label)] if several else []
            cells += [
                _text(TITLES[metric]),
                _ranged(scores.pooled, scores.pooled_interval),
                _ranged(scores.mean, scores.mean_interval),
                _ranged(scores.worst, scores.worst_interval, f" (client {scores.worst_client})"),
            ]
            rows.append(tuple(cells))
    return Table(tuple(heads), tuple(rows), 1 + several)


def _one_group(where: str, run: RunFolder, one: Metrics) -> Iterator[Figure]:
    """Draw which classes a method confuses, and how many it recalls: of all images and of the worst client."""
    classes = run.partition.classes if run.partition else tuple(f"class {k}" for k in range(len(one.recall)))
    worst = f"client {one.worst_client}"
    for counts, title, whose in (
        (one.confusion, "All test images", "all clients"),
        (one.worst_confusion, f"The worst client, {one.worst_client}", f"{worst}, the worst by {TITLES[one.headline]}"),
    ):
        if counts:
            caption = (
                f"{where}What the test images of {whose} were taken for: their class down, the answer across. Purple: "
                "right; the darker a cell, the larger its share of the class."
            )
            drawn = confusion_chart(classes, counts, width=SMALL, title=title)
            yield Figure(Markup(drawn), Markup(), (), caption)
    bars, rest = _recall_bars(classes, one)
    caption = f"{where}The share of each class that is recognised. Bar: all test images; line: its interval{rest}."
    keys = [Key("bar", 0, "all test images")]
    if any(bar.other is not None for bar in bars):
        keys.append(Key("group", 1, worst))
    drawn = recall_chart(bars, width=SMALL, title="Recall by class", other=worst)
    yield Figure(Markup(drawn), Markup(), tuple(keys), caption)


def _recall_bars(classes: Sequence[str], one: Metrics) -> tuple[list[RecallBar], str]:
    """Return a bar per class, or of many classes those with the lowest recall, and a remark on that."""
    worst = one.worst_recall or (None,) * len(one.recall)
    parts = zip(classes, one.recall, one.recall_intervals, worst, strict=True)
    bars = [
        RecallBar(
            name,
            None if value is None else 100 * value,
            None if ends is None else (100 * ends[0], 100 * ends[1]),
            None if other is None else 100 * other,
        )
        for name, value, ends, other in parts
    ]
    if len(bars) <= MOST_RECALLS:
        return bars, ""
    known = sorted((bar for bar in bars if bar.value is not None), key=lambda bar: bar.value or 0)
    return known[:MOST_RECALLS], f". Of {len(bars)} classes, the {MOST_RECALLS} with the lowest recall"


def _ranged(value: float | None, interval: Interval | None, more: str = "") -> Cell:
    if value is None:
        return Cell("–", ("",))
    return Cell(f"{percent(value)}{_bracketed(interval)}{more}", (percent(value),))


def _bracketed(interval: Interval | None) -> str:
    return f" ({_range(interval)})" if interval else ""


def _range(interval: Interval | None, unit: str = "") -> str:
    return f"{100 * interval[0]:.1f}–{100 * interval[1]:.1f}{unit}" if interval else ""


def _text(words: str) -> Cell:
    return Cell(words, (words,))
