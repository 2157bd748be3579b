"""Keys of [data] that every data set has: which half of its classes a run uses, and how many images of each class."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from promptfed.core import options
from promptfed.core.errors import PromptFedError, choice
from promptfed.core.options import Whole
from promptfed.runs.filling import as_table, fill_named
from promptfed.runs.nested import NestedTable

if TYPE_CHECKING:
    from promptfed.data.dataset import Dataset
    from promptfed.data.partition import Partition
    from promptfed.runs.recipe import Recipe


@dataclass(frozen=True)
class SelectionOptions:
    """What of a data set is used: everything by default."""

    half: Literal["all", "base", "novel"] = "all"  # the first half of the classes, or the second
    shots: Whole = 0  # training images of each class in each domain, drawn by the seed; 0: all
    shots_per: Literal["domain", "client"] = "domain"  # client: of each class at each client, drawn after the partition


KEYS = tuple(field.name for field in fields(SelectionOptions))


def own_keys(table: NestedTable) -> NestedTable:
    """Return a [data] table without the keys that every data set has."""
    return {key: value for key, value in table.items() if key not in KEYS}


def selection(table: NestedTable) -> SelectionOptions:
    """Return the keys that every data set has."""
    return options.make(SelectionOptions, {key: table[key] for key in KEYS if key in table}, "data")


def fill_data(table: NestedTable, known: Mapping[str, type]) -> NestedTable:
    """Fill in a [data] table; keys that every data set has are there only where they say something."""
    chosen, plain = selection(table), SelectionOptions()
    if chosen.shots_per == "client" and not chosen.shots:
        raise PromptFedError("data.shots_per=client says how data.shots is counted; set data.shots too.")
    name = str(table.get("name")).partition(":")[0]
    for key in own_keys(table):
        if name in known and key != "name" and key not in options.hints(known[name]):
            there = [*options.hints(known[name]), *KEYS, "name"]
            raise choice("key", f"data.{key}", [f"data.{one}" for one in there], "the recipe")
    said = {key: value for key, value in as_table(chosen).items() if value != getattr(plain, key)}
    return fill_named(own_keys(table), "data", known) | said


def check_selection(recipe: "Recipe") -> None:
    """Refuse shots of images that the partition itself divides into training and test images."""
    chosen, partition = selection(recipe.data), str(recipe.partition["name"])
    if chosen.shots and chosen.shots_per == "domain" and partition.startswith("pfllib-"):
        raise PromptFedError(
            f"data.shots draws training images, and {partition} makes these of all images; set data.shots_per=client."
        )


def selected(dataset: "Dataset", recipe: "Recipe") -> "Dataset":
    """Return what the recipe uses of a data set, before it is divided."""
    from promptfed.data.selection import few, halved

    chosen = selection(recipe.data)
    dataset = halved(dataset, chosen.half)
    return few(dataset, chosen.shots, recipe.seed) if chosen.shots and chosen.shots_per == "domain" else dataset


def selected_each(partition: "Partition", dataset: "Dataset", recipe: "Recipe") -> "Partition":
    """Return what the recipe uses of what each client was dealt."""
    from promptfed.data.selection import few_each

    chosen = selection(recipe.data)
    if chosen.shots and chosen.shots_per == "client":
        return few_each(partition, dataset, chosen.shots, recipe.seed)
    return partition
