"""Requests that get no answer: a status and one sentence."""

from collections.abc import Mapping
from typing import NoReturn


class Refusal(Exception):  # noqa: N818  (it is an answer, not an error of ours)
    """A request that is refused with a status, a sentence and, where there are any, headers."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})


def refuse_busy() -> NoReturn:
    """Refuse for lack of room."""
    raise Refusal(429, "The server has as much as it can take; ask again in a second.", {"Retry-After": "1"})
