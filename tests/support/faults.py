"""What goes wrong at sites and at their coordinator."""

from typing import Any

from promptfed.sites import wire
from support.three_sites import Ask


def ignore(line: object) -> None:
    """Show nothing."""


def away(absent: dict[str, set[int]]) -> Any:
    """Return sites that answer nothing in the given rounds."""

    def wrap(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            head = wire.unpack(request, 2**30).head
            if head["kind"] != "hello" and head["round"] in absent.get(site, ()):
                raise OSError("it is away")
            return ask(request)

        return answer

    return wrap


class Crash(Exception):  # noqa: N818
    """Stands for whatever ends the coordinator's process."""
