"""From the keys of a recipe's table to a dataclass; unknown keys, wrong types and numbers out of range are refused."""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from promptfed.core.errors import PromptFedError, choice

Made = TypeVar("Made")


@dataclass(frozen=True)
class Range:
    """The numbers a field allows."""

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def check(self, key: str, value: float) -> None:
        """Refuse a number outside."""
        if self.least is not None and not value >= self.least:
            raise PromptFedError(f"{key} must be at least {self.least:g}, not {value:g}.")
        if self.above is not None and not value > self.above:
            raise PromptFedError(f"{key} must be above {self.above:g}, not {value:g}.")
        if self.most is not None and not value <= self.most:
            raise PromptFedError(f"{key} must be at most {_plain(self.most)}, not {_plain(value)}.")


LARGEST = 2**63 - 1  # of a whole number, as TOML and torch have it
LARGEST_FLOAT = 3.4028234663852886e38  # of the 32-bit numbers that models are computed in
LARGEST_COUNT = 2**31 - 1
SHOWN = 80  # characters of a wrong value in a message

Count = Annotated[int, Range(least=1, most=LARGEST_COUNT)]
Whole = Annotated[int, Range(least=0)]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(least=0, most=1)]

# tables that no class is chosen for by `name`
UNNAMED = ("evaluate", "guards", "prompt", "schedule", "train", "stop", "clock")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def hints(kind: type) -> dict[str, Any]:
    """Return the type of every field that is an option."""
    found = get_type_hints(kind, include_extras=True)
    return {field.name: found[field.name] for field in fields(kind) if get_origin(found[field.name]) is not ClassVar}


def defaults(kind: type) -> dict[str, Any]:
    """Return the options of a dataclass that have a default, with it."""
    return {field.name: field.default for field in fields(kind) if field.default is not MISSING}


def make(kind: type[Made], given: Mapping[str, object], table: str, fixed: Mapping[str, object] | None = None) -> Made:
    """Build `kind` from a recipe's `table`; `fixed` fields are the engine's own and no keys."""
    return kind(**dict(fixed or {}), **checked(kind, given, table, fixed or {}))


def checked(kind: type, given: Mapping[str, object], table: str, fixed: Mapping[str, object]) -> dict[str, Any]:
    """Return the given keys with the types their fields ask for; an unknown or missing key is refused."""
    valid = {name: hint for name, hint in hints(kind).items() if name not in fixed}
    known = valid if table in UNNAMED else [*valid, "name"]  # nothing there is chosen by name
    for key in given:
        if key not in valid:
            raise choice("key", f"{table}.{key}", [f"{table}.{name}" for name in known], "the recipe")
    for field in fields(kind):
        required = field.default is MISSING and field.default_factory is MISSING
        if field.name in valid and required and field.name not in given:
            raise PromptFedError(f"{table}.{field.name} is missing in the recipe; it has no default.")
    return {key: typed(f"{table}.{key}", value, valid[key]) for key, value in given.items()}


def typed(key: str, value: object, hint: Any) -> Any:
    """Return `value` as the type `hint` asks for, or say what it should have been."""
    if get_origin(hint) is Annotated:
        inner, *rules = get_args(hint)
        result = typed(key, value, inner)
        for rule in rules:
            rule.check(key, result)
        return result
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise choice(f"{key}", value if isinstance(value, str) else _short(value), map(str, get_args(hint)))
        return value
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(arg for arg in get_args(hint) if arg is not type(None))
        return None if value is None else typed(key, value, inner)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise PromptFedError(f"{key} must be a list, not {_short(value)}.")
        return tuple(typed(key, item, get_args(hint)[0]) for item in value)
    if type(value) is int and abs(value) > LARGEST:
        raise PromptFedError(f"{key} must be at most {LARGEST}; it has {value.bit_length()} bits.")
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise PromptFedError(f"{key} must be {_WORDS.get(hint, str(hint))}, not {_short(value)}.")
    if isinstance(value, float) and LARGEST_FLOAT < abs(value) < math.inf:
        raise PromptFedError(f"{key} must be at most {LARGEST_FLOAT:g}, which 32-bit numbers can hold, not {value:g}.")
    return value


def _short(value: object) -> str:
    """Return a value for a message, or the start of a long one."""
    if type(value) is int and abs(value) > LARGEST:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return f"{text[:SHOWN]}…" if len(text) > SHOWN else text


def _plain(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
