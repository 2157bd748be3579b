"""The command that tunes: settings of any recipe keys, compared on validation images."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from promptfed.cli.arguments import Form, Format, print_table
from promptfed.cli.terminal import complain, describe_os_error, say
from promptfed.core.errors import PromptFedError

Words = Annotated[
    list[str] | None,
    typer.Argument(help="Recipe keys to try or to set.", metavar="KEY=[…]|KEY=log(LOW,HIGH)|KEY=VALUE"),
]


def tune(
    source: Annotated[
        str, typer.Argument(help="A recipe file, a shipped recipe, or a method.", metavar="RECIPE|METHOD")
    ],
    words: Words = None,
    budget: Annotated[int, typer.Option(help="How many settings are tried.")] = 20,
    seed: Annotated[int, typer.Option(help="Decides which settings are tried, and in which order.")] = 0,
    halving: Annotated[
        bool,
        typer.Option("--halving", help="Train all settings briefly, and only the best third for longer, and so on."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder for all runs; the default is runs/tune-RECIPE.", metavar="DIR")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1; short for device=…")] = None,
    form: Form = None,
) -> None:
    """Try settings of any recipe keys on validation images, and write the best one's recipe.

    A key with a list or a range is tried, a key with one value is set. Quote brackets for the shell:

        promptfed tune fedavg "method.lr=log(1e-4,1)" "method.epochs=[1,5]" rounds=5 --budget 12

    Ranges are log(LOW,HIGH), uniform(LOW,HIGH) and int(LOW,HIGH). Test images are never looked at.

    Finished trials are not run again: give the same command again to resume.
    """
    from promptfed.runs.tuning import BEST, Tuning, to_table
    from promptfed.runs.tuning import tune as run_trials

    place = out or Path("runs") / f"tune-{Path(source).name.removesuffix('.toml').replace(':', '_')}"
    given = (*(words or []), *([f"device={device}"] if device else []))
    try:
        trials = run_trials(Tuning(source, given, place, budget, seed, halving))
    except KeyboardInterrupt:
        complain("Stopped. Give the same command again to resume.")
        raise typer.Exit(130) from None
    except OSError as error:
        raise PromptFedError(f"{describe_os_error(error)} Give the same command again to resume.") from error
    print_table(to_table(trials), form)
    # with --format, a program or a file may be reading: it gets the table only
    tell = say if form in (None, Format.terminal) else complain
    tell(f"The best setting on test images: promptfed run {shlex.quote(str(place / BEST))}")
