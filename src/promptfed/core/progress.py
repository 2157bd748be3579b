"""A progress bar with an ETA for anything that may take over two seconds; silent where no person watches."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

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
    from rich import progress  # only here: a command that draws nothing starts without it
    from rich.console import Console

    text = progress.TextColumn
    amounts: list[progress.ProgressColumn] = [progress.MofNCompleteColumn()]
    if unit == "bytes":
        amounts = [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    columns = [text("{task.description}", markup=False), progress.BarColumn(), *amounts]
    columns += [progress.TimeElapsedColumn(), text("eta"), progress.TimeRemainingColumn()]
    with progress.Progress(
        *columns, text("{task.fields[note]}", markup=False), console=Console(stderr=True, emoji=False)
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
