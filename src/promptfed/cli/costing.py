"""`promptfed plan`: what a run will cost, before it."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from promptfed.cli.arguments import Form, Overrides, print_table

if TYPE_CHECKING:
    from promptfed.results.report.table import Table
    from promptfed.runs.costs import Costs


def plan(
    source: Annotated[
        str, typer.Argument(help="A recipe file, a shipped recipe, or a method.", metavar="RECIPE|METHOD")
    ],
    overrides: Overrides = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1; short for device=…")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    form: Form = None,
) -> None:
    """Tell what a run will cost before it trains: traffic, parameters, memory, disk and time.

    Bytes and parameters are counted. Time is an estimate from a few real training steps on this device:

        promptfed plan pfedpt rounds=100 clients=50
    """
    from dataclasses import asdict

    from promptfed.runs import config

    recipe = config.load_one(source, [*(overrides or []), *([f"device={device}"] if device else [])])
    from promptfed.runs.costs import estimate

    costs = estimate(recipe)
    if as_json:
        typer.echo(json.dumps(asdict(costs) | {"seconds": costs.seconds}, indent=1))
    else:
        print_table(_table(costs), form)


def _table(costs: "Costs") -> "Table":
    """Return the costs as a table: what, how much, and how it is known."""
    from promptfed.results.report.table import Cell, Column, Table, human_bytes

    counted, each = "counted", max(1, costs.trainings)
    sizes = {
        "received by all clients, whole run": costs.down_bytes,
        "sent by all clients, whole run": costs.up_bytes,
        "received by all clients, first round": costs.round_down_bytes,
        "sent by all clients, first round": costs.round_up_bytes,
        "received by one client in a round, mean": costs.down_bytes / each,
        "sent by one client in a round, mean": costs.up_bytes / each,
    }
    counts = {
        "rounds": costs.rounds,
        "clients in the first round": costs.clients,
        "parameters a client trains": costs.trained,
        "parameters that stay frozen": costs.frozen,
        "local steps, whole run": costs.steps,
    }
    times = {
        "training": costs.training_seconds,
        "testing": costs.testing_seconds,
        "server": costs.server_seconds,
        f"whole run on {costs.device}": costs.seconds,
    }
    memory = "not known" if costs.memory_bytes is None else human_bytes(costs.memory_bytes)
    rows = [
        *((what, human_bytes(size), size, counted) for what, size in sizes.items()),
        *((what, f"{count:,}", count, counted) for what, count in counts.items()),
        ("disk for the checkpoint", human_bytes(costs.checkpoint_bytes), costs.checkpoint_bytes, counted),
        (f"peak memory on {costs.device}", memory, costs.memory_bytes, "measured, and a round's answers added"),
        ("one local step", f"{1000 * costs.step_seconds:.3g} ms", costs.step_seconds, "measured"),
        ("loading", _minutes(costs.loading_seconds), costs.loading_seconds, "measured"),
        *((what, _minutes(seconds), seconds, "estimate") for what, seconds in times.items()),
    ]
    about = "time is extrapolated from steps timed on this device to all rounds; other work on it makes a run slower"
    columns = (
        Column("what", "", ("what",), numeric=False),
        Column("cost", "", ("cost",)),
        Column("how it is known", "", ("known",), numeric=False),
    )
    cells = (
        (Cell(what, (what,)), Cell(shown, (str(plain),)), Cell(known, (known,))) for what, shown, plain, known in rows
    )
    return Table(columns, tuple(cells), about=about)


def _minutes(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
