"""Reading recipes: from a file, a shipped recipe or a method's name, and dotted overrides, to frozen values."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from promptfed.core import options
from promptfed.core.errors import PromptFedError, choice
from promptfed.federation import guard_options
from promptfed.federation.tested_sets import NOVEL, sets_of
from promptfed.runs import catalogue, nested
from promptfed.runs.filling import as_table, fill_backbone, fill_method, fill_named, make_method
from promptfed.runs.learning import check_train, fill_schedule, fill_stop, fill_train
from promptfed.runs.nested import NestedTable
from promptfed.runs.recipe import DEFAULTS, PROMPTED, TABLES, EvaluateOptions, FleetOptions
from promptfed.runs.recipe import Recipe as Recipe
from promptfed.runs.selecting import check_selection, fill_data, selection
from promptfed.runs.sources import read_source
from promptfed.runs.sweeps import combinations

# what a table is usually written for, where that is not its name
FIRST_KEYS = {"prompt": "kind", "guards": "robust", "train": "augment", "stop": "patience", "evaluate": "split"}
if TYPE_CHECKING:
    from promptfed.core.method import Method


def load(source: str, overrides: Sequence[str] = (), *, embedded: bool = True) -> list[Recipe]:
    """Read a recipe file, a shipped recipe or a method's name, apply `key=value` overrides, and expand sweeps.

    Without `data.name` a run is on embedded data, unless it is not `embedded` but over sites, which have their own.
    """
    content, where = read_source(source)
    named = any(word.startswith("data.name") for word in overrides)
    if embedded and not named and content == {"method": {"name": source}}:
        content = _quick(source)
    return expand(content, overrides, where)


def _quick(name: str) -> NestedTable:
    """Return what a run of a method's bare name on embedded data starts from, so that it ends within two minutes."""
    keys = nested.copied(dict(catalogue.find_method(name.removesuffix(PROMPTED)).quick))
    return keys | {"method": {"name": name} | keys.get("method", {})}


def load_one(source: str, overrides: Sequence[str] = (), *, embedded: bool = True) -> Recipe:
    """Read a recipe that is one run, or refuse a sweep."""
    return single(load(source, overrides, embedded=embedded))


def single(found: list[Recipe]) -> Recipe:
    """Return the one recipe, or refuse a sweep."""
    if len(found) != 1:
        raise PromptFedError(
            f"This recipe is a sweep of {len(found)} runs; give every key one value here. `promptfed run` without "
            "--resume runs a sweep."
        )
    return found[0]


def expand(content: NestedTable, overrides: Sequence[str], where: str) -> list[Recipe]:
    """Return the recipes of `content` after `key=value` overrides: one, or as many as a sweep has runs."""
    content, changes = nested.copied(content), []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise PromptFedError(f'"{override}" is not key=value; write for example rounds=20 or method.lr=0.01.')
        changes.append((key.strip(), nested.read_value(text)))
    for key, value in sorted(changes, key=lambda change: not change[0].endswith(".name")):
        part = key.removesuffix(".name")
        table = content.get(part)
        renamed = key != part and isinstance(table, dict) and table.get("name", DEFAULTS.get(part)) != value
        if renamed and part != "schedule":  # the other thing's fields mean nothing to the new one
            content[part] = {}
        nested.set_key(content, key, value)
    return [resolve(single, where) for single in combinations(content)]


def resolve(content: Mapping[str, Any], where: str = "the recipe") -> Recipe:
    """Return the recipe with every field filled in and checked.

    What is imported only slowly comes last: first all names, keys and types, then the data's code, then torch.
    """
    recipe = _with_backbone(_typed(content, where))
    check_device(recipe.device)
    fill_data(recipe.data, catalogue.datasets())
    fill_named(recipe.partition, "partition", catalogue.partitions())
    method, prompt = fill_method(recipe.method, recipe.prompt)
    recipe = replace(
        recipe,
        method=method,
        prompt=prompt,
        backbone=fill_backbone(recipe.backbone),
        schedule=fill_schedule(recipe, kept="schedule" in _method_recipe({"method": method})),
        fleet=as_table(options.make(FleetOptions, recipe.fleet, "fleet")),
        evaluate=_fill_evaluate(recipe),
        guards=guard_options.filled(recipe.guards),
    )
    check_train(recipe)
    recipe = _with_data(replace(recipe, stop=fill_stop(recipe)), content)
    return _fitting(recipe)


def _fill_evaluate(recipe: Recipe) -> NestedTable:
    """Fill in how clients are evaluated; the key of other images than their own is there only if there are any."""
    table = as_table(options.make(EvaluateOptions, recipe.evaluate, "evaluate"))
    sets = "+".join(sets_of(table.pop("sets")))
    if NOVEL in sets_of(sets) and selection(recipe.data).half == "all":
        raise PromptFedError("evaluate.sets=novel tests on classes that training never names; set data.half=base.")
    others = "+".join(dict.fromkeys(name.strip() for name in table.pop("elsewhere").split("+") if name.strip()))
    for name in (name.partition(":")[0] for name in others.split("+") if others):
        if name not in catalogue.datasets():
            raise choice("data set in evaluate.elsewhere", name, catalogue.datasets())
    return table | ({"sets": sets} if sets else {}) | ({"elsewhere": others} if others else {})


def _with_data(recipe: Recipe, given: Mapping[str, Any]) -> Recipe:
    """Return the recipe with its data set and partition filled in, and the clients that suit them."""
    from promptfed.data.datasets import DATASETS
    from promptfed.data.partition import PARTITIONS
    from promptfed.runs.fitting import fit_to_data

    recipe = fit_to_data(recipe, given)
    _check_clients(recipe)
    check_selection(recipe)
    return replace(
        recipe,
        data=fill_data(recipe.data, DATASETS),
        partition=fill_named(recipe.partition, "partition", PARTITIONS),
    )


def _fitting(recipe: Recipe) -> Recipe:
    """Refuse what does not fit the method itself; this is the first to import torch, when all else is right."""
    from promptfed.core.method import classifies
    from promptfed.federation import guards

    made = build_method(recipe)
    metric = recipe.evaluate["metric"]
    if metric != "accuracy" and not classifies(made):
        name = recipe.method["name"]
        raise PromptFedError(f"evaluate.metric={metric} needs a classifier, which {name} is not; use accuracy.")
    _check_sets(recipe, made)
    founders = recipe.per_round or recipe.clients - recipe.newcomers
    guards.check(recipe.guards, made, min(founders, recipe.newcomers or founders))
    return replace(recipe, train=fill_train(recipe, made))


def _check_sets(recipe: Recipe, method: "Method") -> None:
    """Refuse tests that the method has no answers for."""
    from promptfed.core.method import classifies

    sets, name = sets_of(str(recipe.evaluate.get("sets", ""))), recipe.method["name"]
    if sets and not classifies(method):
        raise PromptFedError(f"evaluate.sets needs a classifier, which {name} is not; leave it out.")
    if NOVEL in sets and not method.traits.open:
        raise PromptFedError(
            f"{name} as it is set here learns something for each class, so it has no answer for classes that training "
            "never named; leave novel out of evaluate.sets."
        )
    if "elsewhere" in recipe.evaluate and not (method.traits.open and classifies(method)):
        raise PromptFedError(
            f"{name} as it is set here does not know classes by name alone, so it has no answer for other data sets; "
            "leave out evaluate.elsewhere."
        )


def _typed(content: Mapping[str, Any], where: str) -> Recipe:
    """Return the recipe with its keys checked and the defaults of its method; its tables are as they were given."""
    hints, default, starts = options.hints(Recipe), asdict(Recipe()), _method_recipe(content)
    for key, table in starts.items():
        default[key] = dict(table) if "name" in table else default[key] | table
    given: NestedTable = {}
    for key, value in content.items():
        if key not in hints:
            raise choice("key", key, hints, where)
        if key in TABLES:
            if not isinstance(value, dict):
                first = FIRST_KEYS.get(key, "name")
                raise PromptFedError(f"{key} in {where} must be a table: write {key}.{first}={value}.")
            # keys without a name change the embedded default
            given[key] = dict(value) if "name" in value else default[key] | value
        else:
            given[key] = options.typed(key, value, hints[key])
    return Recipe(**{key: default[key] for key in ("data", "partition", *starts)} | given)


def _method_recipe(content: Mapping[str, Any]) -> Mapping[str, Mapping[str, object]]:
    """Return the tables that recipes of this recipe's method start from."""
    method = content.get("method")
    name = method.get("name") if isinstance(method, dict) else None
    return catalogue.find_method(name.removesuffix(PROMPTED)).recipe if isinstance(name, str) else {}


def _with_backbone(recipe: Recipe) -> Recipe:
    """Return the recipe with its method's own backbone, if it names none."""
    method = recipe.method.get("name")
    if "name" in recipe.backbone or not isinstance(method, str):
        return recipe
    kind = catalogue.find_method(method.removesuffix(PROMPTED))
    return replace(recipe, backbone={"name": kind.backbone} | recipe.backbone)


def _check_clients(recipe: Recipe) -> None:
    """Refuse more newcomers or participants than there are clients."""
    if recipe.newcomers >= recipe.clients:
        raise PromptFedError(f"newcomers={recipe.newcomers} leaves none of clients={recipe.clients} to start with.")
    if recipe.per_round > recipe.clients - recipe.newcomers:
        there = f"clients={recipe.clients}" + (f" less newcomers={recipe.newcomers}" if recipe.newcomers else "")
        raise PromptFedError(f"per_round={recipe.per_round} is more than {there}.")


def check_device(device: str) -> None:
    """Refuse a device name that torch would not know."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise choice("device", device, ["auto", "cpu", "cuda"])


def build_method(recipe: Recipe) -> "Method":
    """Return the recipe's method."""
    return make_method(recipe.method, recipe.prompt)


def training(recipe: Recipe) -> Recipe:
    """Return the recipe without the options that matter in testing alone: equal ones train the same."""
    testing = build_method(recipe).traits.testing
    return replace(recipe, method={key: value for key, value in recipe.method.items() if key not in testing})
