"""Which folder a new run gets, alone or as one of a sweep."""

from itertools import chain
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.runs.recipe import Recipe


def default_folder(recipe: Recipe, parent: Path = Path("runs")) -> Path:
    """Return the first free `runs/METHOD-DATASET-N`."""
    stem = f"{recipe.method['name']}-{recipe.data['name']}".replace("/", "_").replace(":", "_")
    return next(folder for number in range(1, 10**6) if not (folder := parent / f"{stem}-{number}").exists())


def sweep_folders(recipes: list[Recipe], out: Path | None) -> list[Path]:
    """Return a run folder per recipe: `out` itself for one, `out/KEY=VALUE` for the runs of a sweep."""
    if len(recipes) == 1:
        return [out or default_folder(recipes[0])]
    parent = out or default_folder(recipes[0])
    flat = [recipe.flatten() for recipe in recipes]
    shown: list[str] = []  # names first: another method has other fields, which need not be shown
    for key in sorted(dict.fromkeys(chain(*flat)), key=lambda one: "." in one and not one.endswith(".name")):
        if _distinct(flat, [*shown, key]) > _distinct(flat, shown):
            shown.append(key)
    if _distinct(flat, shown) < len(flat):
        raise PromptFedError("The sweep contains a run twice; give every value once.")
    return [parent / ",".join(f"{key}={one.get(key)}" for key in shown).replace("/", "_") for one in flat]


def _distinct(flat: list[dict[str, Any]], keys: list[str]) -> int:
    """Return how many different runs there are by these keys."""
    return len({repr([one.get(key) for key in keys]) for one in flat})
