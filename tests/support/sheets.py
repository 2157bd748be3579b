"""Spreadsheets as .xlsx files, written by hand."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

SPACE = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


def sheet_of(rows: Sequence[Sequence[str]]) -> str:
    """Return a sheet in which every cell is the number of a shared text; "" stands for a cell that is missing."""
    lines, number = [], 0
    for line, row in enumerate(rows, 1):
        cells = ""
        for column, value in enumerate(row):
            if value:
                cells += f'<c r="{chr(65 + column)}{line}" t="s"><v>{number}</v></c>'
                number += 1
        lines.append(f'<row r="{line}">{cells}</row>')
    return f'<?xml version="1.0"?><worksheet {SPACE}><sheetData>{"".join(lines)}</sheetData></worksheet>'


def texts_of(rows: Sequence[Sequence[str]]) -> str:
    texts = "".join(f"<si><t>{value}</t></si>" for row in rows for value in row if value)
    return f'<?xml version="1.0"?><sst {SPACE}>{texts}</sst>'


def write_parts(path: Path, sheet: str, texts: str | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", sheet)
        if texts is not None:
            archive.writestr("xl/sharedStrings.xml", texts)
    return path


def write_sheet(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    return write_parts(path, sheet_of(rows), texts_of(rows))
