"""`promptfed reproduce` as people meet it: its formats, its mistakes, its help, and the page about it."""

import csv
import io
import re
from itertools import takewhile
from pathlib import Path

import pytest

from promptfed.cli import terminal, training
from promptfed.core.errors import PromptFedError
from promptfed.papers import reproduce
from promptfed.papers.plan import TablePlan
from promptfed.papers.rendering import read_table, to_csv, to_latex, to_markdown
from promptfed.papers.reproduce import find_table
from promptfed.runs import registry
from support.command import promptfed
from support.small_tables import counted_runs, given_table, run  # noqa: F401  fixtures

# -- other formats ----------------------------------------------------------------------------------------------------


def test_a_table_in_every_format(table: Path, tmp_path: Path, counted: list[str]) -> None:
    out = tmp_path / "out"
    assert run(table, out).code == 0
    files, found = sorted(path for path in out.rglob("*")), read_table(out)
    writers = {"markdown": to_markdown, "latex": to_latex, "csv": to_csv}
    for form, write in writers.items():
        done = run(table, out, "--format", form)
        assert (done.code, done.out) == (0, write(found))
        assert done.err == f"Table {out / 'table.md'}, {out / 'table.json'}\n"
    lines = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [(line["column"], line["method"]) for line in lines] == [
        ("IID", "FedAvg"),
        ("IID", "Local"),
        ("Dir(1)", "FedAvg"),
        ("Dir(1)", "Local"),
    ]
    assert [float(line["ours"]) for line in lines] == [round(row["ours"]["mean"] or 0, 2) for row in found["rows"]]
    assert [line["A"] == "" for line in lines] == [False, False, True, True]
    shown = run(table, out, "--format", "terminal")
    assert (shown.code, shown.err, "|---" in shown.out) == (0, "", False)
    assert "A small table" in shown.out
    assert sorted(path for path in out.rglob("*")) == files
    assert len(counted) == 4
    refused = run(table, out, "--format", "word")
    assert refused.code == 2


MISTAKES = {
    "unknown table": (["pfedpg/t1-offize"], 'Unknown table "pfedpg/t1-offize"; did you mean "pfedpg/t1-office"?'),
    "no such file": (["no.table.toml"], "cannot be read"),
    "unknown row": (["TABLE", "--only", "fedavgg"], 'Unknown row "fedavgg" in small; did you mean "fedavg"?'),
    "unknown column": (["TABLE", "--columns", "iit"], 'Unknown column "iit" in small; did you mean "iid"?'),
    "seeds that are none": (["TABLE", "--seeds", "0,x"], 'not "0,x"'),
    "a seed twice": (["TABLE", "--seeds", "1,1"], "different whole numbers"),
    "a seed as a key": (["TABLE", "seed=3"], "--seeds 0,1,2"),
    "a split as a key": (["TABLE", "evaluate.split=val"], "only --tune uses validation images"),
    "a sweep": (["TABLE", "rounds=[1,2]"], "sweep of 2 runs"),
    "no folder to merge": (["TABLE", "--merge", "nowhere"], "Folder nowhere, given to --merge, does not exist."),
    "no worker": (["TABLE", "--workers", "0"], "at least 1 worker"),
    "unknown key": (["TABLE", "method.epoch=3"], 'did you mean "method.epochs"?'),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence(mistake: str, table: Path) -> None:
    words, expected = MISTAKES[mistake]
    done = promptfed("reproduce", *(table if word == "TABLE" else word for word in words))
    assert (done.code, done.out) == (2, "")
    assert expected in done.err
    assert done.err.count("\n") == 1
    assert list(Path.cwd().iterdir()) == []


def test_a_table_is_no_recipe(table: Path) -> None:
    for name in ("pfedpg/t1-office", str(table)):
        done = promptfed("run", name)
        assert (done.code, f"use promptfed reproduce {name}." in done.err) == (2, True)


def test_help_names_every_option() -> None:
    done = promptfed("reproduce", "--help")
    assert done.code == 0
    for word in (
        "TABLE",
        "KEY=VALUE",
        "--out",
        "--seeds",
        "--only",
        "--columns",
        "--workers",
        "--tune",
        "--merge",
        "--format",
    ):
        assert word in done.out


def test_an_empty_choice_is_not_all(table: Path, tmp_path: Path) -> None:
    for option in ("--only", "--columns"):
        done = run(table, tmp_path / "out", option, "")
        assert (done.code, done.err) == (2, f"promptfed: {option} names nothing; leave it out for all.\n")
    assert not (tmp_path / "out").exists()


def test_a_person_sees_tables(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    assert run(table, tmp_path / "out", "--columns", "iid").code == 0
    console = Console(force_terminal=True, width=200, color_system=None, record=True, file=(tmp_path / "x").open("w"))
    monkeypatch.setattr(training, "console", console)
    monkeypatch.setattr(terminal, "console", console)
    training._show_table(read_table(tmp_path / "out"))
    shown = console.export_text()
    for words in ("A small table", "FedAvg", "60.00", "Deviations", "- `rounds`: 4 → 2.", "- A note."):
        assert words in shown
    console.file.close()


def test_plan_is_checked_from_python_too(table: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="different whole numbers"):
        reproduce.reproduce(find_table(str(table)), TablePlan(tmp_path / "out", seeds=()))


# -- what the page says -----------------------------------------------------------------------------------------------


def page_rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table of docs/reproducing.md below a heading."""
    page = (Path(__file__).parents[2] / "docs" / "reproducing.md").read_text(encoding="utf-8")
    lines = page.split(f"{heading}\n", 1)[1].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def test_the_page_lists_every_table_and_counts_its_cells() -> None:
    listed: list[str] = []
    for names, what, cells in page_rows("# Reproducing a paper's table"):
        tables = re.findall(r"`([^`]+)`", names)
        assert what
        assert int(cells) == sum(len(find_table(name).cells()) for name in tables)
        listed += tables
    assert sorted(listed) == sorted(registry.tables())


def test_the_page_names_every_grid() -> None:
    told: dict[str, set[tuple[float, ...]]] = {}
    for name, *grids in page_rows("## The best of a grid"):
        rates = {tuple(map(float, grid.split(", "))) for grid in grids if grid != "–"}
        told[name.strip("`")] = rates
    found: dict[str, set[tuple[float, ...]]] = {}
    for name in registry.tables():
        rows = find_table(name).rows
        rates = {tuple(row.tune["method.lr"]) for row in rows if "method.lr" in row.tune}
        place = name if name in told else f"{name.split('/')[0]}/*"
        found[place] = found.get(place, set()) | rates
    assert found == told


def test_the_page_names_every_option() -> None:
    said = promptfed("reproduce", "--help").out
    options = {cell[0].strip("`").split()[0] for cell in page_rows("## Options")} - {"KEY=VALUE…"}
    assert options == set(re.findall(r"--[a-z]+", said)) - {"--help"}
