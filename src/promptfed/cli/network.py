"""`promptfed simulate-network`: how long finished runs would have taken on other links and devices."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptfed.cli.arguments import Dirs, Form, print_table

if TYPE_CHECKING:
    from promptfed.analysis.network.timeline import Timeline
    from promptfed.results.report.table import Cell, Table


def simulate_network(
    folders: Dirs,
    profile: Annotated[
        str, typer.Option(help="data-centre, clinic-dsl, mobile, or a .toml file.", metavar="NAME")
    ] = "clinic-dsl",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a number of the profile; may be repeated.", metavar="KEY=NUMBER"),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            min=0, max=100, help="The accuracy to reach, in percent; the default is the least of the runs' best."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the clients' links, devices and hours.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Draw accuracy over hours: a .png, .svg or .pdf file.", metavar="FILE")
    ] = None,
    form: Form = None,
) -> None:
    """Tell how long finished runs would have taken over other links and on other devices.

    Bytes, training times and accuracies are those that the runs recorded; only the clock is simulated. A round waits
    for the last of its clients:

        promptfed simulate-network runs/fedavg runs/prompts --profile mobile --set up_mbit=2 --out hours.png

    A run whose server does not wait for all (clock.mode=fedbuff or semi) has its times on record, for its own links.
    """
    from promptfed.analysis.network.timeline import simulate
    from promptfed.federation.clock.links import read_profile

    links = read_profile(profile, changes or [])
    if out is not None:
        from promptfed.analysis.figures.drawing import check_place

        check_place(out)
    from promptfed.analysis.figures.records import named
    from promptfed.results.folder.reader import run_folders

    runs = named(run_folders(folders))
    found = {name: simulate(run, links, seed) for name, run in runs.items()}
    sent = {name: run.traffic.down_bytes + run.traffic.up_bytes for name, run in runs.items()}
    print_table(_table(found, sent, None if target is None else target / 100), form)
    if out is not None:
        from promptfed.analysis.figures.drawing import save
        from promptfed.analysis.network.drawing import draw

        save(draw(found, links, profile), "network", out)
        typer.echo(f"Figure {out}")


def _table(found: Mapping[str, "Timeline"], sent: Mapping[str, float], target: float | None) -> "Table":
    """Return a row per run: its hours, what each round's last client spent them on, and when it was good enough."""
    from promptfed.results.report.table import Cell, Column, Table, human_bytes, percent

    bests = [max(mean for _, mean in line.points) for line in found.values() if line.points]
    target = target if target is not None else min(bests, default=None)
    goal = "target" if target is None else f"hours to {percent(target)} %"
    columns = (
        Column("run", "", ("run",), numeric=False),
        Column("hours", "of all rounds", ("hours",)),
        Column("waiting", "for the hours in which a client works", ("waiting_hours",)),
        Column("transfer", "of what is received and sent", ("transfer_hours",)),
        Column("training", "as recorded, times the profile's slowness", ("training_hours",)),
        Column("repeated", "attempts that broke off", ("repeated_hours",)),
        Column(goal, "when the mean accuracy of the models as received was first as high", ("target_hours",)),
        Column("best, %", "the highest of that accuracy", ("best",)),
        Column("sent", "by and to all clients", ("bytes",)),
    )
    rows = []
    for name, line in found.items():
        part = line.part
        spent = (part.waiting, part.transfer, part.training, part.repeated) if part else (None,) * 4
        reached = None if target is None else line.reached(target)
        best = max((mean for _, mean in line.points), default=None)
        rows.append(
            (
                Cell(name, (name,)),
                *map(_cell, (line.hours, *(None if one is None else one / 3600 for one in spent), reached)),
                Cell("–" if best is None else percent(best), ("" if best is None else str(best),)),
                Cell(human_bytes(sent[name]), (str(sent[name]),)),
            )
        )
    about = "hours of the client that each round waited for, on simulated links and devices"
    return Table(columns, tuple(rows), about=about)


def _cell(hours: float | None) -> "Cell":
    """Return a cell of hours, or of nothing."""
    from promptfed.results.report.table import Cell

    if hours is None:
        return Cell("–", ("",))
    return Cell(f"{hours:.3g}" if hours < 1000 else f"{hours:,.0f}", (str(hours),))
