"""A progress bar with an ETA for anything that may take over two seconds; silent where no person watches."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from promptfed.core.printable import printable


class Advance(Protocol):
    """Moves a bar on by `amount`, which may be a part of one, and writes a note beside it, if there is a new one."""

    def __call__(self, amount: float, note: str | None = None) -> None:
        """Move on."""
        ...


_hushed: list[bool] = []


def hush() -> None:
    """Draw no bars any more: another process of the run does."""
    _hushed.append(True)


@contextmanager
def bar(what: str, total: float, *, unit: str = "count") -> Iterator[Advance]:
    """Yield `advance(amount, note)`. Draws on standard error, and only when that is a terminal.

    `unit` is "count" for things, or "bytes" for a transfer.
    """
    if _hushed or not sys.stderr.isatty():
        yield _silent
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    amounts = [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn()]
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *amounts,
        TimeElapsedColumn(),
        TextColumn("eta"),
    ]
    with Progress(
        *columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}", markup=False), console=Console(stderr=True)
    ) as p:
        task = p.add_task(printable(what), total=total, note="")
        done, beside = 0.0, ""

        def advance(amount: float, note: str | None = None) -> None:
            nonlocal done, beside
            done, beside = done + amount, beside if note is None else note
            p.update(task, completed=round(done, 6), note=beside)  # parts of one add up to one

        yield advance


def about_left(seconds: float | None) -> str:
    """Return the end of a line that says about how long the rest of many runs takes; nothing if that is not known."""
    if seconds is None:
        return ""
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"; about {f'{hours} h ' if hours else ''}{minutes} min left" if hours or minutes else "; almost done"


def _silent(amount: float, note: str | None = None) -> None:
    """Draw nothing."""
