"""Every row of the threat model names a test, and that test exists."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from promptfed.sites.terms import Terms, read_terms
from promptfed.sites.terms_in_words import describe_terms
from support.loopback import promptfed
from support.real_processes import note, required

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
REAL = "pytest.mark.real_processes"
NAMED = re.compile(r"`(?P<file>[\w/]+\.py)::(?P<test>test_\w+)`")
OUTCOMES = ("prevented", "limited", "detected", "open")
PARTIES = (
    "An outsider on the network",
    "A curious coordinator",
    "A malicious coordinator",
    "A malicious site",
    "Colluding sites",
    "Someone who reads or changes a disk or a backup",
    "Hostile files",
)


def rows(party: str) -> list[list[str]]:
    """Return the rows of a party's table, without its head."""
    (section,) = re.findall(rf"^## {party}$(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    found = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return found[2:]


@cache
def defined_tests(path: Path) -> dict[str, bool]:
    """Return the names of the tests that a file defines, and whether each is said to start real processes."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    marks = [one.value for one in body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"]
    found = [one for one in body if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")]
    return {one.name: any(REAL in ast.unparse(mark) for mark in (*marks, *one.decorator_list)) for one in found}


@pytest.mark.parametrize("party", PARTIES)
def test_every_row_is_held_by_tests_that_exist_and_by_one_over_real_processes(party: str) -> None:
    table = rows(party)
    assert len(table) >= 4
    for row in table:
        assert len(row) == 4, row
        assert row[1].startswith(OUTCOMES), row
        over_processes = []
        for one in NAMED.finditer(row[3]):
            path = ROOT / one["file"] if "/" in one["file"] else ROOT / "tests" / "sites" / one["file"]
            assert path.is_file(), one[0]
            assert one["test"] in defined_tests(path), one[0]
            over_processes.append(defined_tests(path)[one["test"]])
        assert any(over_processes), row


@pytest.mark.real_processes
def test_who_says_so_and_starts_no_process_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="and started none"), required():
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    with required():
        assert promptfed("--help", cwd=tmp_path).returncode == 0
    with pytest.raises(AssertionError), subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        note(process)


def test_the_page_has_no_other_tables_of_attacks() -> None:
    sections = re.findall(r"^## (.*)$", PAGE, re.M)
    assert [name for name in sections if name not in PARTIES] == ["Who is trusted with what", "Not in this model"]
    held = [row[3] for party in PARTIES for row in rows(party)]
    assert sum(len(NAMED.findall(cell)) for cell in held) == len(NAMED.findall(PAGE))


def test_the_careful_owners_terms_are_terms(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S)
    path = tmp_path / "terms.toml"
    path.write_text(text.replace("9c0e6f…", "9c0e6f00" * 8), encoding="utf-8")
    terms = read_terms(path)
    assert set(tomllib.loads(path.read_text(encoding="utf-8"))) - {"guards", "members"} <= set(vars(Terms()))
    assert terms.guards.noise > 0
    assert terms.guards.secure
    said = " ".join(describe_terms(terms))
    for weakness in ("Answers may leave without noise", "any sites that the coordinator", "Any backbone", "any number"):
        assert weakness not in said
