"""Commands on finished runs: tables, reports, pictures, measurements."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptfed.analysis.figures import FIGURES
from promptfed.cli.arguments import Dirs, Form, Format, existing, print_sentences, print_table, show_runs
from promptfed.cli.terminal import say
from promptfed.core.errors import PromptFedError

if TYPE_CHECKING:
    from promptfed.results.report import RunFolder

RunDir = Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="DIR", callback=existing)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1; the default is the run's own.")]


class WordKind(StrEnum):
    """Whose word is drawn."""

    GLOBAL = "global"
    CLIENT = "client"


class Against(StrEnum):
    """Which images the global word is compared with."""

    ALL = "all"
    OWN = "own"


class Accuracy(StrEnum):
    """The number in the cells of a table like those in papers."""

    mean = "mean"
    before = "before"
    worst = "worst"
    p10 = "p10"
    weighted = "weighted"
    after = "after"
    deployed = "deployed"
    best_round = "best-round"
    best_local = "best-local"
    domains = "domains"
    own_names = "own-names"
    neighbour = "neighbour"
    base = "base"
    novel = "novel"
    hm = "hm"
    cm = "cm"
    balanced_accuracy = "balanced_accuracy"
    worst_balanced_accuracy = "worst_balanced_accuracy"
    pooled_balanced_accuracy = "pooled_balanced_accuracy"
    macro_f1 = "macro_f1"
    worst_macro_f1 = "worst_macro_f1"
    pooled_macro_f1 = "pooled_macro_f1"
    auroc = "auroc"
    worst_auroc = "worst_auroc"
    pooled_auroc = "pooled_auroc"
    ece = "ece"
    worst_ece = "worst_ece"
    pooled_ece = "pooled_ece"


def compare(
    dirs: Dirs,
    measure: Annotated[
        Accuracy | None,
        typer.Option(
            help="Print a table like those in papers: a row per method, a column per setting, this number in the cells."
        ),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            help="The same beside a paper's numbers: a table such as pfedpt/t1-cifar10, or a .table.toml file.",
            metavar="TABLE",
        ),
    ] = None,
    benchmark: Annotated[
        str | None, typer.Option(help="Rank them among committed results: field.", metavar="NAME")
    ] = None,
    form: Form = None,
) -> None:
    """Print run folders as one table; runs that differ only in their seed become mean ± std.

    A folder that is not itself a run, such as that of a sweep, stands for all runs below it:

        promptfed compare runs
        promptfed compare runs/pfedpt --paper pfedpt/t1-cifar10 --format latex
        promptfed compare runs/mine --benchmark field
    """
    from promptfed.results.report import across, read_run, run_folders

    folders = run_folders(dirs)
    if benchmark is not None:
        if measure is not None or paper is not None:
            raise PromptFedError("--benchmark has its columns' own measures: leave out --measure and --paper.")
        _rank_in(benchmark, [read_run(folder) for folder in folders], form)
        return
    if measure is None and paper is None:
        show_runs(folders, form)
        return
    runs = [read_run(folder) for folder in folders]
    if paper is None:
        print_table(across(runs, str(measure)), form)
    else:
        _compare_with(paper, runs, measure, form)


def _compare_with(paper: str, runs: "Sequence[RunFolder]", measure: Accuracy | None, form: Format | None) -> None:
    """Print runs beside a paper's numbers, and how they deviate from the paper."""
    from promptfed.papers.matching import compared_measure, match_runs
    from promptfed.papers.reproduce import find_table
    from promptfed.results.report import across

    table = find_table(paper)
    printed, deviations = match_runs(table, runs)
    print_table(across(runs, str(measure or compared_measure(table)), printed), form)
    print_sentences("Deviations from the paper", deviations, form)


def _rank_in(name: str, runs: "Sequence[RunFolder]", form: Format | None) -> None:
    """Print runs among a benchmark's committed results, and how they differ from these."""
    from promptfed.papers.benchmark import rank_runs, read_benchmark

    tables, notes = rank_runs(read_benchmark(name), runs)
    for title, table in tables:
        if form not in (Format.latex, Format.csv):
            typer.echo(f"{title}\n")
        print_table(table, form)
    print_sentences("Differences from the committed results", notes, form)


def report(
    dirs: Dirs, out: Annotated[Path | None, typer.Option(help="The HTML file; the default is DIR/report.html.")] = None
) -> None:
    """Write one self-contained HTML page about one run or several; a sweep's folder stands for all runs below it."""
    from promptfed.results.report import run_folders, write_report

    typer.echo(write_report(run_folders(dirs), out))


def generate(
    folder: RunDir,
    prompt: Annotated[str, typer.Argument(help="What to draw, with {} for the word.")] = "a photo of a {}",
    client: Annotated[int | None, typer.Option(help="Draw this client's own word.")] = None,
    kind: Annotated[WordKind | None, typer.Option(help="The global word, or a row for each client's own.")] = None,
    after: Annotated[
        list[int] | None,
        typer.Option(
            "--round", help="The global word after this round (0: the initial one); may be repeated.", metavar="N"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The image file.")] = Path("grid.png"),
    count: Annotated[int, typer.Option(min=1, help="Pictures of each word.")] = 8,
    seed: Annotated[int, typer.Option(help="The random seed of the starting latents.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps.")] = 30,
    guidance: Annotated[float, typer.Option(help="The guidance scale; 1: no guidance.")] = 7.5,
    device: Device = "",
) -> None:
    """Draw pictures of the word that a finished run of relic, fedti or a similar method has learned.

        promptfed generate runs/relic "an oil painting of {}" --client 3 --out grid.png

    The n-th picture starts from the same latents whatever the run, the client and the prompt.
    """
    from promptfed.analysis.generate import Sampler
    from promptfed.analysis.generate import generate as draw
    from promptfed.runs.finished import open_run, open_words

    sampler = Sampler(prompt, count, seed, steps, guidance)
    run = open_words(folder, device) if client is None and kind is not WordKind.CLIENT else open_run(folder, device)
    rows = draw(run, sampler, out, kind=kind.value if kind else None, client=client, rounds=after or ())
    say(f"{out}: {count} pictures of {', '.join(rows)}")


def quality(
    dirs: Dirs,
    features: Annotated[str, typer.Option(help="clip, clip:WEIGHTS, inception:FILE or torchmetrics.")] = "clip",
    count: Annotated[int, typer.Option(min=1, help="Pictures of the global word.")] = 50,
    real: Annotated[int, typer.Option(min=1, help="The most real images to compare with.")] = 50,
    against: Annotated[
        Against,
        typer.Option(
            help="Compare with all training images of the data set, or with those that the run's clients hold."
        ),
    ] = Against.ALL,
    clients: Annotated[int, typer.Option(min=0, help="Clients whose words are measured, starting from client 0.")] = 3,
    own: Annotated[int, typer.Option(min=1, help="Pictures of a client's word.")] = 8,
    every: Annotated[
        int, typer.Option(min=0, help="Also measure the initial global word, and that of every N-th round.")
    ] = 0,
    prompt: Annotated[str, typer.Option(help="What to draw, with {} for the word.")] = "a photo of a {}",
    seed: Annotated[int, typer.Option(help="The random seed of the starting latents.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps.")] = 30,
    guidance: Annotated[float, typer.Option(help="The guidance scale; 1: no guidance.")] = 7.5,
    device: Device = "",
    form: Form = None,
) -> None:
    """Measure the pictures of finished runs (FID, KID, likeness) and write quality.json into their folders.

    All words are drawn from the same starting latents. Every row shows how many images were compared.
    """
    from promptfed.analysis import quality as measures
    from promptfed.analysis.generate import Sampler
    from promptfed.results.report.measured import words
    from promptfed.runs.finished import open_run

    sampler = Sampler(prompt, count, seed, steps, guidance)
    request = measures.DrawRequest(sampler, features, real, clients, own, every, against.value)
    print_table(words([measures.measure(open_run(folder, device), request) for folder in dirs]), form)


def audit(
    dirs: Dirs,
    clients: Annotated[int, typer.Option(min=1, help="Clients to attack, starting from client 0.")] = 16,
    features: Annotated[str, typer.Option(help="clip, clip:WEIGHTS, inception:FILE or torchmetrics.")] = "clip",
    count: Annotated[int, typer.Option(min=1, help="Pictures drawn from an uploaded word.")] = 8,
    seed: Annotated[int, typer.Option(help="The random seed of the starting latents.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps.")] = 30,
    device: Device = "",
) -> None:
    """Attack what clients send as a curious server would, and write audit.json into each run folder.

    An uploaded word is drawn and compared with the clients' images; an uploaded model reveals which classes a client
    holds. Both may reveal which client sent them.
    """
    from promptfed.analysis import audit as attacks
    from promptfed.analysis.generate import Sampler
    from promptfed.results.report.measured import sentences
    from promptfed.runs.finished import open_run

    for folder in dirs:
        found = attacks.audit(
            open_run(folder, device), attacks.Attack(Sampler(count=count, seed=seed, steps=steps), features, clients)
        )
        for sentence in (f"{folder}:", *sentences(found)):
            say(sentence)


def figure(
    kind: Annotated[
        str, typer.Argument(help="; ".join(f"{name}: {one.about}" for name, one in FIGURES.items()), metavar="KIND")
    ],
    dirs: Dirs,
    out: Annotated[
        Path | None,
        typer.Option(help="A .png, .svg or .pdf file; the default is DIR/figures/KIND.png.", metavar="FILE"),
    ] = None,
    client: Annotated[list[int] | None, typer.Option(help="Only this client; may be repeated.")] = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--class", help="For attention, grad-cam and saliency: only images of this class.", metavar="NAME"
        ),
    ] = None,
) -> None:
    """Draw a figure of a run's clients and models, with its numbers in a JSON file beside it.

    Without --out the figure also becomes part of the run's report:

        promptfed figure grad-cam runs/pfedpt-fashion-shops-1 --client 0 --client 3
    """
    from promptfed.analysis.figures import draw

    typer.echo(draw(kind, dirs, out, client or (), label))
