"""Commands that answer over HTTP: the server, and the tokens it asks for."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptfed.cli.arguments import existing
from promptfed.cli.terminal import say
from promptfed.core.errors import PromptFedError

if TYPE_CHECKING:
    from promptfed.serving.plan import ServingPlan

TokenFile = Annotated[
    Path | None, typer.Option("--tokens", help="The file of tokens; the default is beside the bundle.", metavar="FILE")
]


def serve(
    bundles: Annotated[list[Path], typer.Argument(help="Bundles.", metavar="BUNDLE...", callback=existing)],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free one.")] = 8000,
    tokens: TokenFile = None,
    everyone: Annotated[bool, typer.Option("--open", help="Answer other machines without tokens.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="Of a frozen backbone: fp32, bf16 or fp8; the default is the bundle's own.")
    ] = "",
    batch: Annotated[int, typer.Option(min=1, max=4096, help="The most images in a batch.")] = 64,
    queue: Annotated[int, typer.Option(min=1, help="The most images under way; beyond them the answer is 429.")] = 512,
    deadline: Annotated[float, typer.Option(min=0.01, help="Seconds until a request must be answered.")] = 10.0,
    patience: Annotated[float, typer.Option(min=0.01, help="Seconds a request may take to arrive.")] = 20.0,
    graphs: Annotated[bool, typer.Option(help="On a GPU, record batches as CUDA graphs.")] = True,
    certificate: Annotated[Path | None, typer.Option(help="For HTTPS: the certificate.", metavar="PEM")] = None,
    key: Annotated[Path | None, typer.Option(help="For HTTPS: its key.", metavar="PEM")] = None,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes that answer, each with a backbone.")] = 1,
) -> None:
    """Answer over HTTP for all clients of bundles, many in one batch, with a page for the browser.

    promptfed serve bundles/shops
    curl -F image=@photo.jpg "http://127.0.0.1:8000/v1/predict?client=3"
    """
    try:
        from promptfed.serving import forms, listening  # noqa: F401  (together they need all that the extra brings)
    except ModuleNotFoundError as error:
        raise PromptFedError('promptfed serve needs the [serve] extra: pip install "promptfed[serve]".') from error
    from promptfed.core.errors import choice
    from promptfed.serving.limits import ServingLimits
    from promptfed.serving.plan import ServingPlan
    from promptfed.serving.tokens import token_files

    if precision not in ("", "fp32", "bf16", "fp8"):
        raise choice("precision", precision, ("fp32", "bf16", "fp8"), "--precision")
    if (certificate is None) != (key is None):
        raise PromptFedError("HTTPS needs both --certificate and --key.")
    limits = ServingLimits(queue=queue, batch=batch, deadline=deadline, patience=patience)
    files = (certificate, key) if certificate is not None and key is not None else None
    hosts = listening.names_of_server(host, tokens=token_files(bundles, tokens).used, everyone=everyone)
    plan = ServingPlan(tuple(bundles), limits, device, precision, graphs, tokens, hosts, files)

    def ready(chosen: int, count: int) -> None:
        who = f"{count} clients" if count > 1 else "1 client"
        say(f"Serving {who} at {listening.place(host, chosen, secure=files is not None)}; press Ctrl-C to stop.")

    _start(plan, workers, host, port, ready)


def _start(plan: "ServingPlan", workers: int, host: str, port: int, ready: Callable[[int, int], None]) -> None:
    """Serve in this process, or in several of which this one takes care."""
    if workers > 1:
        from promptfed.serving.supervisor import supervise

        supervise(plan, workers, host, port, ready)
    else:
        from promptfed.serving.server import serve as run

        run(plan, host, port, ready)


def token(
    bundle: Annotated[Path, typer.Argument(help="A bundle.", metavar="BUNDLE", callback=existing)],
    client: Annotated[int | None, typer.Option(help="The client whose model the token opens.")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="A token that opens everything.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Make the client's tokens invalid instead.")] = False,
    tokens: TokenFile = None,
) -> None:
    """Print a new token for promptfed serve; only its hash is kept. Without options, say who has one.

    promptfed token bundles/shops --client 3
    promptfed token bundles/shops --client 3 --revoke
    """
    from promptfed.analysis.bundle.contents import open_bundle
    from promptfed.serving.tokens import beside, hashed, new_token, read_hashes, write_hashes

    about, path = open_bundle(bundle), tokens or beside(bundle)
    known = read_hashes(path) if path.exists() else {}
    if client is None and not operator:
        holders = ["the operator" if one is None else f"client {one}" for one in known.values()]
        say(f"{path}: {', '.join(holders)}" if holders else f"{path}: no tokens; make one with --client or --operator")
        return
    if client is not None and operator:
        raise PromptFedError("A token is a client's or the operator's; give --client or --operator.")
    whose = "the operator" if client is None else f"client {client}"
    if revoke:
        write_hashes(path, {digest: one for digest, one in known.items() if one != client})
        say(f"{path}: the tokens of {whose} are invalid from now on")
        return
    if client is not None and client not in about.clients:
        raise PromptFedError(f"{bundle} has no client {client}; it has {', '.join(map(str, about.clients))}.")
    made = new_token()
    write_hashes(path, known | {hashed(made): client})
    typer.echo(made)
