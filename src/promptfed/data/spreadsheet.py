"""The first sheet of an .xlsx file as a table, by the standard library; meant for short lists of labels."""

import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from promptfed.core.errors import PromptFedError
from promptfed.data.csv_file import Row, check_columns, read_row

SHEET, TEXTS = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml"
MOST = 4 * 2**20  # bytes of either when unpacked
COLUMNS = 256


class _Plain(ElementTree.TreeBuilder):
    """Refuses declared entities before any of them is read: a few bytes could stand for gigabytes."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        """Refuse the declaration."""
        raise ValueError("it declares a document type")


def read_sheet(path: Path, required: Sequence[str], known: Sequence[str]) -> list[tuple[int, Row]]:
    """Return every row that is not empty, with its number, as `csv_file.read_table` does."""
    if not path.is_file():
        raise PromptFedError(f"There is no file {path}.")
    try:
        with zipfile.ZipFile(path) as archive:
            texts = [_text(one) for one in _parsed(archive, TEXTS)] if TEXTS in archive.namelist() else []
            lines = [(line, _values(row, texts)) for line, row in _rows(_parsed(archive, SHEET))]
    except (
        *(zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError),  # or encrypted
        *(ElementTree.ParseError, LookupError, ValueError),
    ) as problem:
        raise PromptFedError(
            f"{path} cannot be read as a spreadsheet ({problem}); save its first sheet as {path.stem}.csv."
        ) from problem
    lines = [(line, values) for line, values in lines if values]
    columns = [name.lower() if name.lower() in known else name for name in lines[0][1]] if lines else []
    check_columns(columns, required, path)
    wide = len(columns)
    return [
        (line, read_row(columns, values + [""] * (wide - len(values)), f"{path}, line {line}"))
        for line, values in lines[1:]
    ]


def _parsed(archive: zipfile.ZipFile, name: str) -> Element:
    """Return a part of the archive, which may say that it is smaller than it is."""
    with archive.open(name) as file:
        content = file.read(MOST + 1)
    if len(content) > MOST:
        raise ValueError(f"{name} has more than {MOST // 2**20} MB")
    return ElementTree.fromstring(content, parser=ElementTree.XMLParser(target=_Plain()))


def _rows(sheet: Element) -> list[tuple[int, Element]]:
    """Return the rows with their numbers."""
    return [(int(row.get("r", place)), row) for place, row in enumerate(sheet.iterfind(".//{*}sheetData/{*}row"), 1)]


def _values(row: Element, texts: Sequence[str]) -> list[str]:
    """Return the texts of one row's cells, up to the last one that is not empty."""
    found: dict[int, str] = {}
    for place, cell in enumerate(row.iterfind("{*}c")):
        where = re.match("[A-Z]+", cell.get("r", ""))
        value = _text(cell) if cell.get("t") == "inlineStr" else (cell.findtext("{*}v") or "").strip()
        if value:
            found[_number(where[0]) if where else place] = texts[int(value)] if cell.get("t") == "s" else value
    if (last := max(found, default=-1)) >= COLUMNS:
        raise ValueError(f"it has more than {COLUMNS} columns")
    return [found.get(column, "") for column in range(last + 1)]


def _number(letters: str) -> int:
    """Return the number of column A, B, … Z, AA, …, from 0."""
    number = 0
    for letter in letters[:4]:  # more than any spreadsheet has
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1


def _text(element: Element) -> str:
    """Return the letters below an element, whose parts may look different."""
    return "".join(part.text or "" for part in element.iterfind(".//{*}t")).strip()
