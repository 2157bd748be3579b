"""Watching runs in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from promptfed.cli.arguments import existing
from promptfed.cli.terminal import say
from promptfed.core.errors import PromptFedError


def watch(
    runs: Annotated[
        Path, typer.Argument(help="A folder of runs, or of a single one.", metavar="RUNS", callback=existing)
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free one.")] = 8001,
    everyone: Annotated[bool, typer.Option("--open", help="Show the runs to other machines.")] = False,
) -> None:
    """Show running and finished runs in the browser, as they grow.

    New runs below the folder appear by themselves. Nothing in the folder is changed:

        promptfed watch runs
    """
    try:
        from promptfed.serving.listening import place
        from promptfed.serving.watching.live import watch as show
    except ModuleNotFoundError as error:
        raise PromptFedError('promptfed watch needs the [serve] extra: pip install "promptfed[serve]".') from error

    def ready(chosen: int) -> None:
        say(f"Watching {runs} at {place(host, chosen)}; press Ctrl-C to stop.")

    show(runs, host, port, ready, everyone=everyone)
