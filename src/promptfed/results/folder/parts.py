"""Read the files of a run folder one by one; nothing else knows their keys."""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from promptfed.core.arrays import read_arrays
from promptfed.core.errors import PromptFedError
from promptfed.core.files import AlteredError, unsealed, unsealed_toml
from promptfed.results.folder import names
from promptfed.results.folder.each import Each, unpacked
from promptfed.results.folder.values import (
    Client,
    ClientColumns,
    ClientMatrix,
    DescriptorMap,
    DrawnFigure,
    Figures,
    Holdings,
    Picture,
    PromptSimilarity,
    Round,
    Scores,
    Traffic,
)

Json = Mapping[str, Any]


def read_text(path: Path) -> str:
    """Return a file's text, or refuse a file that cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptFedError(f'"{path}" cannot be read as text: {error}.') from error


def read_json(path: Path) -> Json | None:
    """Return the JSON object in a file, or None if the file does not exist."""
    if not path.is_file():
        return None
    try:
        found = unsealed(read_text(path))
    except AlteredError as error:
        raise PromptFedError(f'"{path}" cannot be used: {error}.') from error
    except ValueError as error:
        raise PromptFedError(f'"{path}" is not valid JSON ({error}); was it edited by hand?') from error
    if not isinstance(found, dict):
        raise PromptFedError(f'"{path}" must hold one JSON object, it holds {type(found).__name__}.')
    return found


def parse_recipe(path: Path, text: str) -> Json:
    """Return the recipe as it was written, with every default."""
    try:
        return tomllib.loads(unsealed_toml(text))
    except AlteredError as error:
        raise PromptFedError(f'"{path}" cannot be used: {error}.') from error
    except (ValueError, RecursionError) as error:
        raise PromptFedError(f'"{path}" is not valid TOML: {error}.') from error


def read_rounds(path: Path, committed: int = 0) -> tuple[Round, ...]:
    """Read every finished round, of which there are at least `committed`.

    An incomplete last line is a round being written and does not count.
    """
    lines = read_text(path).split("\n")
    rounds: dict[int, Round] = {}
    for index, line in enumerate(lines):
        try:
            if not line and index == len(lines) - 1:
                break
            one = parse_round(path, index + 1, line)
        except PromptFedError as error:
            if index == len(lines) - 1 and isinstance(error.__cause__, JSONDecodeError):
                break
            raise
        rounds[one.number] = one
    if not rounds:
        raise PromptFedError(f'Run folder "{path.parent}" has no finished round yet; wait for the first one.')
    if max(rounds) < committed:
        raise PromptFedError(f'"{path}" is damaged: round {committed} is finished, but its line is missing or torn.')
    return tuple(rounds[number] for number in sorted(rounds))


def parse_round(path: Path, number: int, line: str) -> Round:
    """Read the `number`-th line of the rounds in the file at `path`."""
    try:
        return _round(unpacked(unsealed(line), path.parent))
    except JSONDecodeError as error:
        raise PromptFedError(f'"{path}" is damaged: line {number} is not valid JSON ({error}).') from error
    except AlteredError as error:
        raise PromptFedError(f'"{path}" is damaged in line {number}: {error}.') from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PromptFedError(f'"{path}", line {number}, is not a round: {why(error)}.') from error


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of the finished run in `folder`, or refuse one without its recipe and rounds."""
    path = folder / names.SUMMARY
    try:
        summary: dict[str, Any] = unpacked(unsealed(path.read_text(encoding="utf-8")), folder)
        if not {"recipe_hash", "rounds"} <= summary.keys() or not isinstance(summary["accuracy"]["round"], int):
            raise ValueError("it lacks its recipe or its rounds")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PromptFedError(f"{path} is damaged; remove it and resume the run, which writes it again.") from error
    return summary


def read_partition(path: Path) -> Holdings | None:
    """Return which images the clients hold, or None if the file does not exist."""
    raw = read_json(path)
    if raw is None:
        return None
    try:
        clients = _clients_of(raw["clients"], path.parent)
        return Holdings(str(raw["hash"]), _texts(raw["classes"]), _texts(raw.get("domain_names", ())), clients)
    except (KeyError, TypeError, ValueError) as error:
        raise PromptFedError(f'"{path}" is not a partition: {why(error)}.') from error


def _clients_of(raw: Any, folder: Path) -> Sequence[Client]:
    """Return the clients that a partition file lists, or that lie in the arrays it refers to."""
    if isinstance(raw, dict):
        columns = read_arrays(folder, raw)
        return ClientColumns(columns["counts"], columns["domains"], columns["test_sizes"])
    return tuple(Client(_integers(one["counts"]), _integers(one.get("domains", ())), len(one["test"])) for one in raw)


def read_figures(path: Path) -> tuple[Figures | None, str]:
    """Read what the method shows, or return why it cannot be read: the report is useful without it."""
    try:
        raw = read_json(path)
        return (None if raw is None else _figures(raw)), ""
    except PromptFedError as error:
        return None, str(error)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        return None, f'"{path}" does not describe figures: {why(error)}.'


def _figures(raw: Json) -> Figures:
    domains, classes = _integers(raw["domains"]), _integers(raw["classes"])
    count = len(domains)
    if len(classes) != count:
        raise ValueError(f"it has domains for {count} clients, but classes for {len(classes)}")
    return Figures(
        domain_names=_texts(raw["domain_names"]),
        domains=domains,
        classes=classes,
        prompts=_likeness(raw["prompts"], count) if "prompts" in raw else None,
        descriptors=_places(raw["descriptors"], count) if "descriptors" in raw else None,
        attention=_matrix(raw["attention"], count, None, "attention") if "attention" in raw else None,
    )


def _likeness(raw: Json, count: int) -> PromptSimilarity:
    if count < 2:
        raise ValueError("the prompt of a single client cannot be compared")
    alike, centred, apart = (_matrix(raw[key], count, count, key) for key in ("cosine", "centred", "label_distance"))
    found = raw["rank_correlation"]
    return PromptSimilarity(
        alike, centred, float(raw["spread"]), apart, number(found["label"]), number(found["domain"])
    )


def _places(raw: Json, count: int) -> DescriptorMap:
    points = tuple((x, y) for x, y in _matrix(raw["points"], count, 2, "points"))
    return DescriptorMap(str(raw["map"]), points, tuple(float(value) for value in raw.get("explained", ())))


def _matrix(raw: Any, rows: int, columns: int | None, name: str) -> ClientMatrix:
    """Return finite numbers of that shape; without `columns`, rows may have any common length except zero."""
    found = tuple(tuple(float(value) for value in row) for row in raw)
    wanted = columns if columns is not None else max((len(row) for row in found), default=0)
    if len(found) != rows or not wanted or any(len(row) != wanted for row in found):
        raise ValueError(f"{name} does not fit {rows} clients")
    if not all(math.isfinite(value) for row in found for value in row):
        raise ValueError(f"{name} has a number that is not finite")
    return found


def find_pictures(folder: Path) -> Iterator[Picture]:
    """Yield the pictures by name, then by client."""
    found = [(match, path) for path in folder.glob("*.png") if (match := names.PICTURE_FILE.fullmatch(path.name))]
    ordered = sorted(found, key=lambda pair: (pair[0]["name"], int(pair[0]["client"])))
    yield from (Picture(match["name"], int(match["client"]), path) for match, path in ordered)


def find_drawn_figures(folder: Path) -> Iterator[DrawnFigure]:
    """Yield the figures of `promptfed figure` by kind; one whose picture is missing is skipped."""
    for path in sorted(folder.glob("*.json")):
        picture, raw = path.with_suffix(".png"), read_json(path)
        if raw is not None and picture.is_file():
            try:
                yield DrawnFigure(str(raw["kind"]), str(raw["title"]), str(raw["caption"]), picture)
            except KeyError as error:
                raise PromptFedError(f'"{path}" does not describe a figure: {why(error)}.') from error


def _round(raw: Json) -> Round:
    return Round(
        number=int(raw["round"]),
        clients=_integers(raw["clients"]),
        loss=number(raw.get("loss")),
        received=scores(raw.get("received")),
        trained=scores(raw.get("trained")),
        deployed=numbers(raw["deployed"]) if raw.get("deployed") else None,
        measures=numbers(raw.get("measures") or {}),
        traffic=traffic(raw["traffic"]),
        seconds=float(raw["seconds"]),
        beyond=beyond(raw),
        clock=number(raw.get("clock")),
    )


def beyond(raw: Json) -> dict[str, float]:
    """Return the means over the clients on other images than their own, by set, and the means of these."""
    means = {name: scored["mean"] for name, scored in (raw.get("sets") or {}).items()}
    return numbers(means | {name: raw.get(name) for name in ("hm", "cm")})


def scores(raw: Json | None) -> Scores | None:
    """Return the scores, or None where nothing was measured (no client with test images)."""
    if raw is None or number(raw["mean"]) is None:
        return None
    each = raw["per_client"]
    per_client = each if isinstance(each, Each) else tuple(number(value) for value in each)
    return Scores(float(raw["mean"]), float(raw["weighted"]), float(raw["worst"]), float(raw["p10"]), per_client)


def traffic(raw: Json) -> Traffic:
    """Return what was sent."""
    return Traffic(*(int(raw[key]) for key in ("down_floats", "up_floats", "down_bytes", "up_bytes")))


def number(value: Any) -> float | None:
    """Return a finite float, or None: the loss of a diverged run is NaN and cannot be drawn."""
    return float(value) if value is not None and math.isfinite(float(value)) else None


def numbers(raw: Json) -> dict[str, float]:
    """Return the finite numbers by name."""
    return {str(key): float(value) for key, value in raw.items() if number(value) is not None}


def _integers(raw: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in raw)


def _texts(raw: Any) -> tuple[str, ...]:
    return tuple(str(value) for value in raw)


def why(error: Exception) -> str:
    """Say what is wrong with a file, as the end of a sentence."""
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)
