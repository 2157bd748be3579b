"""What a notebook shows of a run: a line, its headline table, and the report's curve as an inline drawing."""

from html import escape

from promptfed.results.folder.reader import RunFolder
from promptfed.results.report.figure import Figure, Key
from promptfed.results.report.groups import group_runs
from promptfed.results.report.sections import RESULTS, drawn
from promptfed.results.report.table import Table, percent
from promptfed.results.report.tables import headline

# The report's colours in tones that can be read on white and on black, since a notebook may be either.
COLOURS = ("#1f86c9", "#d9652a", "#1d9a73", "#c062a0", "#b5841f", "#5aa9dc", "#8577c9", "#868e96")
STYLE = """
.promptfed-run {max-width: 460px}
.promptfed-run svg {width: 100%; height: auto; font-size: 12.5px; overflow: visible}
.promptfed-run svg text {fill: currentColor}
.promptfed-run .mid {text-anchor: middle}
.promptfed-run .end {text-anchor: end}
.promptfed-run .grid, .promptfed-run .event {stroke: currentColor; stroke-opacity: .2; fill: none}
.promptfed-run .line {fill: none; stroke-width: 2; stroke: var(--s)}
.promptfed-run .dash {stroke-dasharray: 6 5}
.promptfed-run .line.dot {stroke-dasharray: 1 5}
.promptfed-run .band {fill: var(--s); opacity: .15}
.promptfed-run g.dot {fill: var(--s)}
.promptfed-run .hit {fill: transparent}
.promptfed-run svg .tag {fill: var(--s); font-weight: 600}
"""


def describe(run: RunFolder) -> str:
    """Return a run as one line: where it is, what it is, how far it is, and how accurate."""
    far = f"{run.rounds[-1].number} of {run.planned_rounds}" if run.planned_rounds else f"{run.rounds[-1].number}"
    rounds = f"{run.rounds[-1].number} rounds" if run.finished else f"unfinished, {far} rounds"
    reached = f", mean {percent(run.scores.mean)} %, worst client {percent(run.scores.worst)} %" if run.scores else ""
    return f"{run.path}: {run.method} on {run.dataset}, seed {run.seed}, {rounds}{reached}"


def card(run: RunFolder) -> str:
    """Return a run as HTML that needs nothing else: its line, its table and its curve."""
    curves = [section for section in RESULTS if section.name == "curves"]
    figures = [figure for one in drawn(curves, group_runs([run])) for figure in one.figures]
    colours = "".join(f".promptfed-run .s{index} {{--s: {colour}}}\n" for index, colour in enumerate(COLOURS))
    parts = [f"<style>{STYLE}{colours}</style>", f"<p>{escape(describe(run))}</p>", _table(headline([run]))]
    return f'<div class="promptfed-run">{"".join([*parts, *map(_drawing, figures)])}</div>'


def _table(table: Table) -> str:
    """Return a table without its legend."""
    head = "".join(f'<th title="{escape(column.legend)}">{escape(column.title)}</th>' for column in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell.text)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _drawing(figure: Figure) -> str:
    """Return a figure as narrow as a notebook's cell may be, under its legend."""
    return f"<p>{' &nbsp; '.join(map(_key, figure.keys))}</p>{figure.narrow}" if figure.narrow else ""


def _key(key: Key) -> str:
    """Return an entry of the legend."""
    series = f"s{key.series % len(COLOURS)}"
    band = f'<rect class="band {series}" width="26" height="12"/>'
    shape = band if key.kind == "band" else f'<path class="line {key.kind} {series}" d="M1 6H25"/>'
    return f'<svg viewBox="0 0 26 12" style="width: 26px; height: 12px">{shape}</svg> {escape(key.text)}'
