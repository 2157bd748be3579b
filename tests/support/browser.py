"""A real browser, asked over the DevTools protocol."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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

    def open(self, address: str, width: int, scheme: str) -> None:
        """Show a page at this width, light or dark, and wait until it has loaded."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=features)
        mobile = width < 720
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=mobile)
        self.events.clear()
        self.ask("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.hear())

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression on the page, of a promise what it gives."""
        asked = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in asked, asked
        return asked["result"].get("value")

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


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """Start a browser, and end it."""
    started = Browser(find_browser(), profile)
    try:
        started.start()
        yield started
    finally:
        started.close()
