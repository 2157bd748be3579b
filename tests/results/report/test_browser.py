"""The report in a real browser: nothing overflows, nothing is invisible, nothing complains."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from promptfed.results.report import write_report
from support.browser import Browser, browsing, find_browser

MEASURE = """(() => {
  const shown = box => box.width > 0 && box.height > 0;
  const figures = [...document.querySelectorAll('figure')].map(figure => {
    const drawn = [...figure.querySelectorAll('div > svg')].map(svg => svg.getBoundingClientRect()).filter(shown);
    return {drawn: drawn.length, width: Math.max(0, ...drawn.map(box => box.width))};
  });
  const text = [...document.querySelectorAll('figure div > svg text')].filter(t => shown(t.getBoundingClientRect()));
  const root = document.documentElement;
  return JSON.stringify({
    figures, page: root.scrollWidth, view: root.clientWidth,
    paper: getComputedStyle(document.body).backgroundColor,
    outside: text.filter(t => t.getBoundingClientRect().right > root.clientWidth + 1).map(t => t.textContent),
    broken: [...document.images].filter(image => !image.naturalWidth).length,
    asked: performance.getEntriesByType('resource').map(e => e.name).filter(name => !name.startsWith('data:')),
  });
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with browsing(tmp_path_factory.mktemp("profile")) as started:
        yield started


def measure(browser: Browser) -> dict[str, Any]:
    """Return what MEASURE finds on the page."""
    found: dict[str, Any] = json.loads(browser.evaluate(MEASURE))
    return found


def report(kind: str, make_run: Callable[..., Path]) -> Path:
    """Write the report of one run, of one with all its figures, of three, or of fifty and a hundred clients."""
    if kind == "one":
        return write_report([make_run("a", pictures=4)])
    if kind == "shown":
        return write_report([make_run("a", clients=12, domains=2)])
    if kind == "three":
        methods = ("pfedpt", "fedavg", "a-method-with-a-rather-long-name")
        sent = (7680, 0, 10**8)
        return write_report(
            [make_run(m, method=m, level=0.8 - 0.1 * i, floats=sent[i], domains=2) for i, m in enumerate(methods)]
        )
    big = make_run("c", clients=100, done=4, domains=1)
    return write_report([make_run("a", clients=50), make_run("b", clients=50, method="fedavg", level=0.7), big])


@pytest.mark.parametrize("kind", ["one", "shown", "three", "many"])
def test_the_page_fits_and_shows_everything(browser: Browser, make_run: Callable[..., Path], kind: str) -> None:
    page = report(kind, make_run)
    for width in (375, 1280):
        for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 26)")):
            browser.open(page.as_uri(), width, scheme)
            found = measure(browser)
            where = f"{kind} at {width}, {scheme}"
            assert browser.complaints() == [], where
            assert found["page"] <= found["view"] <= width, f"{where}: the page scrolls sideways"
            assert found["outside"] == [], f"{where}: words leave the page"
            assert len(found["figures"]) >= (10 if kind == "shown" else 6), where
            assert all(one["drawn"] == 1 and one["width"] > 300 for one in found["figures"]), where
            assert (found["paper"], found["broken"], found["asked"]) == (paper, 0, []), where


def test_the_measuring_notices_faults(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    wide = '<div style="width:2000px">x</div><figure><div style="display:none"><svg></svg></div></figure>'
    page.write_text(f"<!doctype html><body>{wide}<script>console.error('no'); throw 1</script>", encoding="utf-8")
    browser.open(page.as_uri(), 1280, "light")
    found = measure(browser)
    assert found["page"] > found["view"]
    assert found["figures"] == [{"drawn": 0, "width": 0}]
    assert {event["method"] for event in browser.complaints()} == {
        "Runtime.consoleAPICalled",
        "Runtime.exceptionThrown",
    }


def test_a_missing_browser_skips_unless_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("PROMPTFED_CHROMIUM", raising=False)
    monkeypatch.delenv("PROMPTFED_REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="No browser found"):
        find_browser()
    monkeypatch.setenv("PROMPTFED_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="No browser found"):
        find_browser()
