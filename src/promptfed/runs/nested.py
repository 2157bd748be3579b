"""Nested tables of plain values, such as recipes: under dotted keys, and as TOML."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from promptfed.core.errors import PromptFedError

NestedTable = dict[str, Any]
BARE_LIST = re.compile(r"\[([^][{}\"',=]+(?:,[^][{}\"',=]+)*)\]")  # such as [iid,dirichlet]
DEEPEST = 16  # levels of tables and lists; a recipe has three


def leaves(content: NestedTable, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield every value with the keys that lead to it."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def copied(content: NestedTable) -> NestedTable:
    """Return a deep copy of the tables, with the same values."""
    return {key: copied(value) if isinstance(value, dict) else value for key, value in content.items()}


def parse(text: str) -> NestedTable:
    """Return the content of a TOML text; what is no TOML, or too much of it, is a ValueError that says why."""
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python's own limit
        raise ValueError("a number in it has too many digits") from None
    level: list[object] = [content]
    for _ in range(DEEPEST):
        level = [inner for value in level for inner in _inside(value)]
    if level:
        raise ValueError("it is nested too deeply")
    return content


def _inside(value: object) -> Iterable[object]:
    """Return what a table or a list holds."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def set_key(content: NestedTable, key: str, value: object) -> None:
    """Set a value under a dotted key; missing tables are created."""
    *tables, last = key.split(".")
    if len(tables) > DEEPEST:
        raise PromptFedError(f'"{key[:40]}…" has too many dots; keys look like method.lr.')
    place = content
    for table in tables:
        place = place.setdefault(table, {})
        if not isinstance(place, dict):
            raise PromptFedError(f'"{key}": {table} is a value, not a table.')
    place[last] = value


def read_value(text: str) -> object:
    """Read a value as TOML; a bare word is a string, also in a list such as [iid,dirichlet]."""
    try:
        return parse(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        listed = BARE_LIST.fullmatch(text)
        return [read_value(part.strip()) for part in listed[1].split(",")] if listed else text
    except ValueError as error:
        raise PromptFedError(f'The value "{text[:40]}…" cannot be read: {error}.') from error


def literal(value: object) -> str:
    """Write one value as TOML; numbers and arrays of NumPy and PyTorch become plain ones."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(literal(item) for item in value)}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def to_toml(content: Mapping[str, Any]) -> str:
    """Write plain values and one level of tables as TOML."""
    lines = [f"{key} = {literal(value)}" for key, value in content.items() if not isinstance(value, dict)]
    for key, table in content.items():
        if isinstance(table, dict) and table:
            lines += ["", f"[{key}]", *(f"{name} = {literal(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"
