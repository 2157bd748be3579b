"""Everything with a name: methods, from this package and others, and the shipped recipes and tables."""

import importlib
import pkgutil
import sys
from collections.abc import Collection, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import promptfed.methods
from promptfed.core.errors import PromptFedError, choice
from promptfed.runs.cells import SUFFIX, TableCell, read_cells
from promptfed.runs.rows import SUFFIX as ROWS

if TYPE_CHECKING:
    from promptfed.core.method import Method

RECIPES = Path(__file__).parent / "recipes"
WRAPPER = "pt"  # the name of WithFrame, which is no method by itself: it needs one to wrap


def methods() -> "dict[str, type[Method]]":
    """Return every method by name: the package's own, then those that other packages register as entry points."""
    from promptfed.core.method import Method

    found: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(promptfed.methods.__path__):
        names = vars(importlib.import_module(f"promptfed.methods.{module.name}")).values()
        for kind in names:
            own = isinstance(kind, type) and issubclass(kind, Method) and kind.__module__.endswith(module.name)
            if own and kind.name != WRAPPER:
                found[kind.name] = kind
    return found | {name: point.load() for name, point in announced(found).items()}


def announced(own: Collection[str]) -> dict[str, EntryPoint]:
    """Return the methods that other packages register, not yet imported; none may have the name of an `own` one."""
    for point in _announced():
        if point.name in own:
            raise PromptFedError(f'Two methods are called "{point.name}"; one of them is {point.value}.')
    return {point.name: point for point in _announced()}


@cache  # searching all installed packages takes longer than reading a recipe
def _announced() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group="promptfed.methods"))


def no_method(name: str, known: Iterable[str], what: str = "method") -> PromptFedError:
    """Return the error for a name that no method has; a file of that name in the current folder is pointed out."""
    module = name.removesuffix(".py").replace("-", "_")
    if module.isidentifier() and Path(f"{module}.py").is_file():
        return PromptFedError(f'Unknown {what} "{name}"; for a class in {module}.py write {module}:CLASS.')
    return choice(what, name, known)


def find_method(name: str) -> "type[Method]":
    """Return the method of that name, or the class at a dotted path such as "pkg.mine:MyMethod"."""
    from promptfed.core.method import Method

    if ":" not in name:
        known = methods()
        if name not in known:
            raise no_method(name, known)
        return known[name]
    module, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # last, so that a file in the current folder hides no installed package
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise PromptFedError(f'There is no method "{name}": {error}.') from error
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise PromptFedError(f'"{name}" is not a method: it must be a subclass of promptfed.Method.')
    if not isinstance(getattr(kind, "name", None), str):
        raise PromptFedError(f'"{name}" is not a method itself, since it has no name: name a class derived from it.')
    if kind.name == WRAPPER:
        raise PromptFedError(f"{name} wraps another method; run that method, with prompt.kind.")
    return kind


# -- shipped recipes and tables: every name has a slash, so a bare method's name never opens a file -----------------


@cache  # the package's own files stay as they are
def _files() -> dict[str, Path]:
    """Return every shipped recipe and table by its path without ".toml"; none is opened."""
    return {
        path.relative_to(RECIPES).as_posix().removesuffix(".toml"): path
        for path in sorted(RECIPES.rglob("*.toml"))
        if not path.name.endswith(ROWS)
    }


@cache
def single_recipes() -> dict[str, Path]:
    """Return the shipped recipes that are files of their own, such as "frames/pfedpt"; none is opened."""
    return {name: path for name, path in _files().items() if not path.name.endswith(SUFFIX)}


@cache
def tables() -> dict[str, Path]:
    """Return the shipped tables of papers by name, such as "pfedpg/t1-office"; none is opened."""
    return {name.removesuffix(".table"): path for name, path in _files().items() if path.name.endswith(SUFFIX)}


@cache
def recipes() -> dict[str, Path]:
    """Return all shipped recipes by name; a table's cell, such as "pfedpg/t1-office/fedvpt", leads to the table."""
    found: dict[str, Path] = {}
    for name, path in _files().items():
        table = name.removesuffix(".table")
        found |= {name: path} if table == name else {f"{table}/{cell}": path for cell in _cells(table)}
    return found


def find_recipe(name: str) -> Path | TableCell | None:
    """Return the file of a shipped recipe, or the cell of a shipped table; only that one table is read."""
    if name in single_recipes():
        return single_recipes()[name]
    table = next((table for table in tables() if name.startswith(f"{table}/")), None)
    return None if table is None else _cells(table).get(name.removeprefix(f"{table}/"))


@cache  # there are hundreds of cells
def _cells(table: str) -> dict[str, TableCell]:
    return read_cells(tables()[table], table).cells()
