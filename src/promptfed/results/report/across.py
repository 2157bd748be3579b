"""Compare runs as papers do: methods down, settings across, one accuracy in every cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from promptfed.core.errors import choice
from promptfed.results.folder.reader import RunFolder
from promptfed.results.report.groups import RunGroup, group_runs
from promptfed.results.report.table import Cell, Column, Table
from promptfed.results.report.tables import ACCURACIES


@dataclass(frozen=True)
class PaperPlace:
    """A run's place in a paper's table: the titles of its row and column, and the number printed there."""

    row: str
    column: str
    printed: float | None


@dataclass(frozen=True)
class PaperLayout:
    """The titles of a paper's table in order, and the places of the runs in it by folder."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    places: Mapping[Path, PaperPlace]


NO_PAPER = PaperLayout((), (), {})


def across(runs: Sequence[RunFolder], measure: str = "mean", paper: PaperLayout = NO_PAPER) -> Table:
    """Return one row per method and one column per setting: mean ± std over seeds, the paper's number in brackets."""
    if measure not in ACCURACIES:
        raise choice("measure", measure, ACCURACIES)
    groups = group_runs(runs)
    places = [paper.places.get(group.runs[0].path) for group in groups]
    spots = dict(zip(_spots(groups, places, measure), groups, strict=True))
    rows = _ordered([row for row, _ in spots], [place.row if place else None for place in places], paper.rows)
    columns = _ordered(
        [column for _, column in spots], [place.column if place else None for place in places], paper.columns
    )
    cells = [
        _column(column, {row: spots[row, column] for row in rows if (row, column) in spots}, rows, measure, paper)
        for column in columns
    ]
    fields = ("", "_std", "_paper") if paper.places else ("", "_std")
    head = [Column("method", "", ("method",), False)]
    head += [Column(title, "", tuple(f"{title}{field}" for field in fields)) for title in columns]
    names = [Cell(row, (row,)) for row in rows]
    legend = ACCURACIES[measure].column.legend
    about = f"{measure}: {'' if 'in percent' in legend else 'accuracy in percent, '}{legend}"
    about += ", of several seeds ± sample std" if any(len(group.runs) > 1 for group in groups) else ""
    about += "; in brackets: what the paper printed" if paper.places else ""
    return Table(tuple(head), tuple(zip(names, *cells, strict=True)), about=about)


def _spots(groups: Sequence[RunGroup], places: Sequence[PaperPlace | None], measure: str) -> list[tuple[str, str]]:
    """Return the row and column of every group: the paper's titles if its table has the group, else our own names."""
    known = {group.setting: place.column for group, place in zip(groups, places, strict=True) if place}
    titles = dict(zip((group.setting for group in groups), _titles(groups, measure), strict=True)) | known
    rows = [
        group.label if place is None else place.row if group.finished else f"{place.row} (unfinished)"
        for group, place in zip(groups, places, strict=True)
    ]
    columns = [titles[group.setting] for group in groups]
    for more in (lambda group: group.label, lambda group: str(group.runs[0].path)):  # what makes equal names distinct
        spots = list(zip(rows, columns, strict=True))
        crowded = {row for row, column in spots if spots.count((row, column)) > 1}
        rows = [f"{row} [{more(group)}]" if row in crowded else row for row, group in zip(rows, groups, strict=True)]
    return list(zip(rows, columns, strict=True))


def _titles(groups: Sequence[RunGroup], measure: str) -> list[str]:
    """Name every group's setting by what differs between settings; a single setting is named after the measure."""
    settings = [group.setting for group in groups]
    parts = [(one.dataset, one.partition, one.backbone, f"{one.clients} clients") for one in settings]
    telling = [number for number, values in enumerate(zip(*parts, strict=True)) if len(set(values)) > 1]
    return [", ".join(part[number] for number in telling) or measure for part in parts]


def _ordered(names: Sequence[str], titles: Sequence[str | None], first: Sequence[str]) -> list[str]:
    """Return every name once: first those with the paper's titles, in its order, then the others."""
    ranks: dict[str, int] = {}
    for name, title in zip(names, titles, strict=True):
        rank = first.index(title) if title in first else len(first)
        ranks[name] = min(rank, ranks.get(name, rank))
    return sorted(ranks, key=ranks.__getitem__)


def _column(
    column: str, groups: Mapping[str, RunGroup], rows: Sequence[str], measure: str, paper: PaperLayout
) -> list[Cell]:
    """Return a column's cells; the best finished one is marked if they differ."""
    filled = {row: ACCURACIES[measure].fill(group) for row, group in groups.items()}
    ranks = {row: rank for row, (_, rank) in filled.items() if rank is not None and groups[row].finished}
    cells = []
    for row in rows:
        cell = filled[row][0] if row in filled else Cell("–", ("", ""))
        cell = replace(cell, best=len(set(ranks.values())) > 1 and ranks.get(row) == max(ranks.values()))
        if paper.places:
            place = paper.places.get(groups[row].runs[0].path) if row in groups else None
            printed = "" if place is None or place.printed is None else f"{place.printed:.2f}"
            cell = replace(
                cell, text=f"{cell.text} ({printed})" if printed else cell.text, fields=(*cell.fields, printed)
            )
        cells.append(cell)
    return cells
