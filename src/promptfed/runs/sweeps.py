"""Sweeps: a recipe with lists of values becomes one recipe per combination."""

from collections.abc import Iterator
from itertools import product

from promptfed.core import options
from promptfed.core.errors import PromptFedError
from promptfed.runs import catalogue, nested
from promptfed.runs.nested import NestedTable
from promptfed.runs.recipe import PROMPTED, Recipe


def combinations(content: NestedTable) -> Iterator[NestedTable]:
    """Yield one table per combination of the list values; fields that are lists themselves stay lists."""
    lists = [(path, value) for path, value in nested.leaves(content) if isinstance(value, list)]
    axes = [(path, value) for path, value in lists if not _is_list_field(content, path)]
    for place, values in axes:
        if not values:
            raise PromptFedError(f"{'.'.join(place)}=[] is a sweep over nothing; give at least one value.")
    for chosen in product(*(values for _, values in axes)):
        single = nested.copied(content)
        for (place, _), value in zip(axes, chosen, strict=True):
            nested.set_key(single, ".".join(place), value)
        yield single


def _is_list_field(content: NestedTable, path: tuple[str, ...]) -> bool:
    if len(path) != 2 or path[0] not in ("method", "backbone"):
        return False
    table = content.get("method")
    method = (table if isinstance(table, dict) else {}).get("name", Recipe().method["name"])
    name = content[path[0]].get("name", method if path[0] == "method" else None)
    if name is None and isinstance(method, str):
        name = catalogue.find_method(method.removesuffix(PROMPTED)).backbone
    if not isinstance(name, str):
        return False
    if path[0] == "backbone":
        kind = catalogue.backbones().get(name)
    else:
        kind = catalogue.find_method(name.removesuffix(PROMPTED))
    return kind is not None and str(options.hints(kind).get(path[1], "")).startswith("tuple")
