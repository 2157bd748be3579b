"""Requests that get no answer: a status and one sentence."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Refusal(Exception):  # noqa: N818  (it is an answer, not an error of ours)
    """A request that is refused with a status, a sentence and, where there are any, headers."""

    status: int
    sentence: str
    headers: Mapping[str, str] = field(default_factory=dict)
