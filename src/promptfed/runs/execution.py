"""Starting a run, and completing one: its remaining rounds, final evaluation, summary and report."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from promptfed.core.files import sealed_toml, unsealed_toml, write_text
from promptfed.core.method import Method, adapts
from promptfed.core.progress import bar
from promptfed.core.ranks import ALONE, Ranks
from promptfed.federation.evaluate import Score
from promptfed.federation.loop import Loop
from promptfed.federation.summarising import summarise
from promptfed.results import tracking
from promptfed.results.folder import names
from promptfed.results.folder.record import Follower, Line, Record
from promptfed.results.report import compare, read_run, write_report
from promptfed.results.report.notebook import card, describe
from promptfed.runs import domains, exhibits
from promptfed.runs.elsewhere import tested_elsewhere
from promptfed.runs.environment import environment, precision
from promptfed.runs.measuring import measured, peak_memory
from promptfed.runs.memory import enough
from promptfed.runs.planning import Plan, digests, make_loop, prepare
from promptfed.runs.recipe import Recipe
from promptfed.runs.summary import privacy_spent, stopped_early, summary_head


@dataclass(frozen=True)
class Result:
    """A finished run."""

    folder: Path
    rounds: list[Line]
    summary: Line

    def table(self) -> str:
        """Return the run as a Markdown table."""
        return compare([read_run(self.folder)]).to_markdown()

    def __repr__(self) -> str:
        return (
            f"<{describe(read_run(self.folder))}>" if self._readable else f"<{self.folder}, which is no longer there>"
        )

    def _repr_markdown_(self) -> str | None:
        return self.table() if self._readable else None

    def _repr_html_(self) -> str | None:
        return card(read_run(self.folder)) if self._readable else None

    @property
    def _readable(self) -> bool:
        """Whether the folder is still there: to show a result must never fail."""
        return all((self.folder / name).is_file() for name in (names.RECIPE, names.ROUNDS))


def start(
    recipe: Recipe,
    folder: Path,
    method: Method | None = None,
    track: tuple[str, ...] = (),
    ranks: Ranks = ALONE,
) -> Result:
    """Run a recipe in a new folder, followed by the trackers named in `track`; `ranks` share the run."""
    tracking.check(track)
    with enough(recipe):
        plan = prepare(recipe, method, None, ranks=ranks)
        record = Record(folder) if ranks.leads else Follower(folder)
        loop = make_loop(plan, record)
        loop.store.get(0)  # a method that does not fit the images says so before anything is written
    record.begin(recipe.to_toml(), environment(plan.device, ranks), own=recipe.own_images)
    if ranks.leads:
        plan.partition.save(folder / names.PARTITION, plan.dataset)
    ranks.told("begun")  # from here on all read the folder
    return execute(plan, loop, track)


def execute(plan: Plan, loop: Loop, track: tuple[str, ...] = ()) -> Result:
    """Run the remaining rounds, then write the summary, pictures and report, while no other process writes there."""
    with loop.record.held(), enough(plan.recipe):
        summary = _complete(plan, loop, track)
    return Result(loop.record.folder, loop.record.rounds, summary)


def _complete(plan: Plan, loop: Loop, track: tuple[str, ...]) -> Line:
    record = loop.record
    sources = digests(plan)
    _restore(plan, loop, sources)
    with tracking.follow(record.folder, track if loop.ranks.leads else ()) as following:
        with precision(str(plan.recipe.fleet["precision"])):
            summary = _finish_rounds(plan, loop, sources, following)
        if not loop.ranks.leads:
            return summary
        if loop.ranks.size > 1:  # the other processes' clients are in the files of the last commit
            state = record.state(plan.recipe.hash, plan.partition.hash) or {}
            loop.store = loop.store.whole(state["personal"])
        exhibits.write_figures(loop, record.folder / names.FIGURES, plan.dataset)
        domains.show(loop, plan.dataset, record.folder)
        exhibits.draw_prompts(loop, record.folder / names.PICTURES, plan.dataset)
        record.finish(summary)  # last of all that needs the models: a run that has it is finished
        following.finish(summary)
    write_report([record.folder])
    return summary


def _finish_rounds(plan: Plan, loop: Loop, sources: Mapping[str, str], following: tracking.Following) -> Line:
    """Run the remaining rounds and the last tests; return the summary."""
    recipe, record = plan.recipe, loop.record
    for line in record.rounds:  # of a resumed run; what a tracker has, it does not get again
        following.log(line)

    def finished(line: Line) -> None:
        advance(0, _note(line))
        following.log(line)

    with bar(f"{recipe.method['name']}", loop.settings.total) as advance:
        advance(loop.finished)
        loop.fleet.tick = lambda more, of: advance(more / of)
        loop.run(lambda: loop.save(recipe.hash, plan.partition.hash, sources), finished)
    head = summary_head(recipe, plan.partition.hash, str(plan.device))
    head |= privacy_spent(loop, recipe.rounds) | stopped_early(loop)
    if "stopped" in head and loop.ranks.leads:
        sys.stderr.write(head["stopped"] + "\n")
    summary = summarise(record, head, *_last_tests(loop), recipe.newcomers)
    summary["accuracy"] |= tested_elsewhere(plan, loop)
    return summary | peak_memory(plan.device) | measured(loop, recipe)


def _restore(plan: Plan, loop: Loop, sources: Mapping[str, str]) -> None:
    """Restore the last committed state, if there is one; later rounds are run again."""
    recipe, record = plan.recipe, loop.record
    state = record.state(recipe.hash, plan.partition.hash, sources)
    if state is None:
        record.rewind(0)
    else:
        loop.restore(state)
        record.tidy(state)  # if it was killed right after the commit
    stored = record.folder / names.RECIPE
    text = unsealed_toml(stored.read_text(encoding="utf-8"))
    if text != recipe.to_toml() and loop.ranks.leads:  # resumed for more rounds, or on another device
        for stale in (names.SUMMARY, names.FIGURES, names.PREDICTIONS):
            (record.folder / stale).unlink(missing_ok=True)
        write_text(stored, sealed_toml(recipe.to_toml()))


def _last_tests(loop: Loop) -> tuple[Line | None, Score | None]:
    """Return the scores of the final state after the method's own adaptation, and after one more local training."""
    trainings = len(loop.everyone) * (adapts(loop.method) + loop.settings.after)
    if not trainings:
        return None, None
    with bar("last tests", trainings) as advance:
        loop.fleet.tick = lambda more, of: advance(more)
        return loop.adapted(), loop.after()


def _note(line: Line) -> str:
    mean = line["received"] and line["received"]["mean"]
    valid = line.get("validation", {}).get("mean")
    shown = [("accuracy", mean), ("validation", valid)]
    return ", ".join(f"{what} {100 * value:.1f} %" for what, value in shown if value is not None)
