"""The live view in a real browser: a run grows and is cut back while the page is open, and nothing complains."""

import base64
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from promptfed.core.files import held
from support.browser import Browser, browsing
from support.fake_runs import write_run
from support.growing_runs import age, begun, grow
from support.live_view import Shown

PATIENCE = 60.0
LOOK = """(() => {
  const rows = [...document.querySelectorAll('#rows tr')].filter(row => !row.hidden);
  const lines = document.querySelectorAll('#wide path.line:not(.dash):not(.dot)');
  return {
    rows: Object.fromEntries(rows.map(row => [row.querySelector('.name').textContent, row.innerText])),
    order: rows.map(row => row.querySelector('.name').textContent),
    ticked: rows.filter(row => row.querySelector('input').checked).map(row => row.querySelector('.name').textContent),
    drawn: document.querySelector('#wide svg desc')?.textContent ?? '',
    colours: [...lines].map(line => line.getAttribute('class').match(/s\\d/)[0]),
    link: document.getElementById('link').textContent, counts: document.getElementById('counts').textContent,
    news: document.getElementById('news').textContent, title: document.title,
    focus: document.activeElement.closest('tr')?.querySelector('.name').textContent ?? document.activeElement.id,
    page: document.documentElement.scrollWidth, view: document.documentElement.clientWidth,
    paper: getComputedStyle(document.body).backgroundColor,
    unnamed: [...document.querySelectorAll('input')].filter(one => !one.labels.length).length,
    small: [...document.querySelectorAll('button, label.pick, input[type=search]')]
      .filter(one => one.offsetParent && one.getBoundingClientRect().height < 44).length,
    roles: [...document.querySelectorAll('#rows td')].every(cell => cell.getAttribute('role') === 'cell'),
    outside: performance.getEntriesByType('resource').filter(one => !one.name.startsWith(location.origin)).length,
    inline: document.querySelectorAll('[style], style, script:not([src]), i').length,
  };
})()"""
WIDE, PHONE = (1100, "light", "rgb(255, 255, 255)"), (360, "dark", "rgb(20, 23, 26)")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as started:
        yield started


def wait(browser: Browser, **wanted: object) -> dict[str, Any]:
    """Return what the page shows once it holds all these words, each in its place."""
    end = time.monotonic() + PATIENCE
    while True:
        found: dict[str, Any] = browser.evaluate(LOOK)
        if all(str(words) in json.dumps(found[name], ensure_ascii=False) for name, words in wanted.items()):
            return found
        assert time.monotonic() < end, (wanted, found)


def press(browser: Browser, key: str) -> None:
    """Press a key."""
    code = {"Tab": 9, " ": 32}[key]
    for kind in ("keyDown", "keyUp"):
        text = {"text": key} if key == " " and kind == "keyDown" else {}
        browser.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)


def keep(browser: Browser, name: str) -> None:
    """Keep a screenshot where the environment asks for it."""
    if folder := os.environ.get("PROMPTFED_SCREENSHOTS"):
        made = browser.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(made["data"]))


def test_a_run_grows_and_is_cut_back_before_your_eyes(browser: Browser, tmp_path: Path) -> None:
    live = begun(tmp_path / "live")
    other = write_run(tmp_path / "<i>other</i>", method="<i>fedavg", rounds=6, level=0.6, clients=4)
    age(other)
    with ExitStack() as stack, Shown(tmp_path) as port:
        lock = stack.enter_context(ExitStack())
        lock.enter_context(held(tmp_path / "live" / ".lock", wait=False))
        browser.open(f"http://127.0.0.1:{port}/", *WIDE[:2])
        found = wait(browser, rows="4 of 10", drawn="live ends at 65.1", link="Live")
        assert (found["order"], found["ticked"]) == (["live", "<i>other</i>"], ["live"])
        assert found["counts"] == "1 running, 1 finished"
        grow(live, 2)
        assert "6 of 10" in wait(browser, drawn="live ends at 69.5")["rows"]["live"]
        live.rewind(4)
        wait(browser, drawn="live ends at 65.1", rows="4 of 10")
        lock.close()
        assert "promptfed run --resume" in wait(browser, news="live: stopped")["rows"]["live"]
        overlaid(browser)
        late = begun(tmp_path / "late")
        assert wait(browser, rows="late", news="late: ")["title"] == f"{tmp_path.name} · PromptFed"
        damaged = (tmp_path / "late" / "rounds.jsonl").read_text().replace("null", "nul")
        (tmp_path / "late" / "rounds.jsonl").write_text(damaged)
        assert "is damaged: line" in wait(browser, news="late: damaged")["rows"]["late"]
        shutil.rmtree(late.folder)
        assert wait(browser, counts='"1 stopped, 1 finished"')["order"] == ["live", "<i>other</i>"]
        assert browser.complaints() == []


def overlaid(browser: Browser) -> None:
    """Lay another run's curve over the first by the keyboard, and take it away again."""
    browser.evaluate("document.getElementById('find').focus()")
    for _ in range(2):
        press(browser, "Tab")
    press(browser, " ")
    found = wait(browser, drawn="<i>other</i> ends at 59.5")
    assert (found["focus"], found["colours"]) == ("<i>other</i>", ["s0", "s1"])
    assert found["ticked"] == ["live", "<i>other</i>"]
    assert "live ends at 65.1" in found["drawn"]
    press(browser, " ")
    while "other" in browser.evaluate(LOOK)["drawn"]:
        pass
    browser.evaluate(
        "document.getElementById('find').value = 'FASHION live';"
        "document.getElementById('find').dispatchEvent(new Event('input'))"
    )
    assert wait(browser)["order"] == ["live"]
    browser.evaluate(
        "document.getElementById('find').value = '';document.getElementById('find').dispatchEvent(new Event('input'))"
    )


def test_it_fits_and_comes_back_by_itself(browser: Browser, tmp_path: Path) -> None:
    begun(tmp_path / "a-run-with-a-name-that-is-longer-than-a-phone-is-wide-and-has-no-spaces")
    write_run(tmp_path / "second", rounds=6, clients=4)
    with Shown(tmp_path) as port:
        for width, scheme, paper in (WIDE, PHONE):
            browser.open(f"http://127.0.0.1:{port}/", width, scheme)
            found = wait(browser, rows="second", drawn="ends at", link="Live")
            keep(browser, f"watch-{width}-{scheme}")
            assert found["page"] <= found["view"] <= width
            assert (found["paper"], found["unnamed"], found["small"], found["inline"]) == (paper, 0, 0, 0)
            assert (found["outside"], found["roles"]) == (0, True)
            assert browser.complaints() == []
    wait(browser, link="The connection is lost")
    write_run(tmp_path / "third", rounds=6, clients=4)
    with Shown(tmp_path, port):
        wait(browser, link="Live", rows="third")
