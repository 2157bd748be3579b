"""Parts of a table's file, checked as they are read."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError, choice

Content = dict[str, Any]


def read_toml(path: Path) -> Content:
    """Return the content of a table's file, or of one that its rows come from."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PromptFedError(f"The table {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PromptFedError(f"The table {path} is not valid TOML: {error}.") from error


def merge(content: Mapping[str, Any], change: Mapping[str, Any]) -> Content:
    """Return `content` with the keys of `change`; a table that gets another `name` loses its old fields."""
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in content.items()}
    for key, value in change.items():
        if isinstance(value, dict):
            old = merged.get(key, {})
            renamed = "name" in old and value.get("name", old["name"]) != old["name"]
            merged[key] = dict(value) if renamed else old | value
        else:
            merged[key] = value
    return merged


def check_keys(given: Content, valid: Sequence[str], required: Sequence[str], where: str) -> None:
    """Refuse an unknown key, and one that is missing."""
    for key in given:
        if key not in valid:
            raise choice("key", key, valid, where)
    for key in required:
        if key not in given:
            raise PromptFedError(f"{key} is missing in {where}.")


def entries(content: Content, key: str, where: str, least: int = 1) -> list[Content]:
    """Return the tables under [[key]]; their names must differ and be usable as folder names."""
    found = content.get(key, [])
    if not isinstance(found, list) or len(found) < least or not all(isinstance(entry, dict) for entry in found):
        raise PromptFedError(f"{where} must have at least one [[{key}]].")
    names = [str(entry.get("name", "")) for entry in found]
    for name in names:
        if not name or "/" in name or name in (".", "..", "tune", "tuned") or names.count(name) > 1:
            raise PromptFedError(f'Every [[{key}]] in {where} needs a unique plain name, not "{name}".')
    return found


def table_in(content: Content, key: str, where: str) -> Content:
    """Return the table under a key; an empty one if there is none."""
    value = content.get(key, {})
    if not isinstance(value, dict):
        raise PromptFedError(f"{key} in {where} must be a table.")
    return value


def texts_in(content: Content, key: str, where: str, what: str = "sentences") -> tuple[str, ...]:
    """Return the list of texts under a key; an empty one if there is none."""
    value = content.get(key, [])
    if not isinstance(value, list):
        raise PromptFedError(f"{key} in {where} must be a list of {what}.")
    return tuple(map(str, value))


def number(value: object, where: str) -> float | None:
    """Return a number, or None for none."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise PromptFedError(f"A value in {where} must be a number, not {value!r}.")
    return None if value is None else float(value)
