"""`promptfed.load(DIR)`: a run folder, or many, as columns for a notebook or for pandas; without torch."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from promptfed.results.columns import Columns
from promptfed.results.folder import names
from promptfed.results.folder.each import unpacked
from promptfed.results.folder.parts import read_json
from promptfed.results.folder.reader import RunFolder, begun, most_of, read_run, run_folders
from promptfed.results.folder.values import Client, Round, Scores

EACH = [f"received.{field.name}" for field in fields(Scores) if field.name != "per_client"]
NAMED = {
    "seed",
    "clients",
    "rounds",
    "device",
    "checkpoint_seconds",
}  # recipe keys that have a column anyway, or no say


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """A run folder, finished or not; `details` has all that the columns leave out, such as the partition."""

    details: RunFolder
    summary: Mapping[str, Any] | None  # summary.json; None while the run is unfinished

    @property
    def folder(self) -> Path:
        """Return the run's folder."""
        return self.details.path

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Return the recipe with every default."""
        return self.details.recipe

    @property
    def finished(self) -> bool:
        """Return whether the run is finished."""
        return self.details.finished

    @cached_property
    def rounds(self) -> Columns:
        """Return a row per finished round: its numbers, named by where they are in rounds.jsonl, as received.mean."""
        return Columns.from_records(map(_round_row, self.details.rounds), ["round", "participants", "loss", *EACH])

    @cached_property
    def clients(self) -> Columns:
        """Return a row per client: its images, its main domain and classes, and how accurate its model is."""
        run = self.details
        taken = Counter(client for one in run.rounds for client in one.clients)
        scores = {"before": _each(run.before), "accuracy": _each(run.scores), "after": _each(run.after)}
        rows = (
            _client_row(run, client)
            | {"rounds": taken[client]}
            | {name: each[client] if client < len(each) else None for name, each in scores.items()}
            for client in range(run.clients)
        )
        return Columns.from_records(rows)

    @cached_property
    def scores(self) -> Columns:
        """Return a row per client and evaluated round: the accuracy as received, and after training if it took part."""
        rows = (row for one in self.details.rounds for row in _score_rows(one))
        return Columns.from_records(rows, ["round", "client", "received", "trained"])

    def table(self) -> str:
        """Return the run as a Markdown table."""
        from promptfed.results.report import compare

        return compare([self.details]).to_markdown()

    def __repr__(self) -> str:
        from promptfed.results.report.notebook import describe

        return f"<{describe(self.details)}>"

    def _repr_markdown_(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        from promptfed.results.report.notebook import card

        return card(self.details)


@dataclass(frozen=True, repr=False)
class LoadedRuns:
    """Several runs; each of the columns holds the rows of all of them."""

    runs: tuple[LoadedRun, ...]

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[LoadedRun]:
        return iter(self.runs)

    def __getitem__(self, index: int) -> LoadedRun:
        return self.runs[index]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the name of each run: its folder, from where the runs' folders part."""
        places = [run.folder.resolve() for run in self.runs]
        shared = Path(os.path.commonpath([place.parent for place in places]))
        return tuple(place.relative_to(shared).as_posix() for place in places)

    @cached_property
    def summary(self) -> Columns:
        """Return a row per run: what was run, its results so far, and the recipe keys in which the runs differ."""
        recipes = [_flat(run.recipe) for run in self.runs]
        keys = dict.fromkeys(key for recipe in recipes for key in recipe)
        odd = [key for key in keys if key not in NAMED and not key.endswith(".name") and _varies(key, recipes)]
        return Columns.from_records(
            {"run": name} | _summary_row(run.details) | {key: recipe.get(key) for key in odd}
            for name, run, recipe in zip(self.names, self.runs, recipes, strict=True)
        )

    @cached_property
    def rounds(self) -> Columns:
        """Return a row per run and finished round."""
        return self._joined("rounds")

    @cached_property
    def clients(self) -> Columns:
        """Return a row per run and client."""
        return self._joined("clients")

    @cached_property
    def scores(self) -> Columns:
        """Return a row per run, client and evaluated round."""
        return self._joined("scores")

    def table(self) -> str:
        """Return the comparison of the runs as a Markdown table; runs that differ in the seed alone share a row."""
        from promptfed.results.report import compare

        return compare([run.details for run in self.runs]).to_markdown()

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.runs))

    def _repr_markdown_(self) -> str:
        return self.table()

    def _joined(self, what: str) -> Columns:
        """Return one kind of rows of all runs, each with its run, method and seed."""
        return Columns.from_records(
            {"run": name, "method": run.details.method, "seed": run.details.seed} | row
            for name, run in zip(self.names, self.runs, strict=True)
            for row in getattr(run, what).records()
        )


def load(folder: str | Path) -> LoadedRun:
    """Load the run in `folder`, finished or not, without importing torch."""
    run = read_run(folder)
    return LoadedRun(run, unpacked(read_json(run.path / names.SUMMARY), run.path) if run.finished else None)


def load_all(*folders: str | Path) -> LoadedRuns:
    """Load every run in or below these folders, or below runs/; one without a finished round yet is left out."""
    found = run_folders([Path(folder) for folder in folders or ("runs",)])
    return LoadedRuns(tuple(map(load, [folder for folder in found if begun(folder)] or found)))


def _round_row(one: Round) -> dict[str, Any]:
    """Return the numbers of a round; those of an inner table are named TABLE.NUMBER."""
    row: dict[str, Any] = {"round": one.number, "participants": len(one.clients)}
    for name, value in asdict(one).items():
        if isinstance(value, Mapping):
            row |= {f"{name}.{key}": inner for key, inner in value.items() if isinstance(inner, int | float)}
        elif name != "number" and isinstance(value, int | float):
            row[name] = value
    return row


def _client_row(run: RunFolder, client: int) -> dict[str, Any]:
    held = run.partition.clients[client] if run.partition and client < len(run.partition.clients) else None
    main = most_of(held.counts, run.partition.classes) if held and run.partition else []
    return {
        "client": client,
        "train": sum(held.counts) if held else None,
        "test": held.test if held else None,
        "domain": _domain(held, run),
        "classes": ", ".join(main) if held else None,
    }


def _domain(held: Client | None, run: RunFolder) -> str | None:
    """Return the domain that most of a client's training images are of; None where there is one domain only."""
    known = run.partition.domain_names if run.partition else ()
    if held is None or len(known) < 2 or not any(held.domains):
        return None
    return known[max(range(len(held.domains)), key=held.domains.__getitem__)]


def _score_rows(one: Round) -> Iterator[dict[str, Any]]:
    if one.received is not None:
        for client, (received, trained) in enumerate(zip_longest(one.received.per_client, _each(one.trained))):
            yield {"round": one.number, "client": client, "received": received, "trained": trained}


def _each(scores: Scores | None) -> list[float | None]:
    """Return the score of every client that was there to be tested."""
    return list(scores.per_client) if scores else []


def _summary_row(run: RunFolder) -> dict[str, Any]:
    scores = run.scores
    return {
        "method": run.method,
        "dataset": run.dataset,
        "partition": run.partition_name,
        "backbone": run.backbone,
        "seed": run.seed,
        "clients": run.clients,
        "rounds": run.rounds[-1].number,
        "finished": run.finished,
        "mean": scores.mean if scores else None,
        "weighted": scores.weighted if scores else None,
        "worst": scores.worst if scores else None,
        "p10": scores.p10 if scores else None,
        **run.beyond,
        "before": run.before.mean if run.before else None,
        "after": run.after.mean if run.after else None,
        "deployed": (run.deployed or {}).get("all"),
        "best": run.best_mean,
        "best_round": run.best_round,
        "down_bytes": run.traffic.down_bytes,
        "up_bytes": run.traffic.up_bytes,
        "seconds": run.seconds,
        **({} if run.clock is None else {"clock": run.clock}),
    }


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the recipe's values under dotted keys."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def _varies(key: str, recipes: Sequence[Mapping[str, Any]]) -> bool:
    return any(recipe.get(key) != recipes[0].get(key) for recipe in recipes)
