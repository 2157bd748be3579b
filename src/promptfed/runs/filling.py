"""Filling in a recipe's tables: every option checked, and the defaults added."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from promptfed.core import options
from promptfed.core.errors import PromptFedError, choice
from promptfed.runs import catalogue, registry
from promptfed.runs.nested import NestedTable
from promptfed.runs.recipe import PROMPTED

if TYPE_CHECKING:
    from promptfed.core.method import Method
    from promptfed.methods.with_frame import WithFrame


def fill_named(table: NestedTable, what: str, known: Mapping[str, type]) -> NestedTable:
    """Fill in the options of the data set or partition that a table names."""
    name, given = _named(table, what)
    kind, colon, path = name.partition(":")
    if kind == "file" and what == "partition":
        if given:
            raise PromptFedError(f"A saved partition takes no keys: leave out partition.{next(iter(given))}.")
        return {"name": name}
    noun = "data set" if what == "data" else what
    if kind not in known:
        raise choice(noun, kind, known, "the recipe")
    takes_path = "path" in options.hints(known[kind])
    if takes_path and not path:
        raise PromptFedError(f'{noun.capitalize()} "{kind}" needs a path: write {what}.name={kind}:PATH.')
    if colon and not takes_path:
        raise PromptFedError(f'{noun.capitalize()} "{kind}" takes no path: write {what}.name={kind}.')
    own = {"path": path} if takes_path else {}
    made: Any = options.make(known[kind], given, what, own)
    return {"name": name} | {key: value for key, value in as_table(made).items() if key not in own}


def fill_backbone(table: NestedTable) -> NestedTable:
    """Fill in a backbone's options; it is built once the images' size is known."""
    name, given = _named(table, "backbone")
    known = catalogue.backbones()
    if name not in known:
        raise choice("backbone", name, known, "the recipe")
    fixed = {"shape": None, "classes": None, "names": None}
    return {"name": name} | options.defaults(known[name]) | options.checked(known[name], given, "backbone", fixed)


def fill_method(table: NestedTable, prompt: NestedTable) -> tuple[NestedTable, NestedTable]:
    """Fill in a method's options, and those of its visual prompt if it has one; the method's name then ends in it."""
    name, given = _named(table, "method")
    plain = name.removesuffix(PROMPTED)
    wrapped = bool(prompt) or name != plain
    kind: type[Any] = registry.find_method(plain) if wrapped else catalogue.find_method(plain)
    preset = given.pop("preset", None)
    if preset is not None:
        if not isinstance(preset, str) or preset not in kind.presets:
            raise choice("preset", str(preset), kind.presets, f"method {name}")
        given = {**kind.presets[str(preset)], **given}
    made = options.make(kind, given, "method")
    if not wrapped:
        return {"name": name} | as_table(made), {}
    frame = as_table(_prompted(made, _sized(prompt)))
    del frame["inner"]
    return {"name": plain + PROMPTED} | as_table(made), frame


def _sized(prompt: NestedTable) -> NestedTable:
    """Return a prompt's options with a frame's `pad`, as papers call it, renamed to `size`."""
    if "pad" not in prompt:
        return prompt
    if "size" in prompt or prompt.get("kind", "frame") != "frame":
        raise PromptFedError("prompt.pad is another name for the prompt.size of a frame; give only prompt.size.")
    return {"size" if key == "pad" else key: value for key, value in prompt.items()}


def make_method(table: NestedTable, prompt: NestedTable) -> "Method":
    """Return the method of a [method] table, with the visual prompt of a [prompt] table if there is one."""
    name, given = _named(table, "method")
    method = options.make(registry.find_method(name.removesuffix(PROMPTED)), given, "method")
    return _prompted(method, prompt) if prompt else method


def _prompted(method: "Method", prompt: NestedTable) -> "WithFrame":
    """Return the method with a visual prompt, or refuse a method that cannot have one."""
    from promptfed.methods.with_frame import WithFrame

    if "prompt" in options.hints(type(method)):
        raise PromptFedError(f"{method.name} has a prompt of its own: set method.prompt and method.size, not [prompt].")
    if method.traits.reads != "pixels":
        raise PromptFedError(
            f"{method.name} reads features that are computed once, and [prompt] changes pixels; leave [prompt] out."
        )
    return options.make(WithFrame, prompt, "prompt", {"inner": method})


def _named(table: NestedTable, what: str) -> tuple[str, NestedTable]:
    rest = dict(table)
    name = rest.pop("name", None)
    if not isinstance(name, str):
        raise PromptFedError(f"{what}.name is missing in the recipe; `promptfed list` shows the choices.")
    return name, rest


def as_table(made: Any) -> NestedTable:
    """Return an object's fields by name."""
    return {item.name: getattr(made, item.name) for item in fields(made)}
