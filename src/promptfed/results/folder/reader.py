"""Read a run folder into one frozen value."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed_toml
from promptfed.results.folder import names
from promptfed.results.folder.each import unpacked
from promptfed.results.folder.metrics import Metrics, parse_metrics
from promptfed.results.folder.parts import (
    Json,
    beyond,
    find_drawn_figures,
    find_pictures,
    number,
    numbers,
    parse_recipe,
    read_figures,
    read_json,
    read_partition,
    read_rounds,
    read_text,
    scores,
    traffic,
    why,
)
from promptfed.results.folder.values import DrawnFigure, Figures, Holdings, Picture, Round, Scores, Traffic

log = logging.getLogger("promptfed")


@dataclass(frozen=True)
class RunFolder:
    """All that a report says about one run; for an unfinished run, the results of its rounds so far."""

    path: Path
    recipe_text: str
    recipe: Json
    rounds: tuple[Round, ...]
    partition: Holdings | None
    env: Json
    pictures: tuple[Picture, ...]
    requested: tuple[DrawnFigure, ...]
    checkpoint: bool
    figures: Figures | None
    figures_fault: str
    finished: bool
    method: str
    dataset: str
    partition_name: str
    backbone: str
    seed: int
    clients: int
    planned_rounds: int | None
    scores: Scores | None
    before: Scores | None
    after: Scores | None
    newcomers: float | None
    deployed: Mapping[str, float] | None
    best_round: int | None
    best_mean: float | None
    best_weighted: float | None
    best_local: float | None
    traffic: Traffic
    seconds: float
    images_per_second: float | None
    metrics: Metrics | None = None
    beyond: Mapping[str, float] = field(default_factory=dict)  # means on other images: SET, and hm and cm
    clock: float | None = None  # seconds of the simulated clock, if the run has one
    stopped: str = ""  # why it ended before its last round, if it did

    @property
    def adapts(self) -> bool:
        """Whether `scores` are of models that the method adapted at the end, not of those that clients received."""
        return self.scores is not None and self.before is not None and self.scores != self.before

    @property
    def joined(self) -> int | None:
        """The first round of the clients that joined after the others."""
        late = whole_in(self.recipe, "newcomers")
        first = (whole_in(self.recipe, "clients") or self.clients) - late
        there = (one.number for one in self.rounds if any(client >= first for client in one.clients))
        return next(there, None) if late else None

    @property
    def founders(self) -> float | None:
        """The mean of `scores` over the clients that were there from the first round."""
        each = self.scores.per_client[: self.clients - whole_in(self.recipe, "newcomers")] if self.scores else ()
        known = [value for value in each if value is not None]
        return sum(known) / len(known) if known else None

    @property
    def contacts(self) -> int:
        """How many times clients took part, over all rounds: the divisor for bytes per client and round."""
        return sum(len(one.clients) for one in self.rounds)

    @property
    def down_bytes(self) -> float:
        """Mean bytes sent to one client in one round."""
        return self.traffic.down_bytes / max(1, self.contacts)

    @property
    def up_bytes(self) -> float:
        """Mean bytes received from one client in one round."""
        return self.traffic.up_bytes / max(1, self.contacts)


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return every run folder once: those given, and for any other folder all run folders inside it.

    Of those inside, one whose first round is not finished is left out.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        below = [] if (path / names.RECIPE).is_file() else sorted(one.parent for one in path.rglob(names.ROUNDS))
        ready = [one for one in below if begun(one)]
        for one in below if ready else ():
            if one not in ready:
                log.warning("%s has no finished round yet and is left out", one)
        found |= {one.resolve(): one for one in ready or below or [path] if one.resolve() not in found}
    return list(found.values())


def begun(folder: Path) -> bool:
    """Return whether a folder is not that of a run whose first round is still at work."""
    rounds = folder / names.ROUNDS
    if not rounds.is_file():
        return True
    with rounds.open("rb") as file:
        return file.readline().endswith(b"\n")


def read_run(path: Path | str) -> RunFolder:
    """Read the run folder at `path`, finished or not."""
    folder = Path(path)
    _check_folder(folder)
    text = read_text(folder / names.RECIPE)
    recipe = parse_recipe(folder / names.RECIPE, text)
    summary = unpacked(read_json(folder / names.SUMMARY), folder)
    committed = committed_rounds(folder, summary)  # before the rounds: a run at work only adds to them
    rounds = read_rounds(folder / names.ROUNDS, committed)
    partition = read_partition(folder / names.PARTITION)
    figures, fault = read_figures(folder / names.FIGURES)
    facts = (
        _unfinished(recipe, rounds, partition)
        if summary is None
        else finished_facts(folder / names.SUMMARY, summary, recipe)
    )
    return RunFolder(
        path=folder,
        recipe_text=unsealed_toml(text),
        recipe=recipe,
        rounds=rounds,
        partition=partition,
        env=read_json(folder / names.ENVIRONMENT) or {},
        pictures=tuple(find_pictures(folder / names.PICTURES)),
        requested=tuple(find_drawn_figures(folder / names.DRAWN)),
        checkpoint=(folder / names.CHECKPOINT / names.STATE).is_file(),
        figures=figures,
        figures_fault=fault,
        finished=summary is not None,
        **facts,
    )


def committed_rounds(folder: Path, summary: Json | None) -> int:
    """Return how many rounds a run has for certain, by its summary or else by its checkpoint."""
    if summary is None:
        found = (read_json(folder / names.CHECKPOINT / names.STATE) or {}).get("round")
    else:
        accuracy = summary.get("accuracy")
        found = accuracy.get("round") if isinstance(accuracy, dict) else None
    return found if isinstance(found, int) else 0


def per_domain(deployed: Mapping[str, float]) -> list[float]:
    """Return the accuracies of the server's own model on each domain; without domains, on all images."""
    return [value for name, value in deployed.items() if name != "all" or len(deployed) == 1]


def most_of(amounts: Sequence[float], names: Sequence[str]) -> list[str]:
    """Return the names of the up to three largest amounts, each at least a tenth of all."""
    ordered = sorted(zip(amounts, names, strict=False), key=lambda pair: -pair[0])
    return [name for amount, name in ordered[:3] if amount and amount >= 0.1 * sum(amounts)]


def _check_folder(folder: Path) -> None:
    """Refuse a path that is not a run folder, and suggest one just below it."""
    if not folder.is_dir():
        raise PromptFedError(f'Run folder "{folder}" does not exist; give the folder of a run.')
    missing = [name for name in (names.RECIPE, names.ROUNDS) if not (folder / name).is_file()]
    if not missing:
        return
    if missing == [names.ROUNDS]:
        raise PromptFedError(
            f'Run folder "{folder}" has no finished round yet (no {names.ROUNDS}); wait for the first one.'
        )
    below = sorted(str(found.parent) for found in folder.glob(f"*/{names.ROUNDS}"))
    hint = f'did you mean "{below[0]}"?' if below else "give the folder of a run."
    raise PromptFedError(f'"{folder}" is not a run folder, since it has no {missing[0]}; {hint}')


def finished_facts(path: Path, raw: Json, recipe: Json) -> dict[str, Any]:
    """Return the fields of a finished run, from its summary."""
    try:
        accuracy = raw["accuracy"]
        return {
            "method": str(raw["method"]),
            "dataset": str(raw["dataset"]),
            "partition_name": str(raw["partition"]),
            "backbone": str(raw["backbone"]),
            "seed": int(raw.get("seed", recipe.get("seed", 0))),
            "clients": int(raw["clients"]),
            "planned_rounds": int(raw["rounds"]),
            "scores": scores(accuracy),
            "before": scores(accuracy.get("before")),
            "after": scores(accuracy.get("after")),
            "newcomers": number(accuracy.get("newcomers")),
            "deployed": numbers(accuracy["deployed"]) if accuracy.get("deployed") else None,
            "best_round": None if accuracy["best_round"] is None else int(accuracy["best_round"]),
            "best_mean": number(accuracy["best_mean"]),
            "best_weighted": number(accuracy.get("best_weighted")),
            "best_local": number(accuracy.get("best_local")),
            "traffic": traffic(raw["traffic"]),
            "seconds": float(raw["seconds"]),
            "images_per_second": number(raw.get("images_per_second")),
            "metrics": parse_metrics(raw.get("metrics")),
            "beyond": beyond(accuracy),
            "clock": number(raw.get("clock")),
            "stopped": str(raw.get("stopped", "")),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PromptFedError(f'"{path}" is not a summary: {why(error)}.') from error


def _unfinished(recipe: Json, rounds: tuple[Round, ...], partition: Holdings | None) -> dict[str, Any]:
    """Return the same fields for an unfinished run: names from the recipe, numbers from the rounds so far."""
    scored = [(one.received, one) for one in rounds if one.received is not None]
    last = scored[-1][0] if scored else None
    # After newcomers have joined, earlier means cover fewer clients and cannot be compared.
    same = [pair for pair in scored if last and len(pair[0].per_client) == len(last.per_client)]
    best = max(same, key=lambda pair: pair[0].mean, default=None)
    known = len(partition.clients) if partition else len(last.per_client) if last else 0
    totals = [(one.traffic.down_bytes, one.traffic.up_bytes) for one in rounds]
    return {
        "method": name_in(recipe, "method"),
        "dataset": name_in(recipe, "data"),
        "partition_name": name_in(recipe, "partition"),
        "backbone": name_in(recipe, "backbone"),
        "seed": int(recipe.get("seed", 0)),
        "clients": known,
        "planned_rounds": planned_rounds(recipe),
        "scores": last,
        "before": last,
        "after": None,
        "newcomers": None,
        "deployed": next((one.deployed for one in reversed(rounds) if one.deployed), None),
        "best_round": best[1].number if best else None,
        "best_mean": best[0].mean if best else None,
        "best_weighted": max((found.weighted for found, _ in same), default=None),
        "best_local": None,
        "traffic": Traffic(
            rounds[-1].traffic.down_floats,
            rounds[-1].traffic.up_floats,
            *(sum(each) for each in zip(*totals, strict=True)),
        ),
        "seconds": sum(one.seconds for one in rounds),
        "clock": rounds[-1].clock,
        "images_per_second": None,
        "beyond": next((one.beyond for one in reversed(rounds) if one.beyond), {}),
    }


def planned_rounds(recipe: Json) -> int | None:
    """Return how many rounds a recipe asks for, those of newcomers included."""
    planned = recipe.get("rounds")
    joining = whole_in(recipe, "join_rounds") if whole_in(recipe, "newcomers") else 0
    return planned + joining if isinstance(planned, int) else None


def whole_in(recipe: Json, key: str) -> int:
    """Return the whole number under a recipe's key, or 0."""
    found = recipe.get(key)
    return found if isinstance(found, int) else 0


def name_in(recipe: Json, table: str) -> str:
    """Return the `name` in a recipe's table, or a question mark."""
    found = recipe.get(table)
    return str(found.get("name", "?")) if isinstance(found, dict) else "?"
