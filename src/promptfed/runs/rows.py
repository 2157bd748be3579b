"""The rows of a table: its own, and those that several tables share in a file of their own, NAME.rows.toml.

    rows_from              in a table: the file, which lies beside it
    [[rows]]               name, title, recipe, paper (its numbers by column), traffic (numbers sent, as printed), tune,
                           kind; answers: what the method can be asked; needs: what a column must give it
    [kinds.NAME]           recipe and tune of all rows of that kind, before the row's own

A table's own row, or kind, with a shared one's name changes that one: of its recipe only the keys that it names. A row
is in those columns that ask nothing but what it answers and give all that it needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError, choice
from promptfed.runs.table_parts import Content, check_keys, entries, merge, number, read_toml, table_in, texts_in

SUFFIX = ".rows.toml"
KEYS = ("name", "title", "recipe", "paper", "traffic", "tune", "kind", "answers", "needs")
Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class PrintedFigure:
    """What the paper printed in one cell, in percent: the mean, and every client if the table has them."""

    mean: float
    clients: tuple[float, ...] = ()


@dataclass(frozen=True)
class TableRow:
    """A method, the paper's numbers for it by column, and the grid for `--tune`."""

    name: str
    title: str
    recipe: Content
    paper: Mapping[str, PrintedFigure]
    traffic: float | None
    tune: Grid
    answers: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()


def read_rows(content: Content, path: Path, columns: Mapping[str, int]) -> tuple[TableRow, ...]:
    """Return the rows of the table in `path`; `columns` are its columns with their number of clients."""
    where, shared = str(path), _shared(content, path)
    grids = {key: _grid(value, where) for key, value in table_in(content, "tune", where).items()}
    kinds = _merged(_kinds(shared, where), _kinds(content, where))
    first = {entry["name"]: entry for entry in entries(shared, "rows", where, 0)}
    own = {entry["name"]: entry for entry in entries(content, "rows", where, 0 if first else 1)}
    return tuple(_row(entry, columns, grids, kinds, where) for entry in _merged(first, own).values())


def _shared(content: Content, path: Path) -> Content:
    """Return the content of the file that the table takes rows from; empty if it takes none."""
    name = content.get("rows_from")
    if name is None:
        return {}
    file = path.with_name(str(name))
    if not str(name).endswith(SUFFIX) or not file.is_file():
        raise choice("file of rows", str(name), [one.name for one in path.parent.glob(f"*{SUFFIX}")], str(path))
    shared = read_toml(file)
    check_keys(shared, ("kinds", "rows"), ("rows",), str(file))
    return shared


def _kinds(content: Content, where: str) -> dict[str, Content]:
    found = table_in(content, "kinds", where)
    for name in found:
        check_keys(table_in(found, name, f"kinds in {where}"), ("recipe", "tune"), (), f"kinds.{name} in {where}")
    return found


def _merged(shared: Mapping[str, Content], own: Mapping[str, Content]) -> dict[str, Content]:
    """Return all entries by name, the shared ones first, as the table's own change them."""
    found = dict(shared)
    for name, entry in own.items():
        old = found.get(name, {})
        found[name] = old | entry | {"recipe": merge(old.get("recipe", {}), entry.get("recipe", {}))}
    return found


def _row(
    entry: Content,
    columns: Mapping[str, int],
    grids: Mapping[str, Grid],
    kinds: Mapping[str, Content],
    where: str,
) -> TableRow:
    place = f'row "{entry["name"]}" of {where}'
    check_keys(entry, KEYS, ("name",), where)
    kind: Content = {}
    if "kind" in entry:
        if entry["kind"] not in kinds:
            raise choice("kind", str(entry["kind"]), kinds, place)
        kind = kinds[entry["kind"]]
    figures = {}
    for key, value in table_in(entry, "paper", where).items():
        if key not in columns:
            raise choice("column", key, columns, place)
        figures[key] = _figure(value, key, columns[key], place)
    return TableRow(
        str(entry["name"]),
        str(entry.get("title", entry["name"])),
        merge(table_in(kind, "recipe", where), table_in(entry, "recipe", where)),
        figures,
        number(entry.get("traffic"), where),
        _tune(entry.get("tune", kind.get("tune", {})), grids, place, where),
        frozenset(texts_in(entry, "answers", place, "words")),
        frozenset(texts_in(entry, "needs", place, "words")),
    )


def _tune(value: object, grids: Mapping[str, Grid], place: str, where: str) -> Grid:
    """Read a grid, or the name of one."""
    if not isinstance(value, str):
        return _grid(value, where)
    if value not in grids:
        raise choice("grid", value, grids, place)
    return grids[value]


def _grid(value: object, where: str) -> Grid:
    if not isinstance(value, dict) or not all(isinstance(tried, list) and tried for tried in value.values()):
        raise PromptFedError(f'tune in {where} must be lists of values by key, such as {{"method.lr" = [0.1, 0.01]}}.')
    return {key: tuple(tried) for key, tried in value.items()}


def _figure(value: object, column: str, size: int, where: str) -> PrintedFigure:
    """Read 94.29, or {clients = [92.71, …], mean = 94.29}."""
    given: Content = value if isinstance(value, dict) else {"mean": value}
    check_keys(given, ("mean", "clients"), ("mean",), where)
    mean, clients = number(given["mean"], where), [number(client, where) for client in given.get("clients", ())]
    if mean is None or None in clients or len(clients) not in (0, size):
        raise PromptFedError(
            f'The numbers for column "{column}" in {where} must be a mean, and either all of its clients or none.'
        )
    return PrintedFigure(mean, tuple(client for client in clients if client is not None))


def fits(row: TableRow, asks: Sequence[str], gives: Sequence[str]) -> bool:
    """Say whether a row has a place in a column that asks and gives this."""
    return row.answers.issuperset(asks) and row.needs.issubset(gives)


def check_asked(rows: Sequence[TableRow], asked: Sequence[str], given: Sequence[str], where: str) -> None:
    """Refuse a column that asks what no row answers, or gives what none needs."""
    for what, words, known in (
        ("answer", asked, {word for row in rows for word in row.answers}),
        ("need", given, {word for row in rows for word in row.needs}),
    ):
        for word in words:
            if word not in known:
                raise choice(what, word, sorted(known), where)
