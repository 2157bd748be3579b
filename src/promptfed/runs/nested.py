"""Nested tables of plain values, such as recipes: under dotted keys, and as TOML."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from promptfed.core.errors import PromptFedError

NestedTable = dict[str, Any]


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


def set_key(content: NestedTable, key: str, value: object) -> None:
    """Set a value under a dotted key; missing tables are created."""
    *tables, last = key.split(".")
    place = content
    for table in tables:
        place = place.setdefault(table, {})
        if not isinstance(place, dict):
            raise PromptFedError(f'"{key}": {table} is a value, not a table.')
    place[last] = value


def read_value(text: str) -> object:
    """Read a value as TOML; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


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
