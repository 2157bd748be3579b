"""A progress bar with an ETA for anything that may take over two seconds; silent where no person watches."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[float, str], None]


@contextmanager
def bar(what: str, total: float, *, unit: str = "count") -> Iterator[Advance]:
    """Yield `advance(amount, note)`. Draws on standard error, and only when that is a terminal.

    `unit` is "count" for things, or "bytes" for a transfer.
    """
    if not sys.stderr.isatty():
        yield lambda amount, note="": None
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    amounts = [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn()]
    columns = [TextColumn("{task.description}"), BarColumn(), *amounts, TimeElapsedColumn(), TextColumn("eta")]
    with Progress(
        *columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=Console(stderr=True)
    ) as p:
        task = p.add_task(what, total=total, note="")
        yield lambda amount, note="": p.update(task, advance=amount, note=note)
