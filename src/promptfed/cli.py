"""The command line. Mistakes get one sentence and exit code 2; Ctrl-C saves the run and exits with 130."""

import errno
import json
import re
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from promptfed.errors import PromptFedError
from promptfed.gallery import KINDS
from promptfed.sites.cli import app as sites_app

if TYPE_CHECKING:
    from promptfed.outcome import Outcome
    from promptfed.report.tables import Table
    from promptfed.runner import Result

app = typer.Typer(
    help="Federated prompt learning: exchange prompts of a few kilobytes instead of models of hundreds of megabytes.",
    epilog="Start with: promptfed demo. Then: promptfed run pfedpt rounds=20 method.size=4",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="The data sets on this machine: list, fetch or add an archive.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(sites_app, name="sites")
console = Console()

Dirs = Annotated[list[Path], typer.Argument(help="Run folders.", metavar="DIR...")]
Source = Annotated[
    str | None, typer.Argument(help="A recipe file, a shipped recipe, or a method's name.", metavar="RECIPE|METHOD")
]
Overrides = Annotated[list[str] | None, typer.Argument(help="Recipe keys to change.", metavar="[KEY=VALUE]...")]
RunDir = Annotated[Path, typer.Argument(help="A finished run's folder.", metavar="DIR")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1; the run's own if not given.")]
MethodName = Annotated[str, typer.Argument(help="A method's name, or a dotted path such as pkg.mine:MyMethod.")]


def say(sentence: str) -> None:
    """Print plain words, never wrapped or coloured: people paste paths."""
    console.print(sentence, soft_wrap=True, highlight=False, markup=False)


class Format(StrEnum):
    """How a table is written."""

    terminal = "terminal"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


class WordKind(StrEnum):
    """Whose word is drawn."""

    GLOBAL = "global"
    CLIENT = "client"


class Against(StrEnum):
    """Whose images the global word is compared with."""

    ALL = "all"
    OWN = "own"


class Kind(StrEnum):
    """What `promptfed list` lists."""

    methods = "methods"
    datasets = "datasets"
    backbones = "backbones"
    partitions = "partitions"
    recipes = "recipes"
    figures = "figures"


@app.command()
def run(
    source: Source = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/METHOD-DATASET-N if not given.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.", metavar="DIR")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1; short for device=…")] = None,
) -> None:
    """Train a method and write a run folder with its numbers, checkpoint and report.

    A bare method name runs on the embedded data set. Every key can be changed; a list runs once per value:

        promptfed run pfedpt rounds=8 clients=6 partition.name=dirichlet partition.alpha=0.3 seed=[0,1,2]

    A run that was stopped, by Ctrl-C or by anything worse, goes on with: promptfed run --resume DIR
    """
    from promptfed import config, runner

    words = [*(overrides or []), *([f"device={device}"] if device else [])]
    if source is not None and re.match(r"[\w.]+=", source):  # a key, not a path such as runs/seed=0/recipe.toml
        words, source = [source, *words], None
    if resume is not None:
        recipe = runner.single(config.load(source or str(resume / "recipe.toml"), words)) if source or words else None
        _guarded(resume, partial(runner.go_on, resume, recipe))
        return
    if source is None:
        raise PromptFedError("Nothing to run: name a recipe or a method, for example promptfed run pfedpt.")
    recipes = config.load(source, words)
    folders = runner.sweep_folders(recipes, out)
    for recipe, folder in zip(recipes, folders, strict=True):
        _guarded(folder, partial(runner.start, recipe, folder), show=len(recipes) == 1)
    if len(recipes) > 1:
        _show(folders, Format.terminal)


def _guarded(folder: Path, work: "Callable[[], Result]", show: bool = True) -> None:
    """Run `work`; on Ctrl-C say how to go on."""
    try:
        result = work()
    except KeyboardInterrupt:
        _complain(f"Stopped. Go on with: promptfed run --resume {folder}")
        raise typer.Exit(130) from None
    if show:
        _show([result.folder], Format.terminal)
        say(f"Run folder {result.folder}, report {result.folder / 'report.html'}")


def _show(folders: list[Path], form: Format) -> None:
    from promptfed.report import compare, read_run

    _print(compare([read_run(folder) for folder in folders]), form)


def _print(table: "Table", form: Format) -> None:
    if form is Format.terminal:
        console.print(table.to_rich(console.width))
    else:
        writer = {"markdown": table.to_markdown, "latex": table.to_latex, "csv": table.to_csv}[form.value]
        typer.echo(writer())


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Another seed: another partition, other starting weights.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the three run folders and the report go.")] = Path("runs/demo"),
) -> None:
    """Train Local, FedAvg and pFedPT on the same twenty clients of the embedded data set and compare them."""
    from promptfed import runner
    from promptfed.report import headline, read_run, write_report

    try:
        folders = runner.demo(seed, out)
    except KeyboardInterrupt:
        _complain(f"Stopped. Go on with: promptfed demo --seed {seed} --out {out}")
        raise typer.Exit(130) from None
    console.print(headline([read_run(folder) for folder in folders]).to_rich())
    page = write_report(folders, out / f"report-seed{seed}.html")
    say(f"Report: {page.resolve()}")
    say("Next: promptfed run demo/pfedpt method.size=[1,2,8] shows how wide the frame should be.")


@app.command()
def reproduce(
    table: Annotated[
        str, typer.Argument(help="A shipped table such as pfedpg/t1-office, or a .table.toml file.", metavar="TABLE")
    ],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Where all run folders go; runs/TABLE if not given.")] = None,
    seeds: Annotated[str, typer.Option(help="The seeds of every cell, such as 0,1,2.")] = "0",
    only: Annotated[str, typer.Option(help="Run these rows only.", metavar="ROW,ROW")] = "",
    columns: Annotated[str, typer.Option(help="Run these columns only.", metavar="COLUMN,COLUMN")] = "",
    workers: Annotated[int, typer.Option(help="Runs side by side, each in a process.")] = 1,
    tune: Annotated[bool, typer.Option("--tune", help="Also try every row's grid on validation images.")] = False,
    merge: Annotated[
        list[Path] | None,
        typer.Option(help="Take the finished runs of another --out of this table too.", metavar="DIR"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1; short for device=…")] = None,
) -> None:
    """Run a paper's whole table and print ours beside the paper's.

    Keys change all cells, and what they change against the paper is listed under the table:

        promptfed reproduce pfedpg/t1-office --seeds 0,1,2 --workers 4 backbone.weights=facebook/dinov2-small

    Finished runs are not run again: give the same command once more to go on after a stop.
    """
    from promptfed.reproduce import Plan, find_table, parse_seeds
    from promptfed.reproduce import reproduce as run_table
    from promptfed.tables import failures

    found = find_table(table)
    plan = Plan(
        out=out or Path("runs") / found.name,
        overrides=(*(overrides or []), *([f"device={device}"] if device else [])),
        seeds=parse_seeds(seeds),
        rows=tuple(filter(None, only.split(","))),
        columns=tuple(filter(None, columns.split(","))),
        workers=workers,
        tune=tune,
        merge=tuple(merge or ()),
    )
    try:
        outcome = run_table(found, plan)
    except KeyboardInterrupt:
        _complain("Stopped. Give the same command again to go on.")
        raise typer.Exit(130) from None
    _show_table(outcome)
    say(f"Table {plan.out / 'table.md'}, {plan.out / 'table.json'}")
    if failures(outcome):
        raise typer.Exit(1)


def _show_table(outcome: "Outcome") -> None:
    """Print a paper's table for a person, or as Markdown where nobody watches."""
    from promptfed.tables import remarks, to_markdown, views

    if not console.is_terminal:
        typer.echo(to_markdown(outcome))
        return
    for title, shown in views(outcome):
        say(f"\n{outcome['title']} – {title}" if len(outcome["columns"]) > 1 else f"\n{outcome['title']}")
        console.print(shown.to_rich(console.width))
    for heading, sentences in remarks(outcome).items():
        say(f"\n{heading}")
        for sentence in sentences:
            say(f"- {sentence}")


@app.command()
def compare(
    dirs: Dirs, form: Annotated[Format, typer.Option("--format", help="How to write the table.")] = Format.terminal
) -> None:
    """Print run folders as one table; runs that differ only in their seed become mean ± std."""
    _show(dirs, form)


@app.command()
def report(
    dirs: Dirs, out: Annotated[Path | None, typer.Option(help="The HTML file; DIR/report.html if not given.")] = None
) -> None:
    """Write one self-contained HTML page about one run or several."""
    from promptfed.report import write_report

    typer.echo(write_report(dirs, out))


@app.command()
def generate(
    folder: RunDir,
    prompt: Annotated[str, typer.Argument(help="What to draw, with {} for the word.")] = "a photo of a {}",
    client: Annotated[int | None, typer.Option(help="Draw this client's own word.")] = None,
    kind: Annotated[WordKind | None, typer.Option(help="The global word, or a row for every client's own.")] = None,
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("grid.png"),
    count: Annotated[int, typer.Option(min=1, help="Pictures of each word.")] = 8,
    seed: Annotated[int, typer.Option(help="Another seed: other starting latents.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of denoising.")] = 30,
    guidance: Annotated[float, typer.Option(help="How far to go beyond the text; 1: not at all.")] = 7.5,
    device: Device = "",
) -> None:
    """Draw pictures of the word that a finished run of relic, fedti or their kind has learned.

        promptfed generate runs/relic "an oil painting of {}" --client 3 --out grid.png

    The n-th picture starts from the same latents whatever the run, the client and the prompt.
    """
    from promptfed.finished import open_run
    from promptfed.generate import Brush
    from promptfed.generate import generate as draw

    brush = Brush(prompt, count, seed, steps, guidance)
    rows = draw(open_run(folder, device), brush, out, kind=kind.value if kind else None, client=client)
    say(f"{out}: {count} pictures of {', '.join(rows)}")


@app.command()
def export(
    folder: RunDir,
    out: Annotated[Path, typer.Option(help="The file, ending in .safetensors.")] = Path("learned_embeds.safetensors"),
    client: Annotated[int | None, typer.Option(help="This client's own word, not the global one.")] = None,
    token: Annotated[str, typer.Option(help="What the word is called in prompts.")] = "<concept>",
    prompt: Annotated[
        str, typer.Option(help="The prompt for which a client's word is written; its scale depends on it.")
    ] = "a photo of a {}",
    device: Device = "",
) -> None:
    """Write the word of a finished run as a file that diffusers' load_textual_inversion and web interfaces load."""
    from promptfed.export import export_word
    from promptfed.finished import open_run

    word = export_word(open_run(folder, device), out, token=token, client=client, prompt=prompt)
    say(f"{out}: {token} has {len(word)} × {word.shape[-1]} numbers.")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="model.safetensors, a site's run, or a simulated run's folder.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.", metavar="IMAGE...")],
    client: Annotated[int | None, typer.Option(help="Of a simulated run: this client's model.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Classes shown of each image.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """Say what a trained model sees in images: their likeliest classes.

    promptfed predict kits/street/state/runs/RUN photo.jpg
    promptfed predict runs/pfedpt-fashion-shops-1 --client 3 photo.jpg
    """
    from promptfed.predict import load, to_json, to_table
    from promptfed.predict import predict as ask

    answers = ask(load(model, client, device), images, top)
    if as_json:
        typer.echo(to_json(answers))
    else:
        console.print(to_table(answers))


@app.command()
def quality(
    dirs: Dirs,
    features: Annotated[str, typer.Option(help="clip, clip:WEIGHTS, inception:FILE or torchmetrics.")] = "clip",
    count: Annotated[int, typer.Option(min=1, help="Pictures of the global word.")] = 50,
    real: Annotated[int, typer.Option(min=1, help="Images it is compared with, at most.")] = 50,
    against: Annotated[
        Against, typer.Option(help="These are of the data set's training images, or of those the run's clients hold.")
    ] = Against.ALL,
    clients: Annotated[int, typer.Option(min=0, help="Clients whose words are measured, from the first.")] = 3,
    own: Annotated[int, typer.Option(min=1, help="Pictures of a client's word.")] = 8,
    every: Annotated[
        int, typer.Option(min=0, help="Train once more and measure the global word every so many rounds.")
    ] = 0,
    prompt: Annotated[str, typer.Option(help="What to draw, with {} for the word.")] = "a photo of a {}",
    seed: Annotated[int, typer.Option(help="Another seed: other starting latents.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of denoising.")] = 30,
    guidance: Annotated[float, typer.Option(help="How far to go beyond the text; 1: not at all.")] = 7.5,
    device: Device = "",
    form: Annotated[Format, typer.Option("--format", help="How to write the table.")] = Format.terminal,
) -> None:
    """Measure the pictures of finished runs (FID, KID, likeness) and write quality.json into their folders.

    All words are drawn from the same starting latents. Each row says how many images were compared.
    """
    from promptfed import quality as measures
    from promptfed.finished import open_run
    from promptfed.generate import Brush
    from promptfed.report.measured import words

    brush = Brush(prompt, count, seed, steps, guidance)
    wish = measures.Wish(brush, features, real, clients, own, every, against.value)
    _print(words([measures.measure(open_run(folder, device), wish) for folder in dirs]), form)


@app.command()
def audit(
    dirs: Dirs,
    clients: Annotated[int, typer.Option(min=1, help="Clients that are attacked, from the first.")] = 16,
    features: Annotated[str, typer.Option(help="clip, clip:WEIGHTS, inception:FILE or torchmetrics.")] = "clip",
    count: Annotated[int, typer.Option(min=1, help="Pictures drawn from an uploaded word.")] = 8,
    seed: Annotated[int, typer.Option(help="Another seed: other starting latents.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of denoising.")] = 30,
    device: Device = "",
) -> None:
    """Attack what clients send as a curious server would, and write audit.json into each run folder.

    An uploaded word is drawn and compared with the clients' images; an uploaded model tells which classes a client
    holds. Both may tell whose answer it is.
    """
    from promptfed import audit as attacks
    from promptfed.finished import open_run
    from promptfed.generate import Brush
    from promptfed.report.measured import sentences

    for folder in dirs:
        found = attacks.audit(
            open_run(folder, device), attacks.Attack(Brush(count=count, seed=seed, steps=steps), features, clients)
        )
        for sentence in (f"{folder}:", *sentences(found)):
            say(sentence)


@app.command()
def figure(
    kind: Annotated[
        str, typer.Argument(help="; ".join(f"{name}: {one.about}" for name, one in KINDS.items()), metavar="KIND")
    ],
    dirs: Dirs,
    out: Annotated[
        Path | None,
        typer.Option(help="The picture, .png, .svg or .pdf; DIR/figures/KIND.png if not given.", metavar="FILE"),
    ] = None,
    client: Annotated[list[int] | None, typer.Option(help="Only this client; may be given several times.")] = None,
) -> None:
    """Draw a figure of a run's clients and models; its numbers go beside it, in a JSON file.

    Without --out the figure also becomes part of the run's report:

        promptfed figure grad-cam runs/pfedpt-fashion-shops-1 --client 0 --client 3
    """
    from promptfed.gallery import draw

    typer.echo(draw(kind, dirs, out, client or ()))


@app.command("list")
def list_(kind: Kind, as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False) -> None:
    """List methods, data sets, backbones, partitions, recipes or figures, with the keys each one takes."""
    from promptfed import catalogue

    rows = catalogue.entries(kind.value)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        console.print(catalogue.table(kind.value, rows))


@app.command()
def check(method: MethodName) -> None:
    """Run the conformance suite on a method: what every method must promise, on a toy task."""
    from promptfed import config, options
    from promptfed.checks import PROMISES, check_method

    ready = options.make(config.find_method(method), {}, "method")
    for name, promise in PROMISES.items():
        check_method(ready, only=name)
        say(f"kept    {promise}")
    say(f"{method} keeps all {len(PROMISES)} promises.")


@app.command()
def doctor() -> None:
    """Say what this machine can run: devices, data sets, disk."""
    from promptfed import catalogue

    console.print(catalogue.diagnosis())


@data_app.command("list")
def data_list() -> None:
    """Show which data sets are on this machine."""
    from promptfed import catalogue

    console.print(catalogue.data_table())


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


def main() -> None:
    """Run the command line."""
    try:
        app()
    except PromptFedError as error:
        _fail(str(error))
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        hint = " Free some space and resume the run." if error.errno == errno.ENOSPC else ""
        _fail(f"{error.strerror or error}{place}.{hint}")


def _complain(sentence: str) -> None:
    Console(stderr=True).print(sentence, soft_wrap=True, highlight=False, markup=False)


def _fail(sentence: str) -> None:
    _complain(f"promptfed: {sentence}")
    sys.exit(2)
