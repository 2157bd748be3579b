"""Names that others chose, in a real browser and in tables: shown as text, and nothing of them runs."""

import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from promptfed.analysis.bundle.making import make_bundle
from promptfed.analysis.exports.web import PAGE
from promptfed.results import read_run
from promptfed.results.report import compare, write_report
from promptfed.results.report.notebook import card
from promptfed.runs import runner
from support.browser import Browser, browsing
from support.fake_runs import CLASSES, DOMAINS, write_run
from support.hostile import HARM, NONE, WORDS, put
from support.served import Visited, fill, served_files
from support.tiny_runs import tiny, write_images


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def hostile(tmp_path: Path) -> list[Path]:
    """Return two runs in which every name that a user, a site or a data set chooses is a hostile word."""
    runs = []
    for number, word in enumerate(WORDS[:2]):
        name = word.replace("/", "∕")  # a folder's name has no slash
        folder = write_run(tmp_path / name, method="a-method", dataset="a-data-set", domains=2, pictures=2, seed=number)
        for old, new in zip(CLASSES, WORDS, strict=True):
            put(folder, old, new)
        for old, new in zip((*DOMAINS, "a-data-set", "a-method", "cnn"), WORDS[5::-1], strict=False):
            put(folder, old, new if old != "cnn" else WORDS[4])
        runs.append(folder)
    return runs


def assert_harmless(browser: Browser, address: str) -> str:
    """Open a page, see that no word did anything, and return its text."""
    browser.open(address, 1280, "light")
    assert browser.evaluate(HARM) == NONE
    assert browser.complaints() == []
    return str(browser.evaluate("document.documentElement.textContent"))


def test_the_report_of_a_run_shows_names_as_text(browser: Browser, hostile: list[Path]) -> None:
    shown = assert_harmless(browser, write_report([hostile[0]]).as_uri())
    missing = [word for word in WORDS if word not in shown]
    assert missing == []


def test_the_report_that_compares_runs_shows_names_as_text(browser: Browser, hostile: list[Path]) -> None:
    shown = assert_harmless(browser, write_report(hostile).as_uri())
    assert WORDS[2] in shown


def test_a_card_in_a_notebook_shows_names_as_text(browser: Browser, hostile: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "card.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><body>{card(read_run(hostile[0]))}", encoding="utf-8")
    assert_harmless(browser, page.as_uri())


def test_tables_hold_names_as_text(hostile: list[Path]) -> None:
    table = compare([read_run(folder) for folder in hostile])
    markdown, latex = table.to_markdown(), table.to_latex()
    assert "<" not in markdown
    for line in latex.splitlines():
        assert all(line[at - 1] == "\\" for at, sign in enumerate(line) if sign in "%#_" and at)


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "-cmd", "@SUM(A1)", "\t=1", " =1", "=HYPERLINK(1)"])
def test_no_name_becomes_a_formula(name: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", method="a-method")
    put(folder, "a-method", name)
    text = compare([read_run(folder)]).to_csv()
    head, row = csv.reader(io.StringIO(text))
    assert row[head.index("method")] == f"'{name}"
    assert [field for field in row if field.strip()[:1] in ("=", "+", "@")] == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a real run on images whose classes have hostile names."""
    base = tmp_path_factory.mktemp("classes")
    with np.load(write_images(base / "plain.npz")) as plain:
        np.savez(base / "hostile.npz", x=plain["x"], y=plain["y"], class_names=np.array(WORDS[:4]))
    words = (*tiny(base / "hostile.npz"), "device=cpu", "rounds=1", "evaluate.after=false")
    return runner.run("pfedpt", out=base / "run", overrides=words).folder


def test_a_real_run_on_hostile_classes_has_a_harmless_report(browser: Browser, trained: Path) -> None:
    shown = assert_harmless(browser, (trained / "report.html").as_uri())
    assert all(word in shown for word in WORDS[:4])


def test_the_page_of_a_server_shows_classes_as_text(browser: Browser, trained: Path, tmp_path: Path) -> None:
    make_bundle(trained, tmp_path / "bundle", "cpu")
    with Visited(tmp_path / "bundle") as address:
        browser.open(address, 1280, "light")
        rows = fill(browser)["rows"]
        assert browser.evaluate(HARM) == NONE
        assert browser.complaints() == []
    assert all(any(word in row for row in rows) for word in WORDS[:4])


def test_an_exported_page_shows_classes_as_text(browser: Browser, tmp_path: Path) -> None:
    shutil.copytree(PAGE, tmp_path / "page")
    (tmp_path / "page" / "model.json").write_text(json.dumps({"classes": WORDS}))
    with served_files(tmp_path / "page") as address:
        browser.open(address, 1280, "light")
        browser.evaluate("ready.catch(() => 0)")
        shown = browser.evaluate(ANSWER)
        assert browser.evaluate(HARM) == NONE
    assert all(word in shown for word in WORDS)


ANSWER = """(async () => {
  const about = await (await fetch('model.json')).json();
  show(about.classes, about.classes.map((_, n) => n / 6));
  return document.getElementById('answers').textContent;
})()"""
