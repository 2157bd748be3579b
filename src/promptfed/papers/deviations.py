"""How a table's cells are run differently from what the paper did."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from promptfed.papers.plan import cell_recipe, overrides_of
from promptfed.results.recipe_keys import OURS
from promptfed.runs.cells import PaperTable, TableCell
from promptfed.runs.recipe import Recipe, differences


def deviations(table: PaperTable, settings: Mapping[str, Recipe]) -> list[str]:
    """Return a line for every key in which a cell deviates from the paper: `key`: paper's → ours."""
    return list_changes(table, changes_of(table, settings))


def changes_of(table: PaperTable, settings: Mapping[str, Recipe]) -> dict[str, list[str]]:
    """Return how each cell deviates from the paper."""
    found: dict[str, list[str]] = {}
    cells = table.cells()
    for name, recipe in settings.items():
        odd = differences(cell_recipe(cells[name], overrides_of(table.theirs)), recipe, OURS)
        found[name] = [
            f"`{key}`: {_value(theirs)} → {_value(ours)}"
            for key, (theirs, ours) in odd.items()
            if not key.startswith("fleet.")
        ]
        titles = cells[name].column.clients
        if cells[name].figure and (have := compared_clients(table, cells[name], recipe)) < len(titles):
            some = f"over our clients {', '.join(titles[:have])} instead of {', '.join(titles)}"
            found[name].append(f"The paper's mean is taken {some}")
    return found


def list_changes(table: PaperTable, changes: Mapping[str, list[str]]) -> list[str]:
    """Write every change once, with the cells it concerns."""
    found: dict[str, list[str]] = {}
    for name, lines in changes.items():
        for line in lines:
            found.setdefault(line, []).append(name)
    cells = table.cells()
    # the cells the paper has numbers for; if it has none, all cells
    everywhere = {name for name in changes if cells[name].figure} or set(changes)
    return [f"{line}{'' if set(names) >= everywhere else _where(names)}." for line, names in found.items()]


def _where(names: Sequence[str]) -> str:
    """Name the cells a deviation concerns."""
    more = f" and {len(names) - 4} more" if len(names) > 5 else ""
    return f" ({', '.join(names[:4] if more else names)}{more})"


def _value(value: object) -> str:
    """Write a value; of an absolute path only the last part, which a reader can recognise."""
    if value is None:
        return "none"
    kind, colon, path = str(value).rpartition(":")
    return f"{kind}{colon}{Path(path).name if Path(path).is_absolute() else path}"


def compared_clients(table: PaperTable, cell: TableCell, recipe: Recipe) -> int:
    """Return how many of the paper's numbers besides the mean we have: one per client of ours, or all domains."""
    domains = table.measures[0] in ("deployed", "unseen", "elsewhere")
    return len(cell.column.clients) if domains else recipe.clients
