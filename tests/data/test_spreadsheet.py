"""Short lists in .xlsx files: what is read, and what is refused before it can do harm."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data.spreadsheet import MOST, read_sheet
from support.sheets import SPACE, sheet_of, write_parts, write_sheet

ROWS = [["image_id", "Grade"], ["1_l1", "0"], [], ["1_l2", "", ""], ["", "4"]]


def sheet(cells: str) -> str:
    return f'<worksheet {SPACE}><sheetData><row r="1">{cells}</row></sheetData></worksheet>'


def test_rows_have_their_numbers(tmp_path: Path) -> None:
    path = write_sheet(tmp_path / "labels.xlsx", ROWS)
    assert read_sheet(path, ("image_id",), ("grade",)) == [
        (2, {"image_id": "1_l1", "grade": "0"}),
        (4, {"image_id": "1_l2", "grade": ""}),
        (5, {"image_id": "", "grade": "4"}),
    ]


def test_numbers_and_texts_may_lie_in_the_sheet_itself(tmp_path: Path) -> None:
    content = (
        f'<worksheet {SPACE}><sheetData><row><c t="inlineStr"><is><r><t>na</t></r><r><t>me</t></r></is></c>'
        '<c r="AA1" t="inlineStr"><is><t>far</t></is></c></row><row><c><v>3</v></c></row></sheetData></worksheet>'
    )
    with pytest.raises(PromptFedError, match='two columns called ""'):
        read_sheet(write_parts(tmp_path / "a.xlsx", content), ("name",), ())
    near = content.replace("AA1", "B1")
    assert read_sheet(write_parts(tmp_path / "b.xlsx", near), ("name",), ()) == [(2, {"name": "3", "far": ""})]


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    path = write_sheet(tmp_path / "labels.xlsx", ROWS)
    with pytest.raises(PromptFedError, match=r'labels\.xlsx lacks the column "level" in its first line, which has: '):
        read_sheet(path, ("level",), ())
    with pytest.raises(PromptFedError, match="which has: nothing"):
        read_sheet(write_sheet(tmp_path / "empty.xlsx", []), ("level",), ())
    with pytest.raises(PromptFedError, match=r"There is no file .*gone\.xlsx"):
        read_sheet(tmp_path / "gone.xlsx", ("level",), ())
    wide = write_sheet(tmp_path / "wide.xlsx", [["level"], ["1", "2"]])
    with pytest.raises(PromptFedError, match=r"wide\.xlsx, line 2 has 2 values for 1 columns"):
        read_sheet(wide, ("level",), ())


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
BROKEN = {
    "entities": (BOMB + sheet("<c><v>&b;</v></c>"), "it declares a document type"),
    "much in little": (" " * (MOST + 1), r"sheet1\.xml has more than 4 MB"),
    "a text that is not there": (sheet('<c t="s"><v>7</v></c>'), "index out of range"),
    "a text that is no number": (sheet('<c t="s"><v>x</v></c>'), "invalid literal"),
    "a column far away": (sheet('<c r="XFD1"><v>1</v></c>'), "more than 256 columns"),
    "no such letter": (sheet('<c r="ZZZZZZ1"><v>1</v></c>'), "more than 256 columns"),
    "a row without a number": (sheet_of(ROWS).replace('r="1"', 'r="one"', 1), "invalid literal"),
    "half of it": (sheet_of(ROWS)[:-20], "no element found|unclosed token|not well-formed"),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_what_cannot_be_read_is_to_be_saved_otherwise(problem: str, tmp_path: Path) -> None:
    content, words = BROKEN[problem]
    path = write_parts(tmp_path / "labels.xlsx", content)
    with pytest.raises(PromptFedError, match=rf"({words}).*; save its first sheet as labels\.csv\.") as caught:
        read_sheet(path, ("image_id",), ())
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_zip_or_has_no_sheet(tmp_path: Path) -> None:
    path = tmp_path / "labels.xlsx"
    path.write_bytes(b"image_id,level\n")
    with pytest.raises(PromptFedError, match="cannot be read as a spreadsheet"):
        read_sheet(path, ("image_id",), ())
    write_parts(path, "").rename(tmp_path / "other.xlsx")
    with pytest.raises(PromptFedError, match="cannot be read as a spreadsheet"):
        read_sheet(tmp_path / "other.xlsx", ("image_id",), ())
