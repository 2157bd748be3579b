"""The names in a run folder: each in one place, each documented, and none of them ever changes."""

import re
from pathlib import Path

import pytest

import promptfed
from promptfed.results import read_run
from promptfed.results.folder import names

ROOT = Path(promptfed.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "run-folder.md"
FIXED = {name: value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}


@pytest.mark.parametrize("name", FIXED)
def test_every_name_is_documented(name: str) -> None:
    assert re.search(rf"{re.escape(FIXED[name])}\b", PAGE.read_text(encoding="utf-8"))


def test_every_name_is_spelled_out_once() -> None:
    files = [value for value in FIXED.values() if "." in value]
    text = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py") if path.name != "names.py")
    assert [file for file in files if re.search(rf"""/ ["']{re.escape(file)}["']""", text)] == []


def test_names_that_count() -> None:
    assert names.server_file(10) == "server-000010.safetensors"
    assert names.personal_file(4) == "personal-000004.safetensors"
    assert names.kept_file("word", 12) == "words/000012.safetensors"
    found = names.PICTURE_FILE.fullmatch(names.picture_file("prompt", 3))
    assert found is not None
    assert (found["name"], int(found["client"]), found.string) == ("prompt", 3, "prompt-client-003.png")


def test_the_page_names_a_function_that_exists() -> None:
    assert f"promptfed.results.{read_run.__name__}(DIR)" in PAGE.read_text(encoding="utf-8")
