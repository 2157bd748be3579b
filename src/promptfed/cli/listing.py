"""Commands about what is available: methods, data sets, this machine."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from promptfed.cli.arguments import Form, Format, Overrides, print_sentences, print_table
from promptfed.cli.terminal import console, say

data_app = typer.Typer(
    help="The data sets on this machine: list them, inspect or download one, or add one by hand.",
    no_args_is_help=True,
)
MethodName = Annotated[str, typer.Argument(help="A method's name, or a dotted path such as pkg.mine:MyMethod.")]


class Listed(StrEnum):
    """What `promptfed list` lists."""

    methods = "methods"
    datasets = "datasets"
    backbones = "backbones"
    partitions = "partitions"
    recipes = "recipes"
    figures = "figures"


def list_(kind: Listed, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List methods, data sets, backbones, partitions, recipes or figures, with the keys each one takes."""
    from promptfed.cli import listing_tables

    rows = listing_tables.entries(kind.value)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        console.print(listing_tables.table(kind.value, rows))


def check(method: MethodName) -> None:
    """Check on a toy task that a method keeps the promises every method must keep."""
    from promptfed.core import options
    from promptfed.runs import catalogue, registry

    catalogue.find_method(method)  # a wrong name need not wait for torch, which what follows imports
    from promptfed.runs.checks import PROMISES, check_method

    ready = options.make(registry.find_method(method), {}, "method")
    for name, promise in PROMISES.items():
        check_method(ready, only=name)
        say(f"kept    {promise}")
    say(f"{method} keeps all {len(PROMISES)} promises.")


def doctor() -> None:
    """Show what this machine can run: devices, data sets, free disk space."""
    from promptfed.cli import listing_tables

    console.print(listing_tables.diagnosis())


@data_app.command("list")
def data_list() -> None:
    """Show which data sets are on this machine."""
    from promptfed.cli import listing_tables

    console.print(listing_tables.data_table())


@data_app.command("inspect")
def data_inspect(
    name: Annotated[str, typer.Argument(help="A data set's name, or folder:, csv:, dicom:, hf: or npz: with a path.")],
    overrides: Overrides = None,
    form: Form = None,
) -> None:
    """Show how many images of which class each site has, their sizes, duplicates across splits, and broken files.

    Options of the data set are given as in a recipe:

        promptfed data inspect folder:photos data.test_fraction=0.3
    """
    from promptfed.cli import inspection_tables as tables
    from promptfed.data.inspecting import inspect

    found = inspect(name, **tables.chosen(overrides or ()))
    alone = form in (Format.latex, Format.csv)  # there, a program or a file wants one table
    if not alone:
        say(f"{tables.headline(found)}\n")
    print_table(tables.counts(found), form)
    if not alone:
        print_table(tables.splits(found), form)
    print_sentences("Findings", tables.findings(found), form)


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="A data set's name.")]) -> None:
    """Download a data set, resuming a broken transfer, and verify its checksum."""
    from promptfed.data import open_dataset

    found = open_dataset(name)
    say(f"{name}: {len(found):,} images, {len(found.classes)} classes.")


@data_app.command("add")
def data_add(
    name: Annotated[str, typer.Argument(help="A data set's name.")],
    path: Annotated[Path, typer.Argument(help="Its official archive, or a folder with its files.")],
    verify: Annotated[
        bool, typer.Option(help="Refuse an archive with a wrong checksum, if the official one is known.")
    ] = True,
) -> None:
    """Add a data set that is already on disk, so that nothing is downloaded."""
    from promptfed.data import add

    say(f"{name} is at {add(name, path, verify=verify)}")
