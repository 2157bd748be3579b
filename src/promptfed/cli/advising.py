"""`promptfed advise`: which method, backbone and recipe suit a user's data, and why."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from promptfed.cli.arguments import Overrides
from promptfed.cli.terminal import say

if TYPE_CHECKING:
    from promptfed.runs.advising import Advice, Decision


def advise(
    data: Annotated[
        str,
        typer.Argument(help="A data set's name, or folder:, csv:, dicom:, hf: or npz: with a path.", metavar="DATA"),
    ],
    overrides: Overrides = None,
    clients: Annotated[int, typer.Option(min=0, help="How many clients; 0: as many as the data have sites.")] = 0,
    newcomers: Annotated[int, typer.Option(min=0, help="How many of them join after training.")] = 0,
    new_classes: Annotated[
        bool, typer.Option("--new-classes", help="It must recognise classes that training never names.")
    ] = False,
    whole_models: Annotated[
        bool, typer.Option("--whole-models", help="Whole models may travel, not just prompts and heads.")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="The server must not see what a single client sends.")
    ] = False,
    download: Annotated[bool, typer.Option(help="Weights may come from the Hugging Face hub.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at your data, and propose a method, a backbone and a recipe: with reasons, and the command to run.

    Reasons rest on our own measurements, in docs/results; where there are none, they say so. Nothing is trained:

        promptfed advise folder:photos --newcomers 2
    """
    from promptfed.cli.inspection_tables import chosen
    from promptfed.data.inspecting import inspect
    from promptfed.data.outline import DataFacts
    from promptfed.runs import advising

    wishes = advising.Wishes(clients, newcomers, new_classes, whole_models, private, download)
    found = inspect(data, **chosen(overrides or ()))
    advice = advising.advise(DataFacts.of(data, found), wishes, tuple(overrides or ()))
    if as_json:
        typer.echo(json.dumps(_as_json(advice), indent=1))
    else:
        _print(advice)


def _as_json(advice: "Advice") -> dict[str, object]:
    parts = {"method": advice.method, "backbone": advice.backbone, "recipe": advice.recipe}
    return {
        "seen": advice.seen,
        **{name: {"keys": part.keys, "why": part.why} for name, part in parts.items()},
        "run": advice.run,
        "compare_with": advice.against,
        "known": advice.known,
        "evidence": {
            name: {"percent": one.percent, "table": one.table, "column": one.column, "row": one.row}
            for name, one in advice.evidence.items()
        },
    }


def _print(advice: "Advice") -> None:
    """Print the proposal as a page of plain sentences."""
    _list("Your data", advice.seen)
    _list(_headline("Method", advice.method), advice.method.why)
    _list(_headline("Backbone", advice.backbone), advice.backbone.why)
    _list("Recipe", advice.recipe.why)
    _list("Keep in mind", advice.known)
    say(f"Run:\n\n    {advice.run}\n")
    if advice.against:
        commands = "\n".join(f"    {one}" for one in (*advice.against, "promptfed compare runs"))
        say(f"To compare it with:\n\n{commands}\n")
    pages = dict.fromkeys(f"docs/results/{one.page}" for one in advice.evidence.values())
    if pages:
        say(f"Percentages are mean accuracies of clients in our own runs: {', '.join(pages)}.")


def _headline(what: str, choice: "Decision") -> str:
    name, *others = choice.keys.values()
    return f"{what}: {name}" + (f", {others[0]}" if what == "Backbone" and others else "")


def _list(title: str, sentences: tuple[str, ...]) -> None:
    say(f"{title}\n\n" + "".join(f"- {one}\n" for one in sentences))
