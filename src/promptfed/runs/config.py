"""Reading recipes: from a file, a shipped recipe or a method's name, and dotted overrides, to frozen values."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from promptfed.backbones import BACKBONES
from promptfed.core import options
from promptfed.core.errors import PromptFedError, choice
from promptfed.core.method import Method
from promptfed.data.datasets import DATASETS
from promptfed.data.partition import PARTITIONS
from promptfed.federation import guards
from promptfed.methods.with_frame import WithFrame
from promptfed.runs import nested, registry
from promptfed.runs.cells import SUFFIX, TableCell
from promptfed.runs.nested import NestedTable
from promptfed.runs.recipe import DEFAULTS, PROMPTED, TABLES, EvaluateOptions, FleetOptions
from promptfed.runs.recipe import Recipe as Recipe

# -- reading --------------------------------------------------------------------------------------------------------


def load(source: str, overrides: Sequence[str] = ()) -> list[Recipe]:
    """Read a recipe file, a shipped recipe or a method's name, apply `key=value` overrides, and expand sweeps."""
    content, where = _read(source)
    return expand(content, overrides, where)


def load_one(source: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe that is one run, or refuse a sweep."""
    return single(load(source, overrides))


def single(found: list[Recipe]) -> Recipe:
    """Return the one recipe, or refuse a sweep."""
    if len(found) != 1:
        raise PromptFedError(
            f"This recipe is a sweep of {len(found)} runs; give every key one value here. `promptfed run` without "
            "--resume runs a sweep."
        )
    return found[0]


def describe(name: str) -> tuple[str, NestedTable]:
    """Return what a shipped recipe says about itself, and the keys it sets."""
    first = registry.recipes()[name].read_text(encoding="utf-8").split("\n", 1)[0]
    about = first.removeprefix("#").strip() if first.startswith("#") else ""
    found = registry.find_recipe(name)
    if isinstance(found, TableCell):
        about = f"{found.row.title}, {found.column.title}: {about}"
    return about, _read(name)[0]


def expand(content: NestedTable, overrides: Sequence[str], where: str) -> list[Recipe]:
    """Return the recipes of `content` after `key=value` overrides: one, or as many as a sweep has runs."""
    content, changes = nested.copied(content), []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise PromptFedError(f'"{override}" is no key=value; write for example rounds=20 or method.lr=0.01.')
        changes.append((key.strip(), nested.read_value(text)))
    for key, value in sorted(changes, key=lambda change: not change[0].endswith(".name")):
        part = key.removesuffix(".name")
        table = content.get(part)
        if key != part and isinstance(table, dict) and table.get("name", DEFAULTS.get(part)) != value:
            table.clear()  # the other thing's fields mean nothing to the new one
        nested.set_key(content, key, value)
    return [resolve(single, where) for single in _sweep(content)]


def _read(source: str) -> tuple[NestedTable, str]:
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
        return tomllib.loads(path.read_text(encoding="utf-8")), str(path)
    except OSError as error:
        raise PromptFedError(f"The recipe {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PromptFedError(f"The recipe {path} is not valid TOML: {error}.") from error


def _check_method(source: str) -> None:
    """Refuse a name that is neither a method nor a recipe; a dotted path is looked up later."""
    methods = registry.methods()
    if ":" in source or source.removesuffix(PROMPTED) in methods:
        return
    # the cells of tables all have a slash in their names: only then are the tables worth reading
    recipes = registry.recipes() if "/" in source else registry.single_recipes()
    raise choice("method or recipe", source, {**methods, **recipes})


def _sweep(content: NestedTable) -> Iterator[NestedTable]:
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
        name = registry.find_method(method.removesuffix(PROMPTED)).backbone
    if not isinstance(name, str):
        return False
    kind = BACKBONES.get(name) if path[0] == "backbone" else registry.find_method(name.removesuffix(PROMPTED))
    return kind is not None and str(options.hints(kind).get(path[1], "")).startswith("tuple")


# -- resolving ------------------------------------------------------------------------------------------------------


def resolve(content: Mapping[str, Any], where: str = "the recipe") -> Recipe:
    """Return the recipe with every field filled in and checked."""
    hints, default = options.hints(Recipe), asdict(Recipe())
    for key, table in _method_recipe(content).items():
        default[key] = dict(table) if "name" in table else default[key] | table
    given: NestedTable = {}
    for key, value in content.items():
        if key not in hints:
            raise choice("key", key, hints, where)
        if key in TABLES:
            if not isinstance(value, dict):
                first = {"prompt": "kind", "guards": "robust"}.get(key, "name")
                raise PromptFedError(f"{key} in {where} must be a table: write {key}.{first}={value}.")
            # keys without a name change the embedded default
            given[key] = dict(value) if "name" in value else default[key] | value
        else:
            given[key] = options.typed(key, value, hints[key])
    recipe = Recipe(**{"data": default["data"], "partition": default["partition"]} | given)
    if recipe.newcomers >= recipe.clients:
        raise PromptFedError(f"newcomers={recipe.newcomers} leaves none of clients={recipe.clients} to begin with.")
    if recipe.per_round > recipe.clients - recipe.newcomers:
        there = f"clients={recipe.clients}" + (f" less newcomers={recipe.newcomers}" if recipe.newcomers else "")
        raise PromptFedError(f"per_round={recipe.per_round} is more than {there}.")
    method = recipe.method.get("name")
    if "name" not in recipe.backbone and isinstance(method, str):
        plain = registry.find_method(method.removesuffix(PROMPTED))
        recipe = replace(recipe, backbone={"name": plain.backbone} | recipe.backbone)
    check_device(recipe.device)
    method_table, prompt_table = _fill_method(recipe.method, recipe.prompt)
    recipe = replace(
        recipe,
        method=method_table,
        prompt=prompt_table,
        data=_fill(recipe.data, "data", DATASETS),
        partition=_fill(recipe.partition, "partition", PARTITIONS),
        backbone=_fill_backbone(recipe.backbone),
        fleet=_plain(options.make(FleetOptions, recipe.fleet, "fleet")),
        evaluate=_plain(options.make(EvaluateOptions, recipe.evaluate, "evaluate")),
        guards=guards.filled(recipe.guards),
    )
    founders = recipe.per_round or recipe.clients - recipe.newcomers
    guards.check(recipe.guards, build_method(recipe), min(founders, recipe.newcomers or founders))
    return recipe


def _method_recipe(content: Mapping[str, Any]) -> Mapping[str, Mapping[str, object]]:
    """Return the tables that recipes of this recipe's method start from."""
    method = content.get("method")
    name = method.get("name") if isinstance(method, dict) else None
    return registry.find_method(name.removesuffix(PROMPTED)).recipe if isinstance(name, str) else {}


def check_device(device: str) -> None:
    """Refuse a device name that torch would not know."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise choice("device", device, ["auto", "cpu", "cuda"])


def _named(table: NestedTable, what: str) -> tuple[str, NestedTable]:
    rest = dict(table)
    name = rest.pop("name", None)
    if not isinstance(name, str):
        raise PromptFedError(f"{what}.name is missing in the recipe; `promptfed list` shows the choices.")
    return name, rest


def _fill(table: NestedTable, what: str, registry: Mapping[str, type]) -> NestedTable:
    name, given = _named(table, what)
    kind, colon, path = name.partition(":")
    if kind == "file" and what == "partition":
        if given:
            raise PromptFedError(f"A saved partition takes no keys: leave out partition.{next(iter(given))}.")
        return {"name": name}
    noun = "data set" if what == "data" else what
    if kind not in registry:
        raise choice(noun, kind, registry, "the recipe")
    takes_path = "path" in options.hints(registry[kind])
    if takes_path and not path:
        raise PromptFedError(f'{noun.capitalize()} "{kind}" needs a path: write {what}.name={kind}:PATH.')
    if colon and not takes_path:
        raise PromptFedError(f'{noun.capitalize()} "{kind}" takes no path: write {what}.name={kind}.')
    own = {"path": path} if takes_path else {}
    made: Any = options.make(registry[kind], given, what, own)
    return {"name": name} | {key: value for key, value in _plain(made).items() if key not in own}


def _fill_backbone(table: NestedTable) -> NestedTable:
    """Fill in a backbone's options; it is built once the images' size is known."""
    name, given = _named(table, "backbone")
    if name not in BACKBONES:
        raise choice("backbone", name, BACKBONES, "the recipe")
    fixed = {"shape": None, "classes": None, "names": None}
    return (
        {"name": name} | options.defaults(BACKBONES[name]) | options.checked(BACKBONES[name], given, "backbone", fixed)
    )


def _fill_method(table: NestedTable, prompt: NestedTable) -> tuple[NestedTable, NestedTable]:
    """Fill in a method's options, and those of its visual prompt if it has one; the method's name then says so."""
    name, given = _named(table, "method")
    plain = name.removesuffix(PROMPTED)
    kind = registry.find_method(plain)
    preset = given.pop("preset", None)
    if preset is not None:
        if preset not in kind.presets:
            raise choice("preset", str(preset), kind.presets, f"method {name}")
        given = {**kind.presets[str(preset)], **given}
    made = options.make(kind, given, "method")
    if not prompt and name == plain:
        return {"name": name} | _plain(made), {}
    wrapped = _plain(_prompted(made, _sized(prompt)))
    del wrapped["inner"]
    return {"name": plain + PROMPTED} | _plain(made), wrapped


def _sized(prompt: NestedTable) -> NestedTable:
    """Return a prompt's options with the frame's `pad`, as papers call it, under the name it shares with patches."""
    if "pad" not in prompt:
        return prompt
    if "size" in prompt or prompt.get("kind", "frame") != "frame":
        raise PromptFedError("prompt.pad is another name for the prompt.size of a frame; give prompt.size alone.")
    return {"size" if key == "pad" else key: value for key, value in prompt.items()}


def _prompted(method: Method, prompt: NestedTable) -> WithFrame:
    """Return the method with a visual prompt, unless the two do not go together."""
    if "prompt" in options.hints(type(method)):
        raise PromptFedError(f"{method.name} has a prompt of its own: set method.prompt and method.size, not [prompt].")
    if method.traits.reads == "features":
        raise PromptFedError(
            f"{method.name} reads features that are computed once, and [prompt] changes pixels; leave [prompt] out."
        )
    return options.make(WithFrame, prompt, "prompt", {"inner": method})


def _plain(made: Any) -> NestedTable:
    return {item.name: getattr(made, item.name) for item in fields(made)}


def build_method(recipe: Recipe) -> Method:
    """Return the recipe's method."""
    name, given = _named(recipe.method, "method")
    method = options.make(registry.find_method(name.removesuffix(PROMPTED)), given, "method")
    return _prompted(method, recipe.prompt) if recipe.prompt else method


def training(recipe: Recipe) -> Recipe:
    """Return the recipe without the options that matter in testing alone: equal ones train the same."""
    testing = build_method(recipe).traits.testing
    return replace(recipe, method={key: value for key, value in recipe.method.items() if key not in testing})
