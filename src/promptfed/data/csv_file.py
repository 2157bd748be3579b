"""A user's own photographs in a CSV file: a path and a label each, and a site, a split and a patient if known."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.data.photos import Photo, require_trained

COLUMNS = ("path", "label", "site", "split", "patient")
REQUIRED = COLUMNS[:2]
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
SEPARATORS = ",;\t"  # some spreadsheets write semicolons or tabs

Row = Mapping[str, str]


def read_rows(path: Path) -> list[Photo]:
    """Return the photographs that the file lists, in its order; a row that makes no sense is refused by its line."""
    lines = read_table(path, REQUIRED, COLUMNS)
    photos: list[Photo] = []
    first_line: dict[Path, int] = {}
    for line, row in lines:
        photo = _photo(row, path, f"{path}, line {line}")
        if (seen := first_line.setdefault(photo.path, line)) != line:
            raise PromptFedError(f"{path}, line {line}: {row['path']} is already listed on line {seen}.")
        photos.append(photo)
    if not photos:
        raise PromptFedError(f"{path} lists no images.")
    if any(photo.val for photo in photos) and not any(photo.test for photo in photos):
        photos = [replace(photo, test=photo.val, val=False) for photo in photos]
    require_trained(photos, path)
    return photos


def read_table(path: Path, required: Sequence[str], known: Sequence[str]) -> list[tuple[int, Row]]:
    """Return every row that is not empty, with the number of its line; `known` columns may be capitalised."""
    if path.is_dir():
        raise PromptFedError(f"{path} is a folder, not a CSV file; for folders of photographs write folder:{path}.")
    if not path.is_file():
        raise PromptFedError(f"There is no file {path}.")
    try:
        text = path.read_bytes().decode("utf-8-sig")  # spreadsheets put a byte-order mark first
    except UnicodeDecodeError as problem:
        raise PromptFedError(f"{path} is not UTF-8 text ({problem.reason} at byte {problem.start}).") from problem
    head = text.split("\n", 1)[0]
    separator = max(SEPARATORS, key=head.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        columns = [name.strip() for name in next(reader, [])]
        columns = [name.lower() if name.lower() in known else name for name in columns]
        check_columns(columns, required, path)
        rows = []
        for values in reader:
            if any(value.strip() for value in values):
                rows.append((reader.line_num, read_row(columns, values, f"{path}, line {reader.line_num}")))
        return rows
    except csv.Error as problem:
        raise PromptFedError(f"{path}, line {reader.line_num} is not valid CSV: {problem}.") from problem


def check_columns(columns: Sequence[str], required: Sequence[str], path: Path) -> None:
    """Refuse a first line that does not name the columns, each once."""
    for name in required:
        if name not in columns:
            there = ", ".join(columns) or "nothing"
            raise PromptFedError(f'{path} lacks the column "{name}" in its first line, which has: {there}.')
    for name in columns:
        if columns.count(name) > 1:
            raise PromptFedError(f'{path} has two columns called "{name}".')


def read_row(columns: Sequence[str], values: Sequence[str], where: str) -> Row:
    """Return the values of one line by column."""
    if len(values) != len(columns):
        raise PromptFedError(f"{where} has {len(values)} values for {len(columns)} columns.")
    return {name: value.strip() for name, value in zip(columns, values, strict=True)}


def _photo(row: Row, path: Path, where: str) -> Photo:
    """Return one row as a photograph; its path is seen from the file's folder."""
    for name in COLUMNS:
        if name in row and not row[name]:
            raise PromptFedError(f"{where} has no {name}; fill in every row, or leave the column out.")
    split = row.get("split", "train")
    if split.lower() not in SPLITS:
        raise PromptFedError(f'{where}: the split is "{split}"; write train, val or test.')
    file = path.parent / Path(row["path"]).expanduser()
    if not file.is_file():
        raise PromptFedError(f"{where}: there is no file {file}.")
    kind = SPLITS[split.lower()]
    more = tuple((name, value) for name, value in row.items() if name not in COLUMNS)
    patient = row.get("patient", "")
    return Photo(file, kind == "test", row.get("site", ""), row["label"], kind == "val", more, patient)
