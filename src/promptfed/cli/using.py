"""Commands that use what was trained: bundles and predictions."""

from pathlib import Path
from typing import Annotated

import typer

from promptfed.cli.arguments import existing
from promptfed.cli.terminal import console, say


def bundle(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder of a finished run, or of a site's run.", metavar="RUN", callback=existing),
    ],
    out: Annotated[Path, typer.Option(help="The new folder.", metavar="DIR")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """Write all that it takes to answer for every client of a finished run, and nothing else, to a new folder.

    promptfed bundle runs/pfedpt-fashion-shops-1 --out bundles/shops
    promptfed predict bundles/shops --client 3 photo.jpg
    """
    from promptfed.analysis.bundle.making import make_bundle
    from promptfed.results.report.table import human_bytes

    made = make_bundle(folder, out, device)
    clients = f"{len(made.clients)} clients" if len(made.clients) > 1 else "1 client"
    say(f"{out}: {clients} of {made.method['name']}, {human_bytes(made.shared.bytes + made.rows.bytes)}")


def forget(
    folder: Annotated[Path, typer.Argument(help="A bundle.", metavar="BUNDLE", callback=existing)],
    client: Annotated[int, typer.Option(help="The client to remove.")],
) -> None:
    """Remove a client from a bundle; the answers of the others stay the same.

    promptfed forget bundles/shops --client 7
    """
    from promptfed.analysis.bundle.forgetting import forget as remove

    left = remove(folder, client)
    say(f"{folder}: client {client} is removed; {len(left.clients)} left")


def predict(
    model: Annotated[
        Path,
        typer.Argument(
            help="A bundle, model.safetensors, or the folder of a site's run or a simulated run.", callback=existing
        ),
    ],
    images: Annotated[list[Path], typer.Argument(help="Image files.", metavar="IMAGE...")],
    client: Annotated[
        int | None,
        typer.Option(help="The client whose model to use; without it, that of a site, or a simulated run's server."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Classes to show for each image.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """Classify images with a trained model; show the most likely classes.

    promptfed predict bundles/shops --client 3 photo.jpg
    promptfed predict kits/street/state/runs/RUN photo.jpg
    promptfed predict runs/pfedpt-fashion-shops-1 --client 3 photo.jpg
    """
    from promptfed.analysis.predict import load, to_json, to_table
    from promptfed.analysis.predict import predict as ask

    answers = ask(load(model, client, device), images, top)
    if as_json:
        typer.echo(to_json(answers))
    else:
        console.print(to_table(answers))
