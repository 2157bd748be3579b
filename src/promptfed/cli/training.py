"""Commands that train: one run, the demo, a paper's table."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptfed.cli.arguments import Form, Format, Overrides, existing, show_runs
from promptfed.cli.sharing import PATIENCE, Gpus, Patience, Processes, launch, once, placed, shared
from promptfed.cli.terminal import complain, console, describe_os_error, say
from promptfed.cli.tracking import Track, again
from promptfed.core.errors import PromptFedError
from promptfed.results.folder import names

if TYPE_CHECKING:
    from promptfed.core.ranks import Ranks
    from promptfed.papers.comparison import Comparison
    from promptfed.papers.plan import TablePlan
    from promptfed.runs.cells import PaperTable
    from promptfed.runs.config import Recipe
    from promptfed.runs.runner import Result


class Where(StrEnum):
    """Who runs a table."""

    here = "here"
    shared = "shared"
    slurm = "slurm"


Source = Annotated[
    str | None, typer.Argument(help="A recipe file, a shipped recipe, or a method.", metavar="RECIPE|METHOD")
]


def run(
    source: Source = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; the default is runs/METHOD-DATASET-N.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume the run in this folder.", metavar="DIR", callback=existing)
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1; short for device=…")] = None,
    gpus: Gpus = None,
    processes: Processes = None,
    patience: Patience = PATIENCE,
    track: Track = None,
) -> None:
    """Train a method and write a run folder with its numbers, checkpoint and report.

    A method by itself runs on the embedded data set. Any recipe key can be set; a list of values makes a sweep:

        promptfed run pfedpt rounds=8 clients=6 partition.name=dirichlet partition.alpha=0.3 seed=[0,1,2]

    Resume a run that was interrupted, by Ctrl-C or by a crash, with: promptfed run --resume DIR

    Resume a sweep by giving its command again with the same --out: finished runs are not run again.

    On a machine with several GPUs --gpus 8 shares the clients between them; over several machines torchrun does:

        torchrun --nnodes 2 --nproc-per-node 8 … -m promptfed run pfedpt --out runs/shared
    """
    words, trackers = [*(overrides or []), *([f"device={device}"] if device else [])], tuple(track or ())
    if source is not None and re.match(r"[\w.]+=", source):  # a key, not a path such as runs/seed=0/recipe.toml
        words, source = [source, *words], None
    with once():
        words += placed(gpus, processes, words)
        recipes, folders = _read(source, words, out, resume)
    into = (
        ["--resume", str(resume)] if resume else ["--out", str(folders[0] if len(folders) == 1 else folders[0].parent)]
    )
    command = ["run", *([source] if source else []), *words, *into, *shlex.split(again(trackers))]
    if (gpus or processes or 1) > 1:
        launch(command, gpus or processes or 1, patience, folders[0], gpus=gpus is not None)
        return
    with shared(recipes[0].device if recipes else None, folders[0], patience) as ranks:
        folders = ranks.told(folders)[0]  # without --out, each may have found another one
        if resume is not None:
            _resume(resume, source, recipes[0] if recipes else None, trackers, ranks)
        elif len(recipes) == 1:
            _guarded(folders[0], partial(_start, recipes[0], folders[0], trackers, ranks), trackers, ranks)
        else:
            _sweep(dict(zip(folders, recipes, strict=True)), shlex.join(["promptfed", *command]), trackers, ranks)


def _read(
    source: str | None, words: list[str], out: Path | None, resume: Path | None
) -> "tuple[list[Recipe], list[Path]]":
    """Return the runs asked for and their folders; a run that is resumed may come without a recipe."""
    from promptfed.runs import config
    from promptfed.runs.folders import sweep_folders

    if resume is not None:
        if out is not None:
            raise PromptFedError(f"--resume continues in {resume}; leave out --out.")
        _check_run(resume)
        recipe = [config.load_one(source or str(resume / names.RECIPE), words)] if source or words else []
        return recipe, [resume]
    if source is None:
        raise PromptFedError("Nothing to run: name a recipe or a method, for example promptfed run pfedpt.")
    recipes = config.load(source, words)
    return recipes, sweep_folders(recipes, out)


def _start(recipe: "Recipe", folder: Path, trackers: tuple[str, ...], ranks: "Ranks") -> "Result":
    """Start a run; only now that the recipe is right is torch imported."""
    from promptfed.runs import execution

    return execution.start(recipe, folder, track=trackers, ranks=ranks)


def _resume(
    folder: Path, source: str | None, recipe: "Recipe | None", trackers: tuple[str, ...], ranks: "Ranks"
) -> None:
    """Resume a run, with its own recipe unless another is given."""
    from promptfed.runs import resuming

    over = recipe is None and (folder / names.SUMMARY).is_file()
    try:
        work = partial(resuming.resume, folder, recipe, track=trackers, ranks=ranks)
        _guarded(folder, work, trackers, ranks)
        if over:
            complain(f"It was finished already. For more rounds: promptfed run --resume {folder} rounds=N")
    except PromptFedError as error:
        hint = f" promptfed run --resume {folder} without a recipe uses the run's own." if source else ""
        raise PromptFedError(f"{error}{hint}") from error


def _check_run(folder: Path) -> None:
    """Refuse to resume a folder of several runs."""
    if not (folder / names.RECIPE).is_file() and (below := sorted(folder.glob(f"*/{names.RECIPE}"))):
        raise PromptFedError(
            f"{folder} holds several runs: resume one, such as {below[0].parent}, or give the sweep's own command "
            f"again with --out {folder}."
        )


def _guarded(folder: Path, work: "Callable[[], Result]", trackers: tuple[str, ...], ranks: "Ranks") -> None:
    """Run `work` and show its result; on Ctrl-C, say how to resume."""
    try:
        with ranks.together():
            result = work()
    except KeyboardInterrupt:
        if not ranks.leads:
            raise typer.Exit(130) from None
        if (folder / names.SUMMARY).is_file():
            complain(f"Stopped after the last round: the run is finished. Its report: promptfed report {folder}")
        else:
            complain(f"Stopped. Resume with: promptfed run --resume {folder}{again(trackers)}")
        raise typer.Exit(130) from None
    except OSError as error:
        if not (folder / names.RECIPE).is_file():
            raise
        raise PromptFedError(f"{describe_os_error(error)} Resume with promptfed run --resume {folder}.") from error
    if not ranks.leads:
        return
    show_runs([result.folder], Format.terminal)
    say(f"Run folder {result.folder}, report {result.folder / names.REPORT}")


def _sweep(runs: "Mapping[Path, Recipe]", command: str, trackers: tuple[str, ...], ranks: "Ranks") -> None:
    """Run what is left of a sweep and show what is finished; a run that fails does not stop the others."""
    from promptfed.runs import resuming

    finished: list[Path] = []
    failed: dict[Path, PromptFedError] = {}
    for folder, recipe in runs.items():
        try:
            with ranks.together():
                resuming.start_or_resume(recipe, folder, trackers, ranks)
            finished.append(folder)
        except KeyboardInterrupt:
            if not ranks.leads:
                raise typer.Exit(130) from None
            complain(f"Stopped, {len(finished)} of {len(runs)} runs finished. Resume with: {command}")
            raise typer.Exit(130) from None
        except OSError as error:
            raise PromptFedError(f"{describe_os_error(error)} Resume with {command}") from error
        except PromptFedError as error:
            failed[folder] = error
    if not finished:
        raise next(iter(failed.values()))
    if not ranks.leads:
        return
    show_runs(finished, Format.terminal)
    for folder, reason in failed.items():
        complain(f"{folder} failed: {reason}")
    if failed:
        raise typer.Exit(1)


def demo(
    seed: Annotated[
        int, typer.Option(help="The random seed, which decides the partition and the starting weights.")
    ] = 0,
    out: Annotated[Path, typer.Option(help="The folder for the three runs and the report.")] = Path("runs/demo"),
) -> None:
    """Should twenty people with ten photographs each train together? Compare everyone alone, FedAvg and pFedVPT."""
    from promptfed.results.report import headline, read_run, write_report
    from promptfed.results.report.layout import to_rich
    from promptfed.runs import runner

    try:
        folders = runner.demo(seed, out)
    except KeyboardInterrupt:
        complain(f"Stopped. Resume with: promptfed demo --seed {seed} --out {out}")
        raise typer.Exit(130) from None
    console.print(to_rich(headline([read_run(folder) for folder in folders]), console.width))
    page = write_report(folders, out / f"report-seed{seed}.html")
    say(f"Report: {page.resolve()}")
    say("Next: promptfed run demo/prompts method.tokens=[0,1,16] shows what the number of prompt tokens changes.")


def reproduce(
    table: Annotated[
        str, typer.Argument(help="A shipped table such as pfedpg/t1-office, or a .table.toml file.", metavar="TABLE")
    ],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The folder for all runs; the default is runs/TABLE.")] = None,
    seeds: Annotated[str, typer.Option(help="The seeds of every cell, such as 0,1,2.")] = "0",
    only: Annotated[str | None, typer.Option(help="Run these rows only.", metavar="ROW,ROW")] = None,
    columns: Annotated[str | None, typer.Option(help="Run these columns only.", metavar="COLUMN,COLUMN")] = None,
    workers: Annotated[int, typer.Option(help="Runs at the same time, each in its own process.")] = 1,
    tune: Annotated[
        bool, typer.Option("--tune", help="Also tune every row: try its grid on validation images.")
    ] = False,
    merge: Annotated[
        list[Path] | None,
        typer.Option(help="Also use the finished runs of this table in another --out.", metavar="DIR"),
    ] = None,
    on: Annotated[Where, typer.Option(help="Who runs it: this command, those that share its folder, or Slurm.")] = (
        Where.here
    ),
    slurm: Annotated[
        list[str] | None,
        typer.Option(help="An option of sbatch, such as partition=gpu; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1; short for device=…")] = None,
    form: Form = None,
) -> None:
    """Run a paper's whole table and print our numbers beside the paper's.

    Keys apply to all cells; how they deviate from the paper is listed under the table:

        promptfed reproduce pfedpg/t1-office --seeds 0,1,2 --workers 4 backbone.weights=facebook/dinov2-small

    Finished runs are not run again: give the same command again to resume. With --on shared, give it on several
    machines with the same --out, and each run is made by one of them. --on slurm queues --workers such commands:

        promptfed reproduce pfedpt/t1-cifar10 --on slurm --workers 8 --slurm partition=gpu --slurm gpus-per-node=1
    """
    from promptfed.papers.plan import TablePlan
    from promptfed.papers.reproduce import find_table, parse_seeds

    found = find_table(table)
    plan = TablePlan(
        out=out or Path("runs") / found.name,
        overrides=(*(overrides or []), *([f"device={device}"] if device else [])),
        seeds=parse_seeds(seeds),
        rows=_chosen("--only", only),
        columns=_chosen("--columns", columns),
        workers=workers,
        tune=tune,
        merge=tuple(merge or ()),
    )
    if slurm and on is not Where.slurm:
        raise PromptFedError("--slurm goes with --on slurm.")
    if on is Where.slurm:
        _queue_table(table, found, plan, slurm or [])
        plan = replace(plan, on="elsewhere")
    elif on is Where.shared:
        plan = replace(plan, on="shared")
    _run_table(found, plan, form)


def _queue_table(source: str, table: "PaperTable", plan: "TablePlan", options: list[str]) -> None:
    """Let Slurm run a table, and wait for it."""
    from promptfed.papers import cluster

    job = cluster.submit(source, plan, options)
    complain(f"Slurm job {job}, {plan.workers} tasks. What runs where: promptfed jobs {plan.out}")
    try:
        cluster.wait(job, table, plan)
    except KeyboardInterrupt:
        complain(f"No longer waiting; the tasks go on. Stop them with: scancel {job}")
        raise typer.Exit(130) from None


def _run_table(table: "PaperTable", plan: "TablePlan", form: Format | None) -> None:
    """Run a paper's table and print it."""
    from promptfed.papers.cluster import stopped_by_term
    from promptfed.papers.remarks import failures
    from promptfed.papers.rendering import JSON_FILE, MARKDOWN_FILE
    from promptfed.papers.reproduce import reproduce

    try:
        with stopped_by_term():
            outcome = reproduce(table, plan)
    except KeyboardInterrupt:
        complain("Stopped. Give the same command again to resume.")
        raise typer.Exit(130) from None
    _show_table(outcome, form)
    # with --format, a program or a file may be reading: it gets the table only
    tell = say if form in (None, Format.terminal) else complain
    tell(f"Table {plan.out / MARKDOWN_FILE}, {plan.out / JSON_FILE}")
    if failures(outcome):
        raise typer.Exit(1)


def _chosen(option: str, given: str | None) -> tuple[str, ...]:
    """Return the names given by an option; none if it was not given, which means all."""
    names = tuple(filter(None, (given or "").split(",")))
    if given is not None and not names:
        raise PromptFedError(f"{option} names nothing; leave it out for all.")
    return names


def _show_table(outcome: "Comparison", form: Format | None = None) -> None:
    """Print a paper's table in the given format; the default is for a terminal, or Markdown if there is none."""
    from promptfed.papers.remarks import remarks
    from promptfed.papers.rendering import to_csv, to_latex, to_markdown, views
    from promptfed.results.report.layout import to_rich

    if form is None and not console.is_terminal:
        typer.echo(to_markdown(outcome))
        return
    if form not in (None, Format.terminal):
        writer = {Format.markdown: to_markdown, Format.latex: to_latex, Format.csv: to_csv}[form]
        typer.echo(writer(outcome), nl=False)
        return
    for title, shown in views(outcome):
        say(f"\n{outcome['title']} – {title}" if len(outcome["columns"]) > 1 else f"\n{outcome['title']}")
        console.print(to_rich(shown, console.width))
    for heading, sentences in remarks(outcome).items():
        say(f"\n{heading}")
        for sentence in sentences:
            say(f"- {sentence}")
