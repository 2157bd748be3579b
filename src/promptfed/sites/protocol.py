"""What coordinator and sites agree on: the parts of an answer, and the names of personal trees."""

from collections.abc import Mapping
from typing import TypeVar

from promptfed.core.tree import Tree

Value = TypeVar("Value")


def version(round: int, nonce: str) -> str:  # noqa: A002
    """Return the name of the personal tree that the request with this nonce makes; names sort by round."""
    return f"{round + 1:06d}-{nonce[:16]}"


def join_parts(parts: Mapping[str, Tree]) -> Tree:
    """Return several trees as one; every name is prefixed with its part's."""
    return {f"{part}.{name}": value for part, content in parts.items() for name, value in content.items()}


def pick_part(whole: Mapping[str, Value], name: str) -> dict[str, Value]:
    """Return one of several joined parts, under the original names."""
    return {key.removeprefix(f"{name}."): value for key, value in whole.items() if key.startswith(f"{name}.")}
