"""Words and arguments: the command line.

A mistake gets one sentence and exit code 2; Ctrl-C saves the run and exits with 130.
"""

import os
import sys
from typing import Annotated

import typer

from promptfed.cli import trust
from promptfed.cli.advising import advise
from promptfed.cli.analysis import audit, compare, figure, generate, quality, report
from promptfed.cli.costing import plan
from promptfed.cli.exporting import export
from promptfed.cli.jobs import jobs
from promptfed.cli.listing import check, data_app, doctor, list_
from promptfed.cli.network import simulate_network
from promptfed.cli.scaffolding import new_app
from promptfed.cli.serving import serve, token
from promptfed.cli.sites import app as sites_app
from promptfed.cli.terminal import complain, describe_os_error
from promptfed.cli.tracking import track
from promptfed.cli.training import demo, reproduce, run
from promptfed.cli.tuning import tune
from promptfed.cli.using import bundle, forget, predict
from promptfed.cli.watching import watch
from promptfed.core.errors import PromptFedError
from promptfed.core.version import __version__

app = typer.Typer(
    help="Federated prompt learning: exchange prompts of a few kilobytes instead of models of hundreds of megabytes.",
    epilog="Start with: promptfed demo. Then: promptfed run pfedpt rounds=20 method.size=4",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    advise,
    run,
    plan,
    demo,
    reproduce,
    jobs,
    tune,
    track,
    watch,
    compare,
    report,
    bundle,
    predict,
    forget,
    serve,
    token,
    generate,
    export,
    quality,
    audit,
    figure,
):
    app.command()(command)
app.command("simulate-network")(simulate_network)
app.command("list")(list_)
app.command()(check)
app.command()(doctor)
app.add_typer(new_app, name="new")
app.add_typer(data_app, name="data")
for of_sites in (trust.terms, trust.key, trust.audit, trust.renew, trust.revoke):
    sites_app.command()(of_sites)
app.add_typer(sites_app, name="sites")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"promptfed {__version__}")
        raise typer.Exit


@app.callback(help=app.info.help)
def promptfed(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Take what stands before a command."""
    del version  # its own callback has answered


def main() -> None:
    """Run the command line."""
    # before torch is imported: threads that wait for each other give way, where several runs share the cores
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except PromptFedError as error:
        _fail(str(error))
    except OSError as error:
        _fail(describe_os_error(error))
    except (MemoryError, RuntimeError, ValueError) as error:
        from promptfed.runs import memory

        if not memory.ran_out(error):
            raise
        _fail(memory.sentence(error))


def _fail(sentence: str) -> None:
    complain(f"promptfed: {sentence}")
    sys.exit(2)
