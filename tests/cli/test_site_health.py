"""`promptfed sites doctor` and `sites health`: what they print, and their exit codes."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from promptfed.sites.health import HEARTBEAT
from promptfed.sites.pid_file import watching
from support.certificates import write_certificates
from support.command import promptfed, sentence


@contextmanager
def joined(home: Path, silent: float = 0.0) -> Iterator[Path]:
    """Let a site be there that the server answered so many seconds ago."""
    write_certificates(home, "north")
    with watching(home / "site.pid"):
        (home / HEARTBEAT).touch()
        then = time.time() - silent
        os.utime(home / HEARTBEAT, (then, then))
        yield home


def test_a_site_that_is_answered_is_well(tmp_path: Path) -> None:
    with joined(tmp_path):
        done = promptfed("sites", "health", tmp_path)
    assert (done.code, done.out, done.err) == (0, "ok\n", "")


def test_a_site_that_is_not_answered_or_has_gone_is_not_well(tmp_path: Path) -> None:
    with joined(tmp_path, silent=100):
        done = promptfed("sites", "health", tmp_path)
        (tmp_path / HEARTBEAT).unlink()
        never = promptfed("sites", "health", tmp_path)
    gone = promptfed("sites", "health", tmp_path)
    assert (done.code, done.out, done.err) == (1, "", "The server has not answered this site for 100 seconds.\n")
    assert (never.code, never.err) == (1, "The server has not answered this site yet.\n")
    assert (gone.code, gone.err) == (1, "This site has not joined; start it with: promptfed sites join\n")


def test_one_can_wait_for_a_site_to_become_well(tmp_path: Path) -> None:
    with joined(tmp_path, silent=100):
        timer = threading.Timer(0.7, (tmp_path / HEARTBEAT).touch)
        timer.start()
        assert promptfed("sites", "health", tmp_path, "--wait", "60").code == 0
        timer.join()


def test_one_can_wait_for_a_site_that_has_nothing_yet(tmp_path: Path) -> None:
    def join() -> None:
        with joined(tmp_path):
            assert left.wait(60)

    left = threading.Event()
    timer = threading.Timer(0.7, join)
    timer.start()
    assert promptfed("sites", "health", tmp_path, "--wait", "60").code == 0
    left.set()
    timer.join()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    assert "is neither a coordinator's folder" in sentence(promptfed("sites", "health", tmp_path))
    assert "does not exist; give a kit" in sentence(promptfed("sites", "doctor", tmp_path / "nowhere"))


def test_the_doctor_prints_a_line_a_check_or_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "kit.zip").write_bytes(b"no zip")
    done = promptfed("sites", "doctor", tmp_path / "kit.zip", "--json")
    found = {one["check"]: one["verdict"] for one in json.loads(done.out)}
    assert done.code == 1
    assert (found["certificate"], found["packages"], found["data"]) == ("failed", "ok", "skipped")
    shown = promptfed("sites", "doctor", tmp_path / "kit.zip")
    assert (shown.code, shown.err) == (1, "")
