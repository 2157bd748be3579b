"""`promptfed jobs`: what runs where."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptfed.cli.arguments import Form, existing, print_table
from promptfed.cli.terminal import complain

if TYPE_CHECKING:
    from promptfed.papers.progress import RunState
    from promptfed.results.report.table import Table


def jobs(
    out: Annotated[Path, typer.Argument(help="The --out of promptfed reproduce.", metavar="DIR", callback=existing)],
    finished: Annotated[bool, typer.Option("--all", help="Show finished runs too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all runs.")] = False,
    form: Form = None,
) -> None:
    """Show what runs where, of a table that several processes or a Slurm cluster work on."""
    from dataclasses import asdict

    from promptfed.papers.progress import counts, look

    states = look(out)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in states], indent=1))
        return
    shown = [one for one in states if finished or one.state != "finished"]
    if shown:
        print_table(_table(shown), form)
    complain(", ".join(f"{count} {state}" for state, count in counts(states).items() if count))


def _table(states: "list[RunState]") -> "Table":
    from promptfed.results.report.table import Cell, Column, Table

    columns = (
        Column("run", "", ("run",), numeric=False),
        Column("state", "stopped runs go on with the next command", ("state",), numeric=False),
        Column("round", "finished of planned", ("rounds", "planned")),
        Column("where", "with the seconds since its last sign of life; or what went wrong", ("where",), numeric=False),
    )
    rows = []
    for one in states:
        where = f"{one.where}, {one.silent:.0f} s" if one.silent is not None else one.problem
        planned = "?" if one.planned is None else str(one.planned)
        progress = Cell(f"{one.rounds}/{planned}", (str(one.rounds), planned))
        rows.append((Cell(one.run, (one.run,)), Cell(one.state, (one.state,)), progress, Cell(where, (where,))))
    return Table(columns, tuple(rows))
