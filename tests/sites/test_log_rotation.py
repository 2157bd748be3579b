"""Logs do not grow for ever, and whoever writes to them notices nothing."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from promptfed.sites import log_rotation, watchdog
from promptfed.sites.log_rotation import rotate, rotating
from promptfed.sites.watchdog import Party
from support.loopback import until

WRITE = "import os\nfor n in range(3000): os.write(1, b'%06d\\n' % n)"


def test_a_full_log_is_copied_and_emptied_and_the_oldest_copy_goes(tmp_path: Path) -> None:
    log = tmp_path / "site.log"
    log.touch(0o600)
    for number in range(5):
        log.write_bytes(b"%d" % number * 11)
        assert rotate(log, largest=10, copies=3)
        assert log.read_bytes() == b""
    kept = {path.name: path.read_bytes()[:1] for path in tmp_path.iterdir()}
    assert kept == {"site.log": b"", "site.1.log": b"4", "site.2.log": b"3", "site.3.log": b"2"}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_log_that_is_not_full_stays(tmp_path: Path) -> None:
    (tmp_path / "site.log").write_bytes(b"0" * 10)
    assert not rotate(tmp_path / "site.log", largest=10)
    assert not rotate(tmp_path / "other.log", largest=10)
    assert [path.name for path in tmp_path.iterdir()] == ["site.log"]


def test_a_writer_goes_on_at_the_beginning_of_the_emptied_log(tmp_path: Path) -> None:
    log = tmp_path / "site.log"
    with log.open("ab") as out:
        subprocess.run([sys.executable, "-c", WRITE], stdout=out, check=True)
        assert rotate(log, largest=10)
        subprocess.run([sys.executable, "-c", WRITE], stdout=out, check=True)
    for path in (log, tmp_path / "site.1.log"):
        assert path.read_bytes() == b"".join(b"%06d\n" % number for number in range(3000))


def test_a_disk_without_room_for_the_copy_loses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    (tmp_path / "site.log").write_bytes(b"0" * 11)
    assert rotate(tmp_path / "site.log", largest=10)
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("site.log", 0)]


def test_a_log_that_cannot_be_rotated_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def refuse(log: Path) -> bool:
        asked.append(log)
        raise PermissionError

    monkeypatch.setattr(log_rotation, "rotate", refuse)
    rotating([tmp_path / "site.log"])()
    assert asked == [tmp_path / "site.log"]


def test_the_watchdog_bounds_the_logs_of_a_party_that_writes_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_rotation.rotate, "__defaults__", (20_000, 2))
    other = tmp_path / "worker.log"

    def stop() -> None:
        until(lambda: (tmp_path / "log.2.log").exists() and (tmp_path / "worker.2.log").exists())
        os.kill(os.getpid(), signal.SIGTERM)

    write = f"f = open({str(other)!r}, 'ab', 0)\nwhile True: f.write(b'1' * 99); print('2' * 98, flush=True)"
    party = Party((sys.executable, "-c", write), tmp_path, tmp_path / "log.log", tmp_path / "pid", more_logs=(other,))
    threading.Thread(target=stop).start()
    watchdog.keep_running(party, lambda sentence: None)
    assert {path.name for path in tmp_path.glob("*.log")} == {
        *("log.log", "log.1.log", "log.2.log"),
        *("worker.log", "worker.1.log", "worker.2.log"),
    }
