"""Tuning: settings of any recipe keys, drawn within a budget and compared on validation images, never on test images.

OUT/trial-003/      the run folder of the third setting
OUT/tuning.json     what is tried, and the score of every trial so far
OUT/best.toml       the recipe of the best setting, to be run on test images
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_json, write_text
from promptfed.core.progress import about_left
from promptfed.core.schedule import PACED
from promptfed.results.metrics import LESS_IS_BETTER, METRICS, TITLES
from promptfed.results.report.table import Cell, Column, Table
from promptfed.runs import config, nested
from promptfed.runs.recipe import Recipe
from promptfed.runs.search import Setting, settings, split_words

STATE, BEST = "tuning.json", "best.toml"
TRIED = ("evaluate.split=val", "evaluate.after=false")  # of every trial: no test image is looked at
KEPT = 3  # halving: the best third goes on, for three times as many rounds


@dataclass(frozen=True)
class Tuning:
    """What is tried: a recipe, the words that fix or search its keys, how many settings, and where."""

    source: str
    words: tuple[str, ...]
    out: Path
    budget: int = 20
    seed: int = 0
    halving: bool = False


@dataclass(frozen=True)
class Trial:
    """A setting, and the mean of its measure on validation images after so many rounds; or why it has none."""

    number: int
    setting: Setting
    scores: Mapping[int, float] = field(default_factory=dict)
    problem: str = ""
    measure: str = METRICS[0]

    @property
    def rounds(self) -> int:
        """Return how many rounds it has been trained for."""
        return max(self.scores, default=0)

    @property
    def rank(self) -> tuple[int, float]:
        """Return what the better trial has more of: rounds, since the best go on, then its score."""
        return self.rounds, self.scores.get(self.rounds, 0.0)

    @property
    def words(self) -> list[str]:
        """Return the setting as overrides."""
        return [f"{key}={nested.literal(value)}" for key, value in self.setting.items()]


@dataclass(frozen=True)
class Stage:
    """How many trials are trained, and which part of a recipe's rounds for."""

    trials: int
    part: int

    def rounds(self, recipe: Recipe) -> int:
        """Return the rounds of a trial at the end of this stage."""
        return max(1, recipe.rounds // self.part)


def tune(tuning: Tuning) -> list[Trial]:
    """Run what is left of the trials, write the best one's recipe, and return all trials, best first."""
    trials, recipes = _planned(tuning)
    stages = make_stages(len(trials), recipes[0].rounds, halving=tuning.halving)
    if tuning.halving:
        _check_halving(recipes, stages)
    _check_state(tuning, trials)
    trials = _known(tuning, trials)
    clock = _Clock(sum(stage.trials * stage.rounds(recipes[0]) for stage in stages))
    going = list(range(len(trials)))
    for stage in stages:
        for place in going[: stage.trials]:
            recipe = replace(recipes[place], rounds=stage.rounds(recipes[place]))
            if recipe.rounds not in trials[place].scores and not trials[place].problem:
                clock.announce(trials[place], len(trials))
                trials[place] = _run(tuning, trials[place], recipe)
                write_json(tuning.out / STATE, _state(tuning, trials))
                clock.count(recipe.rounds)
            else:
                clock.skip(recipe.rounds)
        reached = {
            place: trials[place].scores.get(stage.rounds(recipes[place]), -1.0) for place in going[: stage.trials]
        }
        going = sorted(reached, key=lambda place: (-reached[place], place))
    found = sorted(trials, key=lambda trial: trial.rank, reverse=True)
    if not found[0].scores:
        raise PromptFedError(f"None of the {len(found)} trials has a result; the first one: {found[0].problem}")
    best = config.load_one(tuning.source, [*split_words(tuning.words)[1], *found[0].words])
    write_text(tuning.out / BEST, best.to_toml())
    return found


def make_stages(trials: int, rounds: int, *, halving: bool) -> list[Stage]:
    """Return a single stage of all rounds, or by successive halving first many trials of few rounds."""
    more = 0
    while halving and trials // KEPT ** (more + 1) and rounds // KEPT ** (more + 1):
        more += 1
    return [Stage(trials // KEPT**number, KEPT ** (more - number)) for number in range(more + 1)]


def to_table(trials: Sequence[Trial]) -> Table:
    """Return the trials as a table, best first."""
    keys = list(trials[0].setting)
    several = len({trial.rounds for trial in trials if trial.scores}) > 1
    columns = [Column("trial", "", ("trial",)), *(Column(key, "", (key,)) for key in keys)]
    columns += [Column("rounds", "", ("rounds",))] if several else []
    legend = f"mean {TITLES[trials[0].measure]} over clients on validation images, %"
    columns.append(Column("validation", legend, ("validation",)))
    best = max(trial.rank for trial in trials)
    rows = []
    for trial in trials:
        shown = [str(trial.number), *(str(trial.setting[key]) for key in keys)]
        shown += [str(trial.rounds or "")] if several else []
        score = f"{100 * trial.rank[1]:.1f}" if trial.scores else "failed"
        rows.append((*(Cell(text, (text,)) for text in shown), Cell(score, (score,), trial.rank == best)))
    return Table(tuple(columns), tuple(rows))


# -- before any run -------------------------------------------------------------------------------------------------


def _planned(tuning: Tuning) -> tuple[list[Trial], list[Recipe]]:
    """Return the trials with their recipes; a key or a value that cannot be is refused here."""
    space, fixed = split_words(tuning.words)
    if not space:
        raise PromptFedError("Nothing to tune: give a key several values, such as method.lr=log(1e-4,1).")
    if tuning.budget < 1:
        raise PromptFedError(f"--budget must be at least 1, not {tuning.budget}.")
    for key in (word.partition("=")[0].strip() for word in tuning.words):
        if key == "evaluate.split":
            raise PromptFedError("Tuning looks at validation images alone; leave evaluate.split out.")
    whys = {"seed": "a lucky one says nothing", "evaluate.metric": "it decides which trial is the best"}
    for key, why in (whys | ({"rounds": "halving decides how many there are"} if tuning.halving else {})).items():
        if key in space:
            raise PromptFedError(f"{key} cannot be tuned: {why}; give it one value.")
    first = Trial(0, {key: values.at(0.0) for key, values in space.items()})
    config.load_one(tuning.source, [*fixed, *first.words, *TRIED])  # refuses a wrong key before drawing imports torch
    chosen = list(islice(settings(space, tuning.seed), tuning.budget))
    trials = [Trial(number, setting) for number, setting in enumerate(chosen, 1)]
    recipes = [config.load_one(tuning.source, [*fixed, *trial.words, *TRIED]) for trial in trials]
    return [replace(trial, measure=_measure(recipe)) for trial, recipe in zip(trials, recipes, strict=True)], recipes


def _measure(recipe: Recipe) -> str:
    """Return what a trial is scored by: the headline; accuracy where less is better, which a bad model can have too."""
    headline = str(recipe.evaluate.get("metric", METRICS[0]))
    return METRICS[0] if headline in LESS_IS_BETTER else headline


def _check_halving(recipes: Sequence[Recipe], stages: Sequence[Stage]) -> None:
    """Refuse what keeps a run from getting more rounds later."""
    for recipe in recipes:
        first = stages[0].rounds(recipe)
        if recipe.newcomers:
            raise PromptFedError("--halving gives runs more rounds, but newcomers join after the last; leave it out.")
        if recipe.schedule.get("name") in PACED:
            raise PromptFedError(
                "--halving gives runs more rounds, and on their number depend the rates of "
                f"schedule.name={recipe.schedule['name']}; leave --halving out."
            )
        if recipe.schedule.get("warmup", 0) >= first:
            raise PromptFedError(
                f"--halving first trains for rounds={first}, all of them schedule.warmup={recipe.schedule['warmup']}; "
                "raise rounds, or leave --halving out."
            )


# -- what is known and what is run ----------------------------------------------------------------------------------


def _state(tuning: Tuning, trials: Sequence[Trial]) -> dict[str, object]:
    """Return what tuning.json holds."""
    about = {"source": tuning.source, "words": list(tuning.words), "seed": tuning.seed, "halving": tuning.halving}
    return about | {
        "budget": tuning.budget,
        "trials": [
            {"trial": one.number, "setting": one.setting, "problem": one.problem}
            | {"scores": {str(rounds): score for rounds, score in one.scores.items()}}
            for one in trials
        ],
    }


def _check_state(tuning: Tuning, trials: Sequence[Trial]) -> None:
    """Refuse a folder that holds another tuning; without halving the budget may change."""
    path = tuning.out / STATE
    if not path.is_file():
        if tuning.out.is_dir() and any(tuning.out.iterdir()):
            raise PromptFedError(f"{tuning.out} holds something else; choose another --out.")
        return
    stored, wanted = _read(path), json.loads(json.dumps(_state(tuning, trials)))
    decisive = ["source", "words", "seed", "halving", *(["budget"] if tuning.halving else [])]
    for key in decisive:
        if stored.get(key) != wanted[key]:
            raise PromptFedError(f"{tuning.out} holds a tuning with other {key}; choose another --out.")


def _read(path: Path) -> dict[str, object]:
    try:
        found: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PromptFedError(f"{path} is damaged; choose another --out.") from error
    return found


def _known(tuning: Tuning, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with what earlier commands found out about them."""
    path = tuning.out / STATE
    if not path.is_file():
        tuning.out.mkdir(parents=True, exist_ok=True)
        write_json(path, _state(tuning, trials))
    stored: object = _read(path).get("trials")
    known = {line["trial"]: line for line in stored} if isinstance(stored, list) else {}
    found = []
    for trial in trials:
        line = known.get(trial.number, {"scores": {}, "problem": ""})
        scores = {int(rounds): float(score) for rounds, score in line["scores"].items()}
        found.append(replace(trial, scores=scores, problem=line["problem"]))
    return found


def _run(tuning: Tuning, trial: Trial, recipe: Recipe) -> Trial:
    """Start or resume a trial's run; one that fails does not stop the others."""
    from promptfed.runs import resuming  # with it comes torch, which a wrong key need not wait for

    try:
        summary = resuming.start_or_resume(recipe, tuning.out / f"trial-{trial.number:03}").summary
    except PromptFedError as error:
        sys.stderr.write(f"Trial {trial.number} ({' '.join(trial.words)}) failed: {error}\n")
        return replace(trial, problem=str(error))
    plain = trial.measure == METRICS[0]
    mean = (summary["accuracy"] if plain else summary.get("metrics", {}).get(trial.measure, {})).get("mean")
    if mean is None:
        what = "validation images" if plain else f"{TITLES[trial.measure]} on validation images"
        return replace(trial, problem=f"No client has {what}.")
    return replace(trial, scores={**trial.scores, recipe.rounds: mean})


@dataclass
class _Clock:
    """Tells a person at a terminal which trial is next, and about how long all of them take."""

    rounds: int  # of all trials, those already trained included
    done: int = 0  # by this command
    began: float = field(default_factory=time.monotonic)

    def announce(self, trial: Trial, trials: int) -> None:
        """Write a line above the trial's own progress bar."""
        if sys.stderr.isatty():
            left = (time.monotonic() - self.began) / self.done * self.rounds if self.done else None
            sys.stderr.write(f"[{trial.number}/{trials}] {' '.join(trial.words)}{about_left(left)}\n")

    def count(self, rounds: int) -> None:
        """Count the rounds of a trial that was trained."""
        self.done, self.rounds = self.done + rounds, self.rounds - rounds

    def skip(self, rounds: int) -> None:
        """Leave out the rounds of a trial that was trained before, or has failed."""
        self.rounds -= rounds
