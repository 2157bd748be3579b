"""A paper's table as one file, NAME.table.toml: its cells are recipes, and its rows hold the paper's numbers.

    title, paper           what the table is, and where it was published
    base                   recipe keys that all cells share
    theirs                 what the paper had where `base` differs, under dotted keys
    [[columns]]            name, title, clients (their titles, if the paper prints them one by one), recipe
    [[rows]]               name, title, recipe, paper (its numbers by column), traffic (numbers sent, as printed), tune
    tune                   grids that rows may name: dotted keys and the values to try
    measures               what to show: "mean" (over clients), optionally with "weighted" (over test images), and with
                           both "best-round" if the paper prints the best of all rounds; or
                           "deployed", the server's own model on every domain (`clients` are then the domains); or
                           "trained", every client's model before the last aggregation; or
                           "fid", of the server's word, once `promptfed quality` has measured it; or
                           "mean" and any of "worst" and "p10" (of the clients), "own-names", "neighbour", "base",
                           "novel", "hm" and "cm" (on other images, see `evaluate.sets`)
    ranked                 false if the rows are not methods of the paper, whose order could be compared with its order
    deviations, notes      sentences to print under the table

A cell's recipe is `base`, changed by its column's `recipe`, changed by its row's.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError, choice

SUFFIX = ".table.toml"
MEASURES = ("mean", "weighted", "best-round", "deployed", "trained", "fid")
BESIDE = ("worst", "p10", "own-names", "neighbour", "base", "novel", "hm", "cm")  # "mean" may have these beside it
ALLOWED = ["mean"], ["mean", "weighted"], ["mean", "weighted", "best-round"], ["deployed"], ["trained"], ["fid"]
Content = dict[str, Any]
Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class PrintedFigure:
    """What the paper printed in one cell, in percent: the mean, and every client if the table has them."""

    mean: float
    clients: tuple[float, ...] = ()


@dataclass(frozen=True)
class TableColumn:
    """A setting that all rows are measured in: a data set and its partition."""

    name: str
    title: str
    clients: tuple[str, ...]
    recipe: Content


@dataclass(frozen=True)
class TableRow:
    """A method, the paper's numbers for it by column, and the grid for `--tune`."""

    name: str
    title: str
    recipe: Content
    paper: Mapping[str, PrintedFigure]
    traffic: float | None
    tune: Grid


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

    def cells(self) -> dict[str, TableCell]:
        """Return all cells by name, column after column."""
        found = {}
        for column in self.columns:
            for row in self.rows:
                name = row.name if len(self.columns) == 1 else f"{column.name}/{row.name}"
                found[name] = TableCell(name, column, row, merge(merge(self.base, column.recipe), row.recipe))
        return found


def merge(content: Mapping[str, Any], change: Mapping[str, Any]) -> Content:
    """Return `content` with the keys of `change`; a table that gets another `name` loses its old fields."""
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in content.items()}
    for key, value in change.items():
        if isinstance(value, dict):
            old = merged.get(key, {})
            renamed = "name" in old and value.get("name", old["name"]) != old["name"]
            merged[key] = dict(value) if renamed else old | value
        else:
            merged[key] = value
    return merged


# -- reading --------------------------------------------------------------------------------------------------------


def read_cells(path: Path, name: str) -> PaperTable:
    """Read the table in `path`, which is called `name`."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PromptFedError(f"The table {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PromptFedError(f"The table {path} is not valid TOML: {error}.") from error
    where = str(path)
    valid = ("title", "paper", "base", "theirs", "columns", "rows", "tune", "measures", "ranked", "deviations", "notes")
    _check_keys(content, valid, ("title", "columns", "rows"), where)
    grids = {key: _grid(value, where) for key, value in _table(content, "tune", where).items()}
    columns = tuple(_column(entry, where) for entry in _entries(content, "columns", where))
    rows = tuple(_row(entry, columns, grids, where) for entry in _entries(content, "rows", where))
    return PaperTable(
        name=name,
        title=str(content["title"]),
        paper=str(content.get("paper", "")),
        base=_table(content, "base", where),
        theirs=_table(content, "theirs", where),
        columns=columns,
        rows=rows,
        deviations=_sentences(content, "deviations", where),
        notes=_sentences(content, "notes", where),
        measures=_measures(content, where),
        ranked=content.get("ranked", True) is not False,
    )


def _column(entry: Content, where: str) -> TableColumn:
    _check_keys(entry, ("name", "title", "clients", "recipe"), ("name",), where)
    clients = tuple(map(str, entry.get("clients", ())))
    return TableColumn(
        str(entry["name"]), str(entry.get("title", entry["name"])), clients, _table(entry, "recipe", where)
    )


def _row(entry: Content, columns: tuple[TableColumn, ...], grids: Mapping[str, Grid], where: str) -> TableRow:
    _check_keys(entry, ("name", "title", "recipe", "paper", "traffic", "tune"), ("name",), where)
    name, known = str(entry["name"]), {column.name: column for column in columns}
    figures = {}
    for key, value in _table(entry, "paper", where).items():
        if key not in known:
            raise choice("column", key, known, f'row "{name}" of {where}')
        figures[key] = _figure(value, known[key], f'row "{name}" of {where}')
    tune = entry.get("tune", {})
    if isinstance(tune, str) and tune not in grids:
        raise choice("grid", tune, grids, f'row "{name}" of {where}')
    grid = grids[tune] if isinstance(tune, str) else _grid(tune, where)
    traffic = entry.get("traffic")
    return TableRow(
        name, str(entry.get("title", name)), _table(entry, "recipe", where), figures, _number(traffic, where), grid
    )


def _figure(value: object, column: TableColumn, where: str) -> PrintedFigure:
    """Read 94.29, or {clients = [92.71, …], mean = 94.29}."""
    given: Content = value if isinstance(value, dict) else {"mean": value}
    _check_keys(given, ("mean", "clients"), ("mean",), where)
    mean, clients = _number(given["mean"], where), [_number(client, where) for client in given.get("clients", ())]
    if mean is None or None in clients or len(clients) not in (0, len(column.clients)):
        raise PromptFedError(
            f'The numbers for column "{column.name}" in {where} must be a mean, and either all of its clients or none.'
        )
    return PrintedFigure(mean, tuple(client for client in clients if client is not None))


def _grid(value: object, where: str) -> Grid:
    if not isinstance(value, dict) or not all(isinstance(tried, list) and tried for tried in value.values()):
        raise PromptFedError(f'tune in {where} must be lists of values by key, such as {{"method.lr" = [0.1, 0.01]}}.')
    return {key: tuple(tried) for key, tried in value.items()}


def _entries(content: Content, key: str, where: str) -> list[Content]:
    """Return the tables under [[key]]; their names must differ and be usable as folder names."""
    entries = content[key]
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise PromptFedError(f"{where} must have at least one [[{key}]].")
    names = [str(entry.get("name", "")) for entry in entries]
    for name in names:
        if not name or "/" in name or name in (".", "..", "tune", "tuned") or names.count(name) > 1:
            raise PromptFedError(f'Every [[{key}]] in {where} needs a unique plain name, not "{name}".')
    return entries


def _table(content: Content, key: str, where: str) -> Content:
    value = content.get(key, {})
    if not isinstance(value, dict):
        raise PromptFedError(f"{key} in {where} must be a table.")
    return value


def _sentences(content: Content, key: str, where: str) -> tuple[str, ...]:
    value = content.get(key, [])
    if not isinstance(value, list):
        raise PromptFedError(f"{key} in {where} must be a list of sentences.")
    return tuple(map(str, value))


def _measures(content: Content, where: str) -> tuple[str, ...]:
    """Read what to show; the first is the headline."""
    given = content.get("measures", ["mean"])
    for name in given if isinstance(given, list) else [given]:
        if name not in MEASURES + BESIDE:
            raise choice("measure", str(name), MEASURES + BESIDE, where)
    beside = isinstance(given, list) and given[:1] == ["mean"] and set(given[1:]) <= {*BESIDE}
    if given not in ALLOWED and not (beside and len(set(given)) == len(given)):
        raise PromptFedError(
            f'measures in {where} must be {", ".join(map(json.dumps, ALLOWED[:-1]))} or ["fid"], or "mean" with some '
            f"of {', '.join(BESIDE)}."
        )
    return tuple(given)


def _number(value: object, where: str) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise PromptFedError(f"A value in {where} must be a number, not {value!r}.")
    return None if value is None else float(value)


def _check_keys(given: Content, valid: tuple[str, ...], required: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in valid:
            raise choice("key", key, valid, where)
    for key in required:
        if key not in given:
            raise PromptFedError(f"{key} is missing in {where}.")
