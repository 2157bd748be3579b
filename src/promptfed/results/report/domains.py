"""How a method's keys fit the domains: confusion of domains, accuracy under each key, and example images."""

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup

from promptfed.core.files import unsealed
from promptfed.results.folder import names
from promptfed.results.report.figure import SQUARE, WIDE, Figure, Key
from promptfed.results.report.groups import RunGroup
from promptfed.results.report.svg import Frame, cut, document, heading, n, series_class

LETTERS = 12
CountRows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Shown:
    """One image of the sheet: the key it got, its class, and whether the answer was right."""

    key: int
    label: str
    right: bool


@dataclass(frozen=True)
class Domains:
    """Test images by domain: how many there are, get each key, are right under it, and under the key they get."""

    domains: tuple[str, ...]
    keys: tuple[str, ...]
    count: tuple[int, ...]
    chosen: CountRows
    right: CountRows
    correct: tuple[int, ...]
    sheet: Path
    shown: tuple[tuple[Shown, ...], ...]

    def share(self, values: CountRows, domain: int, key: int) -> float:
        """Return a number of a domain's images as a percentage of all of them."""
        return 100 * values[domain][key] / self.count[domain]


def read_domains(folder: Path) -> Domains | None:
    """Read a run folder's domains.json; None if it is missing or cannot be drawn."""
    try:
        return _domains(unsealed((folder / names.DOMAINS).read_text(encoding="utf-8")), folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # the report is useful without it


def _domains(raw: Mapping[str, Any], folder: Path) -> Domains:
    rows, keys = [str(name) for name in raw["domains"]], [str(name) for name in raw["keys"]]
    sheet = raw["sheet"]
    found = Domains(
        tuple(rows),
        tuple(keys),
        tuple(int(value) for value in raw["count"]),
        _numbers(raw["chosen"], len(rows), len(keys)),
        _numbers(raw["right"], len(rows), len(keys)),
        tuple(int(value) for value in raw["correct"]),
        folder / Path(str(sheet["file"])).name,
        tuple(
            tuple(Shown(int(key), str(label), bool(right)) for key, label, right in zip(*line, strict=True))
            for line in zip(sheet["key"], sheet["class"], sheet["right"], strict=True)
        ),
    )
    whole = len(found.count) == len(found.correct) == len(found.shown) == len(rows) > 0
    if not (whole and min(found.count) > 0):
        raise ValueError("its parts do not fit together")
    return found


def _numbers(raw: Any, rows: int, columns: int) -> CountRows:
    found = tuple(tuple(int(value) for value in row) for row in raw)
    if len(found) != rows or not columns or any(len(row) != columns for row in found):
        raise ValueError("its parts do not fit together")
    return found


def draw(groups: Sequence[RunGroup], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Draw the three figures of each group's first run that has keys."""
    del colours  # here colours are for keys, not for methods
    for group in groups:
        found = read_domains(group.runs[0].path)
        if found is not None:
            name = f"{group.label}. " if len(groups) > 1 else ""
            yield _confusion(found, where + name)
            yield _accuracies(found, where + name)
            if found.sheet.is_file():
                yield _contact_sheet(found, where + name)


def _confusion(found: Domains, where: str) -> Figure:
    """Draw which domain's key the images of each domain get."""

    def describe(domain: int, key: int) -> tuple[float, str, str]:
        value, many = found.share(found.chosen, domain, key), found.chosen[domain][key]
        tip = f"{found.domains[domain]}: {many:,} of {found.count[domain]:,} images get the key of {found.keys[key]}"
        return value / 100, f"{value:.0f}", tip

    own = [d for d, name in enumerate(found.domains) if name in found.keys]
    right = sum(found.chosen[d][found.keys.index(found.domains[d])] for d in own)
    total = sum(found.count[d] for d in own)
    caption = (
        f"{where}Which key the test images of a domain get, in percent of them: the domain classifier's confusion."
    )
    if total:
        caption += f" It knows the domain of {100 * right / total:.1f} % of the images."
    if len(own) < len(found.domains):
        caption += " A domain without clients has no key of its own."
    return Figure(Markup(_grid(found, "Domain classifier", describe)), Markup(), (), caption)


def _accuracies(found: Domains, where: str) -> Figure:
    """Draw the accuracy of the one model on every domain under every key; each domain's row has its own scale."""

    def describe(domain: int, key: int) -> tuple[float, str, str]:
        row = [found.share(found.right, domain, other) for other in range(len(found.keys))]
        low, high = min(row), max(row)
        tip = f"{found.domains[domain]} under the key of {found.keys[key]}: {row[key]:.2f} % right"
        return (row[key] - low) / (high - low) if high > low else 0.0, f"{row[key]:.1f}", tip

    own = [
        row[found.keys.index(name)] == max(row)
        for row, name in zip(found.right, found.domains, strict=True)
        if name in found.keys
    ]
    each = ", ".join(
        f"{name} {100 * right / count:.1f}"
        for name, right, count in zip(found.domains, found.correct, found.count, strict=True)
    )
    caption = (
        f"{where}Accuracy of the one model on a domain's test images under each key alone, in percent; the darkest "
        f"cell of a row is that domain's best key, its own in {sum(own)} of {len(own)} domains that have one. "
        f"With the keys that each image chooses, mixed by fast inference: {each}."
    )
    return Figure(Markup(_grid(found, "Accuracy under each key", describe)), Markup(), (), caption)


def _grid(found: Domains, title: str, describe: Callable[[int, int], tuple[float, str, str]]) -> str:
    """Draw domains down and keys across, each cell with its shade, number and tooltip."""
    left = 8 + 7 * max(len(cut(name, LETTERS)) for name in found.domains)
    slot = min((SQUARE - left - 4) / len(found.keys), 64.0)
    pitch = max(22.0, min(slot, 40.0))
    frame = Frame(SQUARE, 54 + pitch * len(found.domains), left=left, right=4, top=24, bottom=30)
    parts = [heading(title)]
    room = max(2, int(slot / 7))
    for key, name in enumerate(found.keys):
        place = f'x="{n(left + (key + 0.5) * slot)}" y="{n(frame.height - frame.bottom + 14)}"'
        label = f"{escape(cut(name, room))}<title>{escape(name)}</title>"
        parts.append(f'<text class="tick mid" {place}>{label}</text>')
    parts.append(
        f'<text class="axis mid" x="{n(left + slot * len(found.keys) / 2)}" y="{n(frame.height - 2)}">key of</text>'
    )
    for domain, name in enumerate(found.domains):
        top = frame.top + domain * pitch
        label = f"{escape(cut(name, LETTERS))}<title>{escape(name)}</title>"
        parts.append(f'<text class="tick end" x="{n(left - 6)}" y="{n(top + pitch / 2)}" dy=".34em">{label}</text>')
        for key in range(len(found.keys)):
            shade, number, tip = describe(domain, key)
            x, wide, high = left + key * slot, slot - 1, pitch - 1
            box = f'x="{x:.2f}" y="{top:.2f}" width="{wide:.2f}" height="{high:.2f}"'
            middle = f'x="{n(x + wide / 2)}" y="{n(top + high / 2)}" dy=".34em"'
            written = f'<text class="mid in-cell" {middle}>{number}</text>' if slot >= 26 else ""
            cell = f'<rect {box} fill-opacity="{shade:.2f}"/>{written}<title>{escape(tip)}</title>'
            parts.append(f'<g class="cell more">{cell}</g>')
    return document(frame, title, f"{len(found.domains)} domains, {len(found.keys)} keys", parts)


def _contact_sheet(found: Domains, where: str) -> Figure:
    """Draw some test images of every domain, framed in the colour of the key each one gets."""
    keys = [Key("group", series, f"key of {name}") for series, name in enumerate(found.keys)]
    right = sum(image.right for line in found.shown for image in line)
    caption = (
        f"{where}Some test images of every domain, each framed in the colour of the key it gets; a wrong answer has a "
        f"cross. {right} of these {sum(map(len, found.shown))} are right."
    )
    return Figure(Markup(_sheet(found)), Markup(), tuple(keys), caption)


def _sheet(found: Domains) -> str:
    left = 8 + 7 * max(len(cut(name, LETTERS)) for name in found.domains)
    most = max(map(len, found.shown))
    slot = math.floor((WIDE / 2 - left) / most)
    frame = Frame(left + slot * most + 4, 26 + slot * len(found.domains), left=left, right=4, top=22, bottom=4)
    source = f"data:image/jpeg;base64,{b64encode(found.sheet.read_bytes()).decode('ascii')}"
    place = f'x="{left}" y="{n(frame.top)}" width="{slot * most}" height="{slot * len(found.domains)}"'
    parts = [heading("Keys chosen"), f'<image href="{source}" {place} preserveAspectRatio="none"/>']
    for domain, (name, line) in enumerate(zip(found.domains, found.shown, strict=True)):
        top = frame.top + domain * slot
        parts.append(
            f'<text class="tick end" x="{n(left - 6)}" y="{n(top + slot / 2)}" dy=".34em">'
            f"{escape(cut(name, LETTERS))}</text>"
        )
        for number, image in enumerate(line):
            parts.append(_framed(found, image, (left + number * slot, top), slot))
    return document(frame, "Keys chosen", f"{most} test images of each of {len(found.domains)} domains", parts)


def _framed(found: Domains, image: Shown, corner: tuple[float, float], slot: float) -> str:
    """Draw the frame of one image, and a cross over a wrong answer."""
    x, y = corner
    key = found.keys[image.key] if 0 <= image.key < len(found.keys) else str(image.key)
    tip = f"{image.label}: key of {key}, answered {'right' if image.right else 'wrong'}"
    box = f'x="{n(x + 2)}" y="{n(y + 2)}" width="{n(slot - 4)}" height="{n(slot - 4)}"'
    cross = f"M{n(x + slot - 12)} {n(y + 5)}l7 7m0 -7l-7 7"
    wrong = "" if image.right else f'<path class="line thin {series_class(image.key)}" d="{cross}"/>'
    style = 'fill="transparent" stroke="var(--s)" stroke-width="3"'
    return f'<g class="{series_class(image.key)}"><rect {box} {style}/>{wrong}<title>{escape(tip)}</title></g>'
