"""Where recipes come from: files, shipped recipes, cells of tables, and bare names of methods."""

from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.files import AlteredError, unsealed_toml
from promptfed.runs import catalogue, nested, registry
from promptfed.runs.cells import SUFFIX, TableCell
from promptfed.runs.nested import NestedTable
from promptfed.runs.recipe import PROMPTED


def read_source(source: str) -> tuple[NestedTable, str]:
    """Return the content of what `source` names, and where it comes from, for messages."""
    if source.endswith(SUFFIX) or source in registry.tables():
        raise PromptFedError(f"{source} is a whole table, not one recipe; use promptfed reproduce {source}.")
    shipped = registry.find_recipe(source)
    if isinstance(shipped, TableCell):
        return shipped.recipe, source
    path = shipped or Path(source)
    if shipped is None and not source.endswith(".toml") and not path.is_file():
        _check_method(source)
        return {"method": {"name": source}}, f"what was given for {source}"
    try:
        return nested.parse(unsealed_toml(path.read_text(encoding="utf-8"))), str(path)
    except OSError as error:
        raise PromptFedError(f"The recipe {path} cannot be read: {error.strerror}.") from error
    except AlteredError as error:
        raise PromptFedError(
            f"The recipe {path} cannot be used: {error}; if you edited it, remove its last line."
        ) from error
    except ValueError as error:
        raise PromptFedError(f"The recipe {path} is not valid TOML: {error}.") from error


def _check_method(source: str) -> None:
    """Refuse a name that is neither a method nor a recipe; a dotted path is looked up later."""
    methods = catalogue.method_names()
    if ":" in source or source.removesuffix(PROMPTED) in methods:
        return
    # the cells of tables all have a slash in their names: only then are the tables worth reading
    recipes = registry.recipes() if "/" in source else registry.single_recipes()
    if Path(f"{source}.toml").is_file():
        raise PromptFedError(f'Unknown method or recipe "{source}"; for the file in this folder write {source}.toml.')
    raise registry.no_method(source, [*methods, *recipes], "method or recipe")


def describe(name: str) -> tuple[str, NestedTable]:
    """Return what a shipped recipe says about itself, and the keys it sets."""
    first = registry.recipes()[name].read_text(encoding="utf-8").split("\n", 1)[0]
    about = first.removeprefix("#").strip() if first.startswith("#") else ""
    found = registry.find_recipe(name)
    if isinstance(found, TableCell):
        about = f"{found.row.title}, {found.column.title}: {about}"
    return about, read_source(name)[0]
