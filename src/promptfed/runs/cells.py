"""A paper's table as one file, NAME.table.toml: its cells are recipes, and its rows hold the paper's numbers.

    title, paper           what the table is, and where it was published
    base                   recipe keys that all cells share
    theirs                 what the paper had where `base` differs, under dotted keys
    [[columns]]            name, title, clients (their titles, if the paper prints them one by one), recipe; asks,
                           gives; tune_on, for itself; rows.NAME: what that row's recipe has otherwise in it
    [[rows]], rows_from    see `runs.rows`, [kinds.NAME] too
    asks, gives            what all columns ask of a method, and give to it
    tune                   grids that rows may name: dotted keys and the values to try
    tune_on                the column whose grid decides for all columns; without it each column has its own
    measures               what to show: "mean" (over clients), optionally with "weighted" (over test images), and with
                           both "best-round" if the paper prints the best of all rounds; or
                           "trained", every client's model before the last aggregation; or
                           "fid", of the server's word, once `promptfed quality` has measured it; or one of
                           "mean", "deployed" (the server's own model on every domain; `clients` are then the domains),
                           "unseen" (the same on the last domain alone), "elsewhere" (the same on other data sets) and
                           "newcomers" (their mean), with any of `BESIDE`: of single clients, on other images (see
                           `evaluate.sets`), and what it cost
    statistics             "ROW": show standard errors, differences to that row seed by seed, and average ranks
    ranked                 false if the rows are not methods of the paper, whose order could be compared with its order
    deviations, notes      sentences to print under the table

A cell's recipe is `base`, changed by its column's `recipe`, changed by its row's, and by its column's `rows`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from promptfed.core.errors import PromptFedError, choice
from promptfed.runs.rows import PrintedFigure, TableRow, check_asked, fits, read_rows
from promptfed.runs.table_parts import Content, check_keys, entries, merge, read_toml, table_in, texts_in

SUFFIX = ".table.toml"
HEADS = ("mean", "deployed", "unseen", "elsewhere", "newcomers")  # these may have others beside them
MEASURES = ("mean", "weighted", "best-round", "deployed", "trained", "fid", *HEADS[2:])
COSTS = ("epsilon", "sent", "seconds", "memory", "rounds95")  # what a run cost
BESIDE = ("worst", "p10", "own-names", "neighbour", "base", "novel", "hm", "cm", *COSTS)
ALLOWED = ["mean"], ["mean", "weighted"], ["mean", "weighted", "best-round"], ["deployed"], ["trained"], ["fid"]
KEYS = (
    *("title", "paper", "base", "theirs", "columns", "rows", "rows_from", "kinds", "asks", "gives", "tune", "tune_on"),
    *("measures", "statistics", "ranked", "deviations", "notes"),
)
COLUMN_KEYS = ("name", "title", "clients", "recipe", "asks", "gives", "tune_on", "rows")


@dataclass(frozen=True)
class TableColumn:
    """A setting that rows are measured in: a data set and its partition; what it asks of a row, and gives it."""

    name: str
    title: str
    clients: tuple[str, ...]
    recipe: Content
    asks: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    tune_on: str = ""  # whose grid decides for this column; "": the table says
    rows: Mapping[str, Content] = field(default_factory=dict)  # what single rows' recipes have otherwise here


@dataclass(frozen=True)
class TableCell:
    """One row in one column; its name is "ROW", or "COLUMN/ROW" in a table of several columns."""

    name: str
    column: TableColumn
    row: TableRow
    recipe: Content

    @property
    def figure(self) -> PrintedFigure | None:
        """Return what the paper printed here, if it printed anything."""
        return self.row.paper.get(self.column.name)


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper."""

    name: str
    title: str
    paper: str
    base: Content
    theirs: Content
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    deviations: tuple[str, ...]
    notes: tuple[str, ...]
    measures: tuple[str, ...] = ("mean",)
    ranked: bool = True
    tune_on: str = ""
    statistics: str = ""

    def cells(self) -> dict[str, TableCell]:
        """Return all cells by name, column after column; a row has none in a column that it does not fit."""
        found = {}
        for column in self.columns:
            for row in (row for row in self.rows if fits(row, column.asks, column.gives)):
                name = self.cell_name(column.name, row.name)
                recipe = merge(merge(self.base, column.recipe), row.recipe)
                found[name] = TableCell(name, column, row, merge(recipe, column.rows.get(row.name, {})))
        return found

    def cell_name(self, column: str, row: str) -> str:
        """Return the name of a cell."""
        return row if len(self.columns) == 1 else f"{column}/{row}"


# -- reading --------------------------------------------------------------------------------------------------------


def read_cells(path: Path, name: str) -> PaperTable:
    """Read the table in `path`, which is called `name`."""
    content, where = read_toml(path), str(path)
    check_keys(content, KEYS, ("title", "columns", *(() if "rows_from" in content else ("rows",))), where)
    columns = tuple(_column(entry, content, where) for entry in entries(content, "columns", where))
    rows = read_rows(content, path, {column.name: len(column.clients) for column in columns})
    for column in columns:
        place = f'column "{column.name}" of {where}'
        check_asked(rows, column.asks, column.gives, place)
        for name in column.rows:
            if name not in (known := [row.name for row in rows]):
                raise choice("row", name, known, place)
        _named({"tune_on": column.tune_on}, "tune_on", [one.name for one in columns], place)
    rows = tuple(row for row in rows if any(fits(row, column.asks, column.gives) for column in columns))
    return PaperTable(
        name=name,
        title=str(content["title"]),
        paper=str(content.get("paper", "")),
        base=table_in(content, "base", where),
        theirs=table_in(content, "theirs", where),
        columns=columns,
        rows=rows,
        deviations=texts_in(content, "deviations", where),
        notes=texts_in(content, "notes", where),
        measures=_measures(content, where),
        ranked=content.get("ranked", True) is not False,
        tune_on=_named(content, "tune_on", [column.name for column in columns], where),
        statistics=_named(content, "statistics", [row.name for row in rows], where),
    )


def _column(entry: Content, content: Content, where: str) -> TableColumn:
    check_keys(entry, COLUMN_KEYS, ("name",), where)
    asks, gives = (
        tuple(dict.fromkeys(word for one in (content, entry) for word in texts_in(one, key, where, "words")))
        for key in ("asks", "gives")
    )
    clients = tuple(map(str, entry.get("clients", ())))
    title, recipe = str(entry.get("title", entry["name"])), table_in(entry, "recipe", where)
    changed = table_in(entry, "rows", where)
    changes = {name: table_in(changed, name, where) for name in changed}
    return TableColumn(str(entry["name"]), title, clients, recipe, asks, gives, str(entry.get("tune_on", "")), changes)


def _named(content: Content, key: str, known: list[str], where: str) -> str:
    """Return the name of a column or a row under a key; empty if there is none."""
    name = str(content.get(key, ""))
    if name and name not in known:
        raise choice(key, name, known, where)
    return name


def _measures(content: Content, where: str) -> tuple[str, ...]:
    """Read what to show; the first is the headline."""
    given = content.get("measures", ["mean"])
    known = dict.fromkeys((*MEASURES, *BESIDE))
    for name in given if isinstance(given, list) else [given]:
        if name not in known:
            raise choice("measure", str(name), known, where)
    beside = isinstance(given, list) and set(given[:1]) <= {*HEADS} and set(given[1:]) <= {*BESIDE}
    if given not in ALLOWED and not (beside and given and len(set(given)) == len(given)):
        raise PromptFedError(
            f'measures in {where} must be {", ".join(map(json.dumps, ALLOWED[:-1]))} or ["fid"], or one of '
            f"{', '.join(HEADS)} with some of {', '.join(BESIDE)}."
        )
    return tuple(given)
