"""The command that exports a model for use without PromptFed."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from promptfed.cli.arguments import existing
from promptfed.cli.terminal import say
from promptfed.core.errors import PromptFedError

WORD = Path("learned_embeds.safetensors")


class ExportFormat(StrEnum):
    """What an export is written as."""

    pt2 = "pt2"
    onnx = "onnx"
    transformers = "transformers"
    web = "web"


def export(
    folder: Annotated[
        Path,
        typer.Argument(
            help="The folder of a finished run or of a site's run, or a bundle.",
            metavar="RUN|BUNDLE",
            callback=existing,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The new folder; for a word, the .safetensors file.")] = WORD,
    form: Annotated[
        ExportFormat | None, typer.Option("--format", help="What to write; none: the word that a run has learned.")
    ] = None,
    client: Annotated[int | None, typer.Option(help="Export this client's own model, or its own word.")] = None,
    together: Annotated[
        bool, typer.Option("--all", help="One graph for all clients, and a small file for each.")
    ] = False,
    int8: Annotated[bool, typer.Option("--int8", help="With onnx: also write it with weights in 8 bits.")] = False,
    token: Annotated[str, typer.Option(help="The name of the word in prompts.")] = "<concept>",
    prompt: Annotated[
        str, typer.Option(help="The prompt for which a client's word is written; the word is scaled to it.")
    ] = "a photo of a {}",
    device: Annotated[str, typer.Option(help="For a word: auto, cpu, cuda or cuda:1; the default is the run's.")] = "",
) -> None:
    """Write a trained model, or a learned word, for use without PromptFed.

    promptfed export runs/pfedpg --client 3 --format onnx --out client-3
    promptfed export bundles/shops --all --format pt2 --out shops

    What is written is first asked about a few images and compared with PromptFed's own answers. Without --format, the
    word that a run has learned becomes a file that diffusers' load_textual_inversion and web interfaces can load.
    """
    if form is None:
        _check_word(out, together or int8)
        _export_word(folder, out, client, token, prompt, device)
        return
    if out == WORD:
        raise PromptFedError("An export is a new folder; name it with --out.")
    from promptfed.analysis.exports.making import change_in_words, export_graph, in_words

    if form in (ExportFormat.pt2, ExportFormat.onnx):
        made = export_graph(folder, out, form.value, client=client, together=together, int8=int8)
    elif together or int8:
        raise PromptFedError(f"--format {form.value} is for one client, in 32 bits; leave out --all and --int8.")
    elif form is ExportFormat.transformers:
        from promptfed.analysis.exports.image_classifier import export_pipeline

        made = export_pipeline(folder, out, client=client)
    else:
        from promptfed.analysis.exports.web import export_page

        made = export_page(folder, out, client=client)
    say(f"{out}: {made.method}, the model of {made.whose}, {made.bytes / 1e6:.1f} MB")
    say(in_words(made.difference, made.clients))
    if made.changed:
        say(change_in_words(made.changed))


def _check_word(out: Path, for_classifiers: bool) -> None:
    """Refuse what only an export with --format takes."""
    if for_classifiers:
        raise PromptFedError("--all and --int8 are for classifiers; give --format too.")
    if out.suffix != ".safetensors":
        raise PromptFedError(
            f"Without --format a word goes to a .safetensors file, not to {out}; for a classifier add --format, one of "
            f"{', '.join(ExportFormat)}."
        )


def _export_word(folder: Path, out: Path, client: int | None, token: str, prompt: str, device: str) -> None:
    """Write the global word, or a client's own."""
    from promptfed.analysis.exports.word import export_word
    from promptfed.runs.finished import open_run, open_words

    run = open_words(folder, device) if client is None else open_run(folder, device)
    word = export_word(run, out, token=token, client=client, prompt=prompt)
    say(f"{out}: {token} has {len(word)} × {word.shape[-1]} numbers.")
