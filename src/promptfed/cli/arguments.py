"""Arguments and options that several commands take, and how a table is printed."""

from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from promptfed.cli.terminal import console
from promptfed.core.errors import PromptFedError

if TYPE_CHECKING:
    from promptfed.results.report.table import Table


Given = TypeVar("Given", Path, list[Path], Path | None)


def existing(given: Given) -> Given:
    """Refuse a path that leads nowhere, before anything heavy is imported, and name the nearest one there is."""
    for path in given if isinstance(given, list) else [given]:
        if path is not None and not path.exists():
            beside = [one.name for one in path.parent.glob("*")]
            near = sorted(name for name in beside if name.startswith(path.name)) or get_close_matches(path.name, beside)
            hint = f'; did you mean "{path.with_name(near[0])}"?' if near else "."
            raise PromptFedError(f"There is no {path}{hint}")
    return given


Dirs = Annotated[list[Path], typer.Argument(help="Run folders.", metavar="DIR...", callback=existing)]
Overrides = Annotated[list[str] | None, typer.Argument(help="Recipe keys to change.", metavar="[KEY=VALUE]...")]


class Format(StrEnum):
    """How a table is printed."""

    terminal = "terminal"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


Form = Annotated[
    Format | None,
    typer.Option(
        "--format", help="How to print the table; the default is terminal, or markdown if the output is not a terminal."
    ),
]


def show_runs(folders: list[Path], form: Format | None) -> None:
    """Print run folders as one table."""
    from promptfed.results.report import compare, read_run

    print_table(compare([read_run(folder) for folder in folders]), form)


def print_sentences(title: str, sentences: list[str], form: Format | None) -> None:
    """Print notes under a table; in LaTeX and CSV there is the table only."""
    if sentences and form not in (Format.latex, Format.csv):
        typer.echo("\n".join([f"{title}:", "", *(f"- {sentence}" for sentence in sentences)]))


def print_table(table: "Table", form: Format | None) -> None:
    """Print a table in the given format; the default is for a terminal, or Markdown if there is none."""
    form = form or (Format.terminal if console.is_terminal else Format.markdown)
    if form is Format.terminal:
        from promptfed.results.report.layout import to_rich

        console.print(to_rich(table, console.width))
    else:
        writer = {"markdown": table.to_markdown, "latex": table.to_latex, "csv": table.to_csv}[form.value]
        typer.echo(writer())
