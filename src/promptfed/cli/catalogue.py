"""Commands that say what there is: methods, data sets, this machine."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from promptfed.cli.terminal import console, say

data_app = typer.Typer(help="The data sets on this machine: list, fetch or add an archive.", no_args_is_help=True)
MethodName = Annotated[str, typer.Argument(help="A method's name, or a dotted path such as pkg.mine:MyMethod.")]


class Kind(StrEnum):
    """What `promptfed list` lists."""

    methods = "methods"
    datasets = "datasets"
    backbones = "backbones"
    partitions = "partitions"
    recipes = "recipes"
    figures = "figures"


def list_(kind: Kind, as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False) -> None:
    """List methods, data sets, backbones, partitions, recipes or figures, with the keys each one takes."""
    from promptfed.cli import inventory

    rows = inventory.entries(kind.value)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        console.print(inventory.table(kind.value, rows))


def check(method: MethodName) -> None:
    """Run the conformance suite on a method: what every method must promise, on a toy task."""
    from promptfed.core import options
    from promptfed.runs import registry
    from promptfed.runs.checks import PROMISES, check_method

    ready = options.make(registry.find_method(method), {}, "method")
    for name, promise in PROMISES.items():
        check_method(ready, only=name)
        say(f"kept    {promise}")
    say(f"{method} keeps all {len(PROMISES)} promises.")


def doctor() -> None:
    """Say what this machine can run: devices, data sets, disk."""
    from promptfed.cli import inventory

    console.print(inventory.diagnosis())


@data_app.command("list")
def data_list() -> None:
    """Show which data sets are on this machine."""
    from promptfed.cli import inventory

    console.print(inventory.data_table())


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="A data set's name.")]) -> None:
    """Download a data set, resuming a broken transfer, and verify its checksum."""
    from promptfed.data import open_dataset

    found = open_dataset(name)
    say(f"{name}: {len(found):,} images, {len(found.classes)} classes.")


@data_app.command("add")
def data_add(
    name: Annotated[str, typer.Argument(help="A data set's name.")],
    path: Annotated[Path, typer.Argument(help="Its official archive, or a folder that holds its files.")],
    verify: Annotated[
        bool, typer.Option(help="Refuse an archive whose checksum is not the official one, where one is known.")
    ] = True,
) -> None:
    """Take an archive that is already on disk, so that nothing is downloaded."""
    from promptfed.data import add

    say(f"{name} is at {add(name, path, verify=verify)}")
