"""What was measured on a finished run: the pictures its words generate, and what a curious server learns.

It reads quality.json and audit.json, and returns sentences and tables for the report and the terminal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from promptfed.core.files import unsealed
from promptfed.results.folder import names
from promptfed.results.folder.parts import Json
from promptfed.results.folder.reader import RunFolder, most_of
from promptfed.results.folder.values import Holdings
from promptfed.results.report.figure import SMALL, Figure
from promptfed.results.report.groups import RunGroup
from promptfed.results.report.plots import Curve, line_chart
from promptfed.results.report.table import Cell, Column, Table

MOST_ROWS = 16

Show = Callable[[RunFolder, Json, str, int], Iterable[Figure]]


def draw_quality(groups: Sequence[RunGroup], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Show the measures of every group's words, and the FID of the global word over the rounds."""
    return _draw(names.QUALITY, _show_quality, groups, colours, where)


def draw_audit(groups: Sequence[RunGroup], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Show what an attack learned from what every group's clients send."""
    return _draw(names.AUDIT, _show_audit, groups, colours, where)


def _draw(
    file: str, show: Show, groups: Sequence[RunGroup], colours: Mapping[str, int], where: str
) -> Iterator[Figure]:
    """Show the file of the first run of each group that has it; a damaged file becomes a sentence."""
    for group in groups:
        run = next((run for run in group.runs if (run.path / file).is_file()), None)
        if run is None:
            continue
        name = f"{group.label}. " if len(groups) > 1 else ""
        seed = f"Seed {run.seed}. " if len(group.runs) > 1 else ""
        try:
            raw = unsealed((run.path / file).read_text(encoding="utf-8"))
            yield from list(show(run, raw, where + name + seed, colours.get(group.label, 0)))
        except (OSError, ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
            # the report is useful without it
            yield _said("What was measured cannot be shown.", f"{where}{name}{_fault(run.path / file, error)}")


def _fault(path: Path, error: Exception) -> str:
    return f'"{path}" is damaged: it has no {error}.' if isinstance(error, KeyError) else f'"{path}" is damaged.'


def _said(words: str, caption: str) -> Figure:
    return Figure(Markup('<p class="note">{}</p>').format(words), Markup(), (), caption)


def _first(table: Table, noun: str) -> tuple[Table, str]:
    """Return a table's first rows, and a sentence if there are more."""
    if len(table.rows) <= MOST_ROWS:
        return table, ""
    return Table(table.columns, table.rows[:MOST_ROWS]), f" The first {MOST_ROWS} of {len(table.rows)} {noun}."


def _notes(cautions: Iterable[str | None]) -> str:
    return "".join(f" Note: {caution}." for caution in dict.fromkeys(cautions) if caution)


# -- pictures ---------------------------------------------------------------------------------------------------------

_WORDS = (
    Column("method", "", ("method",), numeric=False),
    Column(
        "word",
        "global S*, sent S^c (what the server sees), client S^c*, trained: right after its own training",
        ("word",),
        numeric=False,
    ),
    Column("client", "", ("client",)),
    Column("FID", "lower is better", ("fid",)),
    Column("KID", "× 1000, lower is better; ± its standard error", ("kid", "kid_error")),
    Column("image", "mean cosine with the real images", ("image",)),
    Column("text", 'mean cosine with "a photo of a {class}."', ("text",)),
    Column("real / drawn", "how many images were compared", ("real", "drawn")),
    Column("note", "", ("note",), numeric=False),
)


def _kid(value: float | None, error: float | None) -> Cell:
    """Return KID × 1000 with its standard error, which files of older versions do not have."""
    shown = "–" if value is None else f"{1000 * value:.2f}" + ("" if error is None else f" ± {1000 * error:.2f}")
    return Cell(shown, tuple("" if one is None else f"{1000 * one}" for one in (value, error)))


def words(found: Sequence[Json]) -> Table:
    """Return a table of the words of several runs, with a warning for each word that has too few images."""
    rows = []
    for one in found:
        for line in one["words"]:
            texts = [str(one["method"]), str(line["word"]), str(line.get("client", "–"))]
            numbers = [
                _number(line["fid"], ".2f"),
                _kid(line["kid"], line.get("kid_error")),
                _number(line["image"], ".3f"),
                _number(line["text"], ".3f"),
            ]
            counts = Cell(f"{line['real']} / {line['drawn']}", (str(line["real"]), str(line["drawn"])))
            plain = [_text(text) for text in texts] + numbers
            rows.append((*plain, counts, _text(str(line["caution"]))))
    return Table(_WORDS, tuple(rows))


def _show_quality(run: RunFolder, raw: Json, where: str, colour: int) -> Iterator[Figure]:
    """Show the words of one run, with warnings under the table, and the FID over the rounds if it was measured."""
    del run
    every = words([raw])
    shown, rest = _first(Table(every.columns[1:-1], tuple(row[1:-1] for row in every.rows)), "words")
    caption = (
        f"{where}Pictures of “{raw['drawing']['prompt']}” after round {raw['round']}, compared with real images in "
        f"the features {raw['features']}; all words start from the same latents. {shown.legend}{rest}"
    )
    yield Figure(Markup(), Markup(), (), caption + _notes(line["caution"] for line in raw["words"]), shown)
    points = tuple((float(line["round"]), float(line["fid"])) for line in raw["rounds"])
    if points:
        curve = line_chart([Curve("global", points, colour)], width=SMALL, title="FID over the rounds", y_label="FID")
        caption = f"{where}FID of the global word over the rounds, from a repeated training; lower is better."
        yield Figure(Markup(curve), Markup(), (), caption + _notes(line["caution"] for line in raw["rounds"]))


# -- attacks ----------------------------------------------------------------------------------------------------------

_CLIENT = Column("client", "", ("client",))
_PICTURES = (
    _CLIENT,
    Column("own", "cosine of a picture with the nearest of the client's own images", ("nearest",)),
    Column("others", "the same with other clients' images", ("nearest_others",)),
    Column("FID", "lower is nearer to the client's images", ("fid",)),
    Column("images", "how many the client holds", ("images",)),
)
_CLASSES = (
    _CLIENT,
    Column("cosine", "of the inferred classes with those the client holds", ("cosine",)),
    Column("blind", "the same for a guess of equal classes", ("blind",)),
    Column("inferred", "the classes it seems to hold most of", ("inferred",), numeric=False),
    Column("holds", "those it does", ("holds",), numeric=False),
)
# a real server must guess what clients keep private; the audit takes the better of its guesses
_BOUND = (
    " For anything a client keeps private, the better of two guesses is used, which a server could not choose: the "
    "numbers are an upper bound."
)


def sentences(found: Json) -> list[str]:
    """Return what an attack found, as sentences."""
    if found["kind"] == "nothing":
        return [f"Nothing to attack: {found['why']}."]
    mean, count = found["mean"], len(found["clients"])
    matched, chance = 100 * found["reidentified"], 100 / count
    guess = f"{matched:.0f} % of uploads are matched to their client, against {chance:.0f} % by chance."
    if found["kind"] == "pictures":
        few = next((line["caution"] for line in found["per_client"] if line["caution"]), "")
        others = [line["nearest_others"] for line in found["per_client"] if line["nearest_others"] is not None]
        beside = f", with another client's {sum(others) / len(others):.3f}" if others else ""
        return [
            f"Pictures generated from what {count} clients send: cosine with the nearest of the client's own images "
            f"{mean['nearest']:.3f}{beside}; FID {mean['fid']:.2f} ({found['features']}).",
            guess,
            *([f"Note: {few}."] if few else []),
        ]
    return [
        f"Classes inferred from what {count} clients send: cosine {mean['cosine']:.3f} with what they hold; "
        f"a guess of equal classes has {mean['blind']:.3f}.",
        guess,
    ]


def _show_audit(run: RunFolder, raw: Json, where: str, colour: int) -> Iterator[Figure]:
    """Show what an attack found about each client."""
    del colour
    found = sentences(raw)
    how = f"{where}An attack on what clients would send after round {raw['round']}"
    if raw["kind"] == "nothing":
        yield _said(found[0], f"{how}.")
        return
    pictures = raw["kind"] == "pictures"
    table, rest = _first(_pictures(raw) if pictures else _classes(raw, run.partition), "clients")
    bound = "" if pictures else _BOUND
    caption = f"{how}, by a server that follows the protocol. {' '.join(found[:2])}{bound} {table.legend}{rest}"
    yield Figure(Markup(), Markup(), (), caption + _notes(line.get("caution") for line in raw["per_client"]), table)


def _pictures(raw: Json) -> Table:
    rows = [
        (
            _text(str(client)),
            _number(line["nearest"], ".3f"),
            _number(line["nearest_others"], ".3f"),
            _number(line["fid"], ".2f"),
            _text(str(line["images"])),
        )
        for client, line in zip(raw["clients"], raw["per_client"], strict=True)
    ]
    return Table(_PICTURES, tuple(rows))


def _classes(raw: Json, partition: Holdings | None) -> Table:
    rows = []
    for client, line in zip(raw["clients"], raw["per_client"], strict=True):
        names = partition.classes if partition else tuple(map(str, range(len(line["inferred"]))))
        held = most_of(partition.clients[client].counts, names) if partition else []
        classes = [_text(", ".join(some) or "–") for some in (most_of(line["inferred"], names), held)]
        rows.append((_text(str(client)), _number(line["cosine"], ".3f"), _number(line["blind"], ".3f"), *classes))
    return Table(_CLASSES, tuple(rows))


def _text(words: str) -> Cell:
    return Cell(words, (words,))


def _number(value: Any, form: str) -> Cell:
    return Cell("–", ("",)) if value is None else Cell(format(value, form), (repr(value),))
