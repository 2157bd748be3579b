"""Commands for whoever looks after the machines: is everything as it must be, and is the party up?"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from promptfed.cli.terminal import complain, console, say
from promptfed.core.errors import PromptFedError
from promptfed.core.printable import printable

COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "dim"}


def doctor(
    place: Annotated[
        Path,
        typer.Argument(help="A site's kit or --home, or the coordinator's folder.", metavar="KIT|HOME|FEDERATION"),
    ],
    data: Annotated[
        str | None, typer.Option(help="On a site's machine: its images, as `sites join` takes them.")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="With a kit: the folder for the site's state.")] = None,
    wait: Annotated[float, typer.Option(help="How long the port may take to answer, in seconds.", min=0.1)] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check certificate, clock, port, versions, disk, permissions and images; exit with 1 if anything fails.

    promptfed sites doctor street.zip --data photographs
    promptfed sites doctor federation
    """
    from promptfed.sites.doctor import examine
    from promptfed.sites.machine_checks import failures

    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise PromptFedError("Certificates cannot be read; install: pip install 'promptfed[flare]'.") from error
    findings = examine(place, data, home, wait)
    if as_json:
        typer.echo(json.dumps([vars(finding) for finding in findings], indent=1))
    else:
        shown = Table(box=None, pad_edge=False, show_header=False)
        for finding in findings:
            verdict = Text(finding.verdict, style=COLOURS[finding.verdict])
            shown.add_row(finding.check, verdict, Text(printable(finding.says)))
        console.print(shown)
    if failures(findings):
        raise typer.Exit(1)


def health(
    folder: Annotated[
        Path, typer.Argument(help="The --home of a site, or the coordinator's folder.", metavar="HOME|FEDERATION")
    ],
    wait: Annotated[float, typer.Option(help="Wait so many seconds for it to become well.", min=0)] = 0.0,
) -> None:
    """Say whether a coordinator's server answers, or a site is in touch with it; exit with 1 if not.

    promptfed sites health federation
    promptfed sites health street/state
    """
    from promptfed.sites.health import wait_for_health

    if trouble := wait_for_health(folder, wait):
        complain(trouble)
        raise typer.Exit(1)
    say("ok")
