"""A progress bar with an ETA for anything that may take over two seconds; silent where no person watches."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Advance(Protocol):
    """Moves a bar on by `amount` and writes a note beside it."""

    def __call__(self, amount: float, note: str = "") -> None:
        """Move on."""
        ...


@contextmanager
def bar(what: str, total: float, *, unit: str = "count") -> Iterator[Advance]:
    """Yield `advance(amount, note)`. Draws on standard error, and only when that is a terminal.

    `unit` is "count" for things, or "bytes" for a transfer.
    """
    if not sys.stderr.isatty():
        yield _silent
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    amounts = [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn()]
    columns = [TextColumn("{task.description}"), BarColumn(), *amounts, TimeElapsedColumn(), TextColumn("eta")]
    with Progress(
        *columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=Console(stderr=True)
    ) as p:
        task = p.add_task(what, total=total, note="")

        def advance(amount: float, note: str = "") -> None:
            p.update(task, advance=amount, note=note)

        yield advance


def _silent(amount: float, note: str = "") -> None:
    """Draw nothing."""
