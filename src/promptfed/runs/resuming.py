"""Resuming a stopped run, and running a finished one for longer."""

import math
from dataclasses import replace
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_sealed
from promptfed.core.method import Method
from promptfed.core.ranks import ALONE, Ranks
from promptfed.results import tracking
from promptfed.results.folder import names
from promptfed.results.folder.parts import read_summary
from promptfed.results.folder.record import Follower, Record, over_sites
from promptfed.results.report import write_report
from promptfed.runs import config, execution
from promptfed.runs.environment import environment
from promptfed.runs.execution import Result
from promptfed.runs.memory import enough
from promptfed.runs.planning import make_loop, prepare
from promptfed.runs.recipe import Recipe, first_difference


def start_or_resume(recipe: Recipe, folder: Path, track: tuple[str, ...] = (), ranks: Ranks = ALONE) -> Result:
    """Resume the run in `folder`, if there is one, or start it; `ranks` share the run."""
    if all(ranks.told((folder / names.RECIPE).is_file())):
        return resume(folder, recipe, track=track, ranks=ranks)
    return execution.start(recipe, folder, track=track, ranks=ranks)


def resume(
    folder: Path,
    recipe: Recipe | None = None,
    method: Method | None = None,
    track: tuple[str, ...] = (),
    ranks: Ranks = ALONE,
) -> Result:
    """Resume the run in `folder`; a recipe given with it must be the run's own, but may ask for more rounds.

    As many processes as there are `ranks` share the rest of it, however many began it.
    """
    tracking.check(track)
    record = (Record if ranks.leads else Follower).reopen(folder)
    if over_sites(folder):
        raise PromptFedError(f"{folder} is a run over sites; resume it with promptfed sites run --resume {folder}.")
    stored = config.load_one(str(folder / names.RECIPE))
    wanted = stored if recipe is None else recipe
    if wanted.hash != stored.hash:
        raise PromptFedError(
            f"{folder} was run with {first_difference(stored, wanted)}; resume it without that change."
        )
    longer = wanted.rounds > stored.rounds or _raised(stored, wanted)
    if longer and stored.newcomers:
        raise PromptFedError(f"In {folder} newcomers join after round {stored.rounds}; it cannot run for more rounds.")
    if wanted.rounds < stored.rounds:
        raise PromptFedError(f"{folder} has rounds={stored.rounds}; a resumed run can have more rounds, not fewer.")
    if not longer and (folder / names.SUMMARY).exists():
        summary = read_summary(folder)
        record.read(summary["accuracy"]["round"])
        if not (folder / names.REPORT).is_file():  # stopped in the very last moment
            write_report([folder])
        return Result(folder, record.rounds, summary)
    stored = replace(
        stored,
        rounds=wanted.rounds,
        device=wanted.device,
        checkpoint_seconds=wanted.checkpoint_seconds,
        guards=wanted.guards,
    )
    with enough(stored):
        plan = prepare(stored, method, folder / names.PARTITION, ranks=ranks)
    if ranks.leads and not (folder / names.ENVIRONMENT).exists():  # killed as it began
        write_sealed(folder / names.ENVIRONMENT, environment(plan.device, ranks))
    if ranks.leads and not (folder / names.PARTITION).exists():
        plan.partition.save(folder / names.PARTITION, plan.dataset)
    with enough(stored):
        loop = make_loop(plan, record)
    return execution.execute(plan, loop, track)


def _raised(stored: Recipe, wanted: Recipe) -> bool:
    """Say whether the privacy budget was raised, and refuse to lower it."""
    before, now = (recipe.guards.get("budget") or math.inf for recipe in (stored, wanted))
    if now < before:
        raise PromptFedError(
            f"guards.budget={now:g} is less than the run started with, {before:g}; a resumed run can have a larger one."
        )
    return now > before
