"""What `data inspect` prints: a table of images per site and class, and sentences about sizes and problems."""

from collections import Counter
from collections.abc import Iterable, Sequence

from promptfed.core.errors import PromptFedError
from promptfed.core.printable import printable
from promptfed.data.inspecting import SPLITS, DatasetInspection, Look
from promptfed.results.report.table import Cell, Column, Table
from promptfed.runs import nested

WIDE = 12  # so many columns of counts fit on a screen
READ = "Images that can be read"
SHOWN = 5  # examples of a problem


def chosen(words: Sequence[str]) -> dict[str, object]:
    """Return the options of a data set from words such as data.size=64."""
    options = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip().startswith("data."):
            raise PromptFedError(f'"{word}" is not an option of a data set; write for example data.size=64.')
        options[key.strip().removeprefix("data.")] = nested.read_value(text)
    return options


def headline(found: DatasetInspection) -> str:
    """Return what there is in one line."""
    numbers = {"image": len(found.images), "class": len(found.classes), "site": len(found.sites)}
    many = {"image": "images", "class": "classes", "site": "sites"}
    each = (f"{count:,} {one if count == 1 else many[one]}" for one, count in numbers.items())
    return f"{found.name}: {', '.join(each)}."


def counts(found: DatasetInspection) -> Table:
    """Return the number of images per site and class; what there is less of, if it fits, has the columns."""
    number = Counter((image.site, image.label) for image in found.images)
    sites, classes = found.sites, found.classes
    if len(sites) <= WIDE:
        rows = [(label, [number[site, label] for site in sites]) for label in classes]
        return _matrix("class", rows, sites)
    if len(classes) <= WIDE:
        rows = [(site, [number[site, label] for label in classes]) for site in sites]
        return _matrix("site", rows, classes)
    columns = (_words("site"), _words("class"), _number("images"))
    pairs = [(site, label) for site in sites for label in classes if number[site, label]]
    lines = [(_cell(site), _cell(label), _cell(number[site, label])) for site, label in pairs]
    return Table(columns, tuple(lines), names=2, about=READ)


def _matrix(what: str, rows: Sequence[tuple[str, list[int]]], columns: Sequence[str]) -> Table:
    """Return a table of counts with sums at the right and at the bottom."""
    total = ("all", [sum(values) for values in zip(*(values for _, values in rows), strict=True)])
    heads = (_words(what), *map(_number, columns), _number("all"))
    lines = [(_cell(name), *map(_cell, values), _cell(sum(values))) for name, values in (*rows, total)]
    return Table(heads, tuple(lines), about=READ)


def splits(found: DatasetInspection) -> Table:
    """Return the number of images for training, validation and testing at each site."""
    number = Counter((image.site, image.split) for image in found.images)
    return _matrix("site", [(site, [number[site, split] for split in SPLITS]) for site in found.sites], SPLITS)


def findings(found: DatasetInspection) -> list[str]:
    """Return what a person should know before a run, in sentences."""
    sides = found.sides.most_common()
    common = ", ".join(f"{width} × {height} ({count:,})" for (height, width), count in sides[:SHOWN])
    others = len(sides) - SHOWN
    more = f", and {others:,} other size{'s' if others > 1 else ''}" if others > 0 else ""
    said = [f"Sizes, width × height: {common}{more}."]
    said += [_same(found, key, words) for key, words in _ALIKE.items()]
    shown = "; ".join(f"{path} ({why})" for path, why in list(found.broken.items())[:SHOWN])
    broken = f"{len(found.broken):,}: {shown}{_rest(len(found.broken))}" if found.broken else "none"
    said.append(f"Broken files: {broken}.")
    if found.patients:
        said.append(f"Patients: {found.patients:,}; none is in several splits.")
    if found.columns:
        said.append(f"Further columns: {'; '.join(_values(*one) for one in found.columns.items())}.")
    return [printable(sentence) for sentence in said]


def _values(column: str, values: Sequence[str]) -> str:
    """Say which values a column has, if they are few."""
    number = Counter(values)
    if len(number) > SHOWN:
        return f"{column} ({len(number):,} different values)"
    each = (f"{value or 'empty'}: {count:,}" for value, count in sorted(number.items()))
    return f"{column} ({', '.join(each)})"


_ALIKE = {"split": "in several splits", "label": "in several classes", "site": "at several sites"}


def _same(found: DatasetInspection, key: str, words: str) -> str:
    """Say which equal images there are in several splits, classes or sites."""
    groups = found.alike(key)
    if not groups:
        return f"The same image {words}: none."
    shown = "; ".join(_pair(some, key) for some in groups[:SHOWN])
    return f"The same image {words}: {len(groups):,}: {shown}{_rest(len(groups))}."


def _pair(images: Iterable[Look], key: str) -> str:
    """Name one image of each kind in a group of equal ones."""
    each = {getattr(image, key): image.name for image in images}
    return " and ".join(f"{name} ({kind})" for kind, name in each.items())


def _rest(count: int) -> str:
    return f"; and {count - SHOWN:,} more" if count > SHOWN else ""


def _words(title: str) -> Column:
    return Column(title, "", (title,), numeric=False)


def _number(title: str) -> Column:
    return Column(printable(title).replace("\n", " "), "", (title,))


def _cell(value: str | int) -> Cell:
    text = f"{value:,}" if isinstance(value, int) else printable(value).replace("\n", " ")
    return Cell(text, (str(value),))
