"""A party's processes are told from everyone else's, and none of them outlives its watchdog."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.sites import watchdog
from promptfed.sites.watchdog import Party

SLEEP = "import time; time.sleep(600)"
Process = subprocess.Popen[bytes]


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start(*words: object) -> Process:
    """Start something that sleeps in a session of its own, with these words on its command line."""
    process = subprocess.Popen([sys.executable, "-c", SLEEP, *map(str, words)], start_new_session=True)
    while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
        time.sleep(0.01)
    return process


def party(folder: Path, *words: str, port: int | None = None) -> Party:
    """Return a party whose parent process is Python, with these words."""
    ports = () if port is None else (port,)
    return Party((sys.executable, *words), folder, folder / "log", folder / "pid", ports=ports)


def test_only_the_engines_processes_of_this_very_kit_are_ended(tmp_path: Path, started: list[Process]) -> None:
    kit, other = tmp_path / "north", tmp_path / "north-2"
    engine = "nvflare.private.fed.app.client.worker_process"
    started += [start(engine, "-m", kit), start(engine, "-m", other), start("editor", kit), start(engine, f"-m={kit}")]
    assert watchdog._processes(kit) == [started[0].pid]
    watchdog._end_jobs(kit, 0.0)
    assert started[0].wait(120) == -9
    assert [process.poll() for process in started[1:]] == [None] * 3


def test_a_process_may_end_by_itself_first(tmp_path: Path, started: list[Process]) -> None:
    started.append(start("nvflare.job", tmp_path))
    began = time.monotonic()
    watchdog._end_jobs(tmp_path, 1.0)
    assert time.monotonic() - began >= 1.0
    assert started[0].wait(120) == -9


def test_a_port_that_is_taken_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "FREE_SECONDS", 0.0)
    write = f"open({str(tmp_path / 'started')!r}, 'w')"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PromptFedError, match=rf"cannot listen on port {port}: Address already in use\. Stop"):
            watchdog.keep_running(party(tmp_path, "-c", write, port=port), print)
    assert not (tmp_path / "started").exists()
    watchdog._require_free((port,))


def test_nothing_begins_while_another_watchdog_holds_the_party(tmp_path: Path) -> None:
    begun: list[str] = []
    with (
        watchdog._alone(tmp_path / "pid"),
        pytest.raises(PromptFedError, match=r"^It is already running; see .*pid\.$"),
    ):
        watchdog.keep_running(party(tmp_path), print, begin=lambda: begun.append("now"))
    assert begun == []


def test_a_strangers_certificate_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.0)
    log, said = tmp_path / "site.log", list[str]()
    log.write_text("certificate verify failed, yesterday\n")
    look = watchdog._watch_certificates(log, said.append)
    look()
    assert said == []
    for _ in range(2):
        with log.open("a") as file:
            file.write("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate\n")
        look()
    assert said == [f"This kit does not trust the server's certificate; ask the coordinator for a new kit ({log})."]


def test_a_log_that_was_emptied_is_read_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.0)
    log, said = tmp_path / "site.log", list[str]()
    log.write_text("x" * 1000)
    look = watchdog._watch_certificates(log, said.append)
    look()
    log.write_text("certificate verify failed\n")
    look()
    assert len(said) == 1


def test_a_watchdog_ends_what_an_earlier_one_has_left(
    tmp_path: Path, started: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = start("nvflare.job", tmp_path)
    started.append(left)

    class Enough(Exception):  # noqa: N818
        """Ends the test."""

    said: list[str] = []

    def say(sentence: str) -> None:
        said.append(sentence)
        if len(said) == 2:
            raise Enough

    monkeypatch.setattr(watchdog, "RESTART_SECONDS", 0.0)
    with pytest.raises(Enough):
        watchdog.keep_running(party(tmp_path, "-c", "raise SystemExit(3)"), say)
    assert left.wait(120) == -9
    assert said == ["The process ended with code 3; restarting it."] * 2
