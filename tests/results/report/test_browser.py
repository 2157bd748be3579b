"""The report in a real browser: nothing overflows, nothing is invisible, nothing complains."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from promptfed.results.report import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60.0
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--remote-debugging-pipe",
)  # fmt: skip
# The browser expects its pipe at the descriptors 3 and 4.
LAUNCH = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
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


class Browser:
    """Speaks the DevTools protocol over a pipe: one JSON message each way, ended by a zero byte."""

    def __init__(self, program: str, profile: Path) -> None:
        self.told, self.heard = os.pipe(), os.pipe()
        ours = (self.told[0], self.heard[1])
        command = [sys.executable, "-c", LAUNCH, *map(str, ours), program, *FLAGS, f"--user-data-dir={profile}"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, pass_fds=ours, stdout=quiet, stderr=quiet)
        for end in ours:
            os.close(end)
        self.buffer, self.number, self.session = b"", 0, ""
        self.events: list[dict[str, Any]] = []

    def start(self) -> None:
        """Open a tab and listen to it."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(OSError):
            self.session = ""
            self.ask("Browser.close")
        os.close(self.told[1])
        os.close(self.heard[0])
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer; events that arrive meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.told[1], json.dumps(message).encode() + b"\0")
        while (answer := self.hear()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def hear(self) -> dict[str, Any]:
        """Return the next message."""
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.heard[0]], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self.heard[0], 1 << 20) if ready else b""
            if not chunk:
                raise OSError("the browser is silent")
            self.buffer += chunk
        line, self.buffer = self.buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, page: Path, width: int, scheme: str) -> None:
        """Show a page at this width, light or dark, and wait until it has loaded."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=features)
        mobile = width < 720
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=mobile)
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.hear())

    def measure(self) -> dict[str, Any]:
        """Return what MEASURE finds on the page."""
        found: dict[str, Any] = json.loads(self.ask("Runtime.evaluate", expression=MEASURE)["result"]["value"])
        return found

    def complaints(self) -> list[dict[str, Any]]:
        """Return console messages, log entries and uncaught errors since the page was opened."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in kinds]


def find_browser() -> str:
    """Return a browser's path, or skip; where one is required, fail."""
    named = os.environ.get("PROMPTFED_CHROMIUM")
    found = named or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found:
        return found
    sentence = f"No browser found: none of {', '.join(NAMES)} is installed and PROMPTFED_CHROMIUM is not set."
    if os.environ.get("PROMPTFED_REQUIRE_BROWSER") == "1":
        pytest.fail(sentence)
    pytest.skip(sentence)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of this file."""
    started = Browser(find_browser(), tmp_path_factory.mktemp("profile"))
    try:
        started.start()
        yield started
    finally:
        started.close()


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
            browser.open(page, width, scheme)
            found = browser.measure()
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
    browser.open(page, 1280, "light")
    found = browser.measure()
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
