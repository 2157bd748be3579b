"""Read a run folder into one frozen value; the only place that knows the files' names and keys."""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptfed.errors import PromptFedError

Json = Mapping[str, Any]
Matrix = tuple[tuple[float, ...], ...]

_PICTURE = re.compile(r"(?P<name>.+)-client-(?P<client>\d+)\.png")


@dataclass(frozen=True)
class Scores:
    """Accuracy over the clients, as fractions; a client without test images has None."""

    mean: float
    weighted: float
    worst: float
    p10: float
    per_client: tuple[float | None, ...]

    @property
    def best(self) -> float:
        """The accuracy of the best client."""
        return max((value for value in self.per_client if value is not None), default=self.mean)


@dataclass(frozen=True)
class Traffic:
    """What travels: floats per client and round, bytes summed over all clients of a round or of a run."""

    down_floats: int
    up_floats: int
    down_bytes: int
    up_bytes: int


@dataclass(frozen=True)
class Round:
    """One finished round."""

    number: int
    clients: tuple[int, ...]
    loss: float | None
    received: Scores | None
    trained: Scores | None
    deployed: Mapping[str, float] | None
    measures: Mapping[str, float]
    traffic: Traffic
    seconds: float


@dataclass(frozen=True)
class Client:
    """How many images one client holds: for training per class and per domain, and for its test."""

    counts: tuple[int, ...]
    domains: tuple[int, ...]
    test: int


@dataclass(frozen=True)
class Partition:
    """Who holds what."""

    hash: str
    classes: tuple[str, ...]
    domain_names: tuple[str, ...]
    clients: tuple[Client, ...]


@dataclass(frozen=True)
class Picture:
    """The PNG of one client's learned prompt."""

    name: str
    client: int
    path: Path


@dataclass(frozen=True)
class Requested:
    """A figure someone asked for: its kind, its words, and its picture."""

    kind: str
    title: str
    caption: str
    path: Path


@dataclass(frozen=True)
class Likeness:
    """How alike the clients' prompts are, the mean prompt removed or not, beside how far apart their labels are."""

    cosine: Matrix
    centred: Matrix
    spread: float
    label_distance: Matrix
    label_correlation: float | None
    domain_correlation: float | None


@dataclass(frozen=True)
class Places:
    """The clients' descriptors in the plane, and how they got there."""

    kind: str
    points: tuple[tuple[float, float], ...]
    explained: tuple[float, ...]


@dataclass(frozen=True)
class Figures:
    """What a method shows of its clients: the first ones, each with its domain and its most frequent class."""

    domain_names: tuple[str, ...]
    domains: tuple[int, ...]
    classes: tuple[int, ...]
    prompts: Likeness | None
    descriptors: Places | None
    attention: Matrix | None


@dataclass(frozen=True)
class RunFolder:
    """All that a report says about one run; of an unfinished run, what its rounds say so far."""

    path: Path
    recipe_text: str
    recipe: Json
    rounds: tuple[Round, ...]
    partition: Partition | None
    env: Json
    pictures: tuple[Picture, ...]
    requested: tuple[Requested, ...]
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
    traffic: Traffic
    seconds: float
    images_per_second: float | None

    @property
    def adapts(self) -> bool:
        """Whether `scores` are of models that the method adapted in the end, not of those that clients received."""
        return self.scores is not None and self.before is not None and self.scores != self.before

    @property
    def joined(self) -> int | None:
        """The first round of the clients that joined after the others."""
        late = _whole(self.recipe, "newcomers")
        first = (_whole(self.recipe, "clients") or self.clients) - late
        there = (one.number for one in self.rounds if any(client >= first for client in one.clients))
        return next(there, None) if late else None

    @property
    def founders(self) -> float | None:
        """The mean of `scores` over the clients that were there from the first round."""
        each = self.scores.per_client[: self.clients - _whole(self.recipe, "newcomers")] if self.scores else ()
        known = [value for value in each if value is not None]
        return sum(known) / len(known) if known else None

    @property
    def contacts(self) -> int:
        """How often any client took part: the divisor that turns the run's bytes into bytes per client and round."""
        return sum(len(one.clients) for one in self.rounds)

    @property
    def down_bytes(self) -> float:
        """Mean bytes sent to one client in one round."""
        return self.traffic.down_bytes / max(1, self.contacts)

    @property
    def up_bytes(self) -> float:
        """Mean bytes received from one client in one round."""
        return self.traffic.up_bytes / max(1, self.contacts)


def read_run(path: Path | str) -> RunFolder:
    """Read the run folder at `path`, finished or not."""
    folder = Path(path)
    _check_folder(folder)
    text = _read_text(folder / "recipe.toml")
    recipe = _parse_recipe(folder / "recipe.toml", text)
    rounds = _read_rounds(folder / "rounds.jsonl")
    summary = _read_json(folder / "summary.json")
    partition = _read_partition(folder / "partition.json")
    figures, fault = _read_figures(folder / "figures.json")
    facts = (
        _unfinished(recipe, rounds, partition)
        if summary is None
        else _finished(folder / "summary.json", summary, recipe)
    )
    return RunFolder(
        path=folder,
        recipe_text=text,
        recipe=recipe,
        rounds=rounds,
        partition=partition,
        env=_read_json(folder / "env.json") or {},
        pictures=tuple(_pictures(folder / "pictures")),
        requested=tuple(_requested(folder / "figures")),
        checkpoint=(folder / "checkpoint" / "state.json").is_file(),
        figures=figures,
        figures_fault=fault,
        finished=summary is not None,
        **facts,
    )


def most_of(amounts: Sequence[float], names: Sequence[str]) -> list[str]:
    """Return the names of the up to three largest amounts, each at least a tenth of all."""
    ordered = sorted(zip(amounts, names, strict=False), key=lambda pair: -pair[0])
    return [name for amount, name in ordered[:3] if amount and amount >= 0.1 * sum(amounts)]


def _check_folder(folder: Path) -> None:
    """Refuse a path that is no run folder, naming run folders just below it."""
    if not folder.is_dir():
        raise PromptFedError(f'There is no run folder at "{folder}"; give the folder a run has written.')
    missing = [name for name in ("recipe.toml", "rounds.jsonl") if not (folder / name).is_file()]
    if not missing:
        return
    if missing == ["rounds.jsonl"]:
        raise PromptFedError(f'Run folder "{folder}" has no finished round yet (no rounds.jsonl); let the run go on.')
    below = sorted(str(found.parent) for found in folder.glob("*/rounds.jsonl"))
    hint = f'did you mean "{below[0]}"?' if below else "give the folder a run has written."
    raise PromptFedError(f'"{folder}" is no run folder, it has no {missing[0]}; {hint}')


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptFedError(f'"{path}" cannot be read as text: {error}.') from error


def _read_json(path: Path) -> Json | None:
    """Return the JSON object in a file, or None where there is no such file."""
    if not path.is_file():
        return None
    try:
        found = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise PromptFedError(f'"{path}" is not valid JSON ({error}); was it edited by hand?') from error
    if not isinstance(found, dict):
        raise PromptFedError(f'"{path}" must hold one JSON object, it holds {type(found).__name__}.')
    return found


def _parse_recipe(path: Path, text: str) -> Json:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PromptFedError(f'"{path}" is not valid TOML: {error}.') from error


def _read_rounds(path: Path) -> tuple[Round, ...]:
    """Read every finished round; a torn last line is a round that was being written, so it does not count."""
    lines = _read_text(path).splitlines()
    rounds: dict[int, Round] = {}
    for index, line in enumerate(lines):
        try:
            one = _round(json.loads(line))
        except json.JSONDecodeError as error:
            if index == len(lines) - 1:
                break
            raise PromptFedError(f'"{path}" is damaged: line {index + 1} is not valid JSON ({error}).') from error
        except (KeyError, TypeError, ValueError) as error:
            raise PromptFedError(f'"{path}", line {index + 1}, is not a round: {_why(error)}.') from error
        rounds[one.number] = one
    if not rounds:
        raise PromptFedError(f'Run folder "{path.parent}" has no finished round yet; let the run go on.')
    return tuple(rounds[number] for number in sorted(rounds))


def _read_partition(path: Path) -> Partition | None:
    raw = _read_json(path)
    if raw is None:
        return None
    try:
        clients = tuple(
            Client(_integers(one["counts"]), _integers(one.get("domains", ())), len(one["test"]))
            for one in raw["clients"]
        )
        return Partition(str(raw["hash"]), _texts(raw["classes"]), _texts(raw.get("domain_names", ())), clients)
    except (KeyError, TypeError, ValueError) as error:
        raise PromptFedError(f'"{path}" is not a partition: {_why(error)}.') from error


def _read_figures(path: Path) -> tuple[Figures | None, str]:
    """Read what the method shows, or say why not: a report is worth reading without it."""
    try:
        raw = _read_json(path)
        return (None if raw is None else _figures(raw)), ""
    except PromptFedError as error:
        return None, str(error)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        return None, f'"{path}" holds no figures: {_why(error)}.'


def _figures(raw: Json) -> Figures:
    domains, classes = _integers(raw["domains"]), _integers(raw["classes"])
    count = len(domains)
    if len(classes) != count:
        raise ValueError(f"it has {count} domains of clients, but {len(classes)} classes")
    return Figures(
        domain_names=_texts(raw["domain_names"]),
        domains=domains,
        classes=classes,
        prompts=_likeness(raw["prompts"], count) if "prompts" in raw else None,
        descriptors=_places(raw["descriptors"], count) if "descriptors" in raw else None,
        attention=_matrix(raw["attention"], count, None, "attention") if "attention" in raw else None,
    )


def _likeness(raw: Json, count: int) -> Likeness:
    if count < 2:
        raise ValueError("one client's prompt has nothing to be compared with")
    alike, centred, apart = (_matrix(raw[key], count, count, key) for key in ("cosine", "centred", "label_distance"))
    found = raw["rank_correlation"]
    return Likeness(alike, centred, float(raw["spread"]), apart, _number(found["label"]), _number(found["domain"]))


def _places(raw: Json, count: int) -> Places:
    points = tuple((x, y) for x, y in _matrix(raw["points"], count, 2, "points"))
    return Places(str(raw["map"]), points, tuple(float(value) for value in raw.get("explained", ())))


def _matrix(raw: Any, rows: int, columns: int | None, name: str) -> Matrix:
    """Return finite numbers of that shape; with no `columns`, rows of any one length but none."""
    found = tuple(tuple(float(value) for value in row) for row in raw)
    wanted = columns if columns is not None else max((len(row) for row in found), default=0)
    if len(found) != rows or not wanted or any(len(row) != wanted for row in found):
        raise ValueError(f"{name} does not fit {rows} clients")
    if not all(math.isfinite(value) for row in found for value in row):
        raise ValueError(f"{name} has a number that is not finite")
    return found


def _pictures(folder: Path) -> Iterator[Picture]:
    """Yield the pictures by name, then by client."""
    found = [(match, path) for path in folder.glob("*.png") if (match := _PICTURE.fullmatch(path.name))]
    ordered = sorted(found, key=lambda pair: (pair[0]["name"], int(pair[0]["client"])))
    yield from (Picture(match["name"], int(match["client"]), path) for match, path in ordered)


def _requested(folder: Path) -> Iterator[Requested]:
    """Yield the figures of `promptfed figure` by kind; one whose picture is gone does not count."""
    for path in sorted(folder.glob("*.json")):
        picture, raw = path.with_suffix(".png"), _read_json(path)
        if raw is not None and picture.is_file():
            try:
                yield Requested(str(raw["kind"]), str(raw["title"]), str(raw["caption"]), picture)
            except KeyError as error:
                raise PromptFedError(f'"{path}" does not describe a figure: {_why(error)}.') from error


def _finished(path: Path, raw: Json, recipe: Json) -> dict[str, Any]:
    """The fields of a finished run, from its summary."""
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
            "scores": _scores(accuracy),
            "before": _scores(accuracy.get("before")),
            "after": _scores(accuracy.get("after")),
            "newcomers": _number(accuracy.get("newcomers")),
            "deployed": _numbers(accuracy["deployed"]) if accuracy.get("deployed") else None,
            "best_round": None if accuracy["best_round"] is None else int(accuracy["best_round"]),
            "best_mean": _number(accuracy["best_mean"]),
            "traffic": _traffic(raw["traffic"]),
            "seconds": float(raw["seconds"]),
            "images_per_second": _number(raw.get("images_per_second")),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise PromptFedError(f'"{path}" is not a summary: {_why(error)}.') from error


def _unfinished(recipe: Json, rounds: tuple[Round, ...], partition: Partition | None) -> dict[str, Any]:
    """The same fields while there is no summary: names from the recipe, numbers from the rounds so far."""
    scored = [(one.received, one) for one in rounds if one.received is not None]
    last = scored[-1][0] if scored else None
    # Once newcomers have joined, a mean over the others alone is no longer one of the same clients.
    same = [pair for pair in scored if last and len(pair[0].per_client) == len(last.per_client)]
    best = max(same, key=lambda pair: pair[0].mean, default=None)
    planned = recipe.get("rounds")
    joining = _whole(recipe, "join_rounds") if _whole(recipe, "newcomers") else 0
    known = len(partition.clients) if partition else len(last.per_client) if last else 0
    totals = [(one.traffic.down_bytes, one.traffic.up_bytes) for one in rounds]
    return {
        "method": _name(recipe, "method"),
        "dataset": _name(recipe, "data"),
        "partition_name": _name(recipe, "partition"),
        "backbone": _name(recipe, "backbone"),
        "seed": int(recipe.get("seed", 0)),
        "clients": known,
        "planned_rounds": planned + joining if isinstance(planned, int) else None,
        "scores": last,
        "before": last,
        "after": None,
        "newcomers": None,
        "deployed": next((one.deployed for one in reversed(rounds) if one.deployed), None),
        "best_round": best[1].number if best else None,
        "best_mean": best[0].mean if best else None,
        "traffic": Traffic(
            rounds[-1].traffic.down_floats,
            rounds[-1].traffic.up_floats,
            *(sum(each) for each in zip(*totals, strict=True)),
        ),
        "seconds": sum(one.seconds for one in rounds),
        "images_per_second": None,
    }


def _round(raw: Json) -> Round:
    return Round(
        number=int(raw["round"]),
        clients=_integers(raw["clients"]),
        loss=_number(raw.get("loss")),
        received=_scores(raw.get("received")),
        trained=_scores(raw.get("trained")),
        deployed=_numbers(raw["deployed"]) if raw.get("deployed") else None,
        measures=_numbers(raw.get("measures") or {}),
        traffic=_traffic(raw["traffic"]),
        seconds=float(raw["seconds"]),
    )


def _scores(raw: Json | None) -> Scores | None:
    """Return the scores, or None where nothing was measured (no client with test images)."""
    if raw is None or _number(raw["mean"]) is None:
        return None
    per_client = tuple(_number(value) for value in raw["per_client"])
    return Scores(float(raw["mean"]), float(raw["weighted"]), float(raw["worst"]), float(raw["p10"]), per_client)


def _traffic(raw: Json) -> Traffic:
    return Traffic(*(int(raw[key]) for key in ("down_floats", "up_floats", "down_bytes", "up_bytes")))


def _number(value: Any) -> float | None:
    """Return a finite float, or None: a diverged loss is written as NaN and cannot be drawn."""
    return float(value) if value is not None and math.isfinite(float(value)) else None


def _numbers(raw: Json) -> dict[str, float]:
    return {str(key): float(value) for key, value in raw.items() if _number(value) is not None}


def _integers(raw: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in raw)


def _texts(raw: Any) -> tuple[str, ...]:
    return tuple(str(value) for value in raw)


def _whole(recipe: Json, key: str) -> int:
    """Return the whole number a recipe gives, or 0."""
    found = recipe.get(key)
    return found if isinstance(found, int) else 0


def _name(recipe: Json, table: str) -> str:
    """Return the `name` a recipe's table gives, or a question mark."""
    found = recipe.get(table)
    return str(found.get("name", "?")) if isinstance(found, dict) else "?"


def _why(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)
