"""A full disk at a site is a sentence; without a record nothing leaves; what a site writes is its owner's alone."""

import errno
import logging
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from promptfed.federation.store import write_tree
from promptfed.sites import coordinator, wire
from promptfed.sites.audit_check import check_audit
from promptfed.sites.child_process import Child
from promptfed.sites.settings import Federation
from promptfed.sites.wire import Message
from support.faults import ignore
from support.real_worker import RealSite
from support.three_sites import NAMES, begin, exchange, lines, recipe, workers

FULL = "its disk is full, so it cannot take part until its owner frees some space"


def hello(folder: Path) -> tuple[Message, Path]:
    """Return what one site says about itself, and its home."""
    worker = workers(folder)["north"]
    head = {"run": "x", "round": 0, "nonce": "0", "kind": "hello", "site": "north", "client": 0, "classes": []}
    asked = Message(head | {"recipe": recipe("fedavg").to_toml()}, {})
    return wire.unpack(worker.answer(wire.pack(asked)), 2**30), worker.home


def test_an_answer_that_cannot_be_recorded_does_not_leave(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = tmp_path / "home" / "north"
    home.mkdir(parents=True)
    (home / "audit.jsonl").symlink_to("/dev/full")
    answer, _ = hello(tmp_path)
    assert answer.head["error"] == FULL
    assert answer.tree == {}
    assert "audit.jsonl cannot be written" in caplog.text


def test_a_disk_that_fills_up_while_training_is_a_sentence_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: Any, *, sealed: bool = False) -> None:
        if "south" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_tree(path, content, sealed=sealed)

    monkeypatch.setattr("promptfed.sites.worker.write_tree", full)
    out, federation = begin(tmp_path, "pfedpt", "rounds=2", federation=Federation(NAMES, min_sites=2))
    with caplog.at_level(logging.CRITICAL):
        coordinator.conduct(out, federation, exchange(tmp_path), ignore)
    found: list[Any] = lines(out)
    assert [line["clients"] for line in found] == [[0, 2], [0, 2]]
    assert found[0]["sites"]["refused"]["south"] == [f"it says: {FULL}"]


def test_what_a_site_writes_is_its_owners_alone(tmp_path: Path) -> None:
    answer, home = hello(tmp_path)
    assert "error" not in answer.head
    run = home / "runs" / "x"
    for folder in (home / "runs", run):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "audit.jsonl").stat().st_mode) == 0o600


def ask_on(site: RealSite, told: list[int]) -> None:
    """Ask again and again, and note the record of each answer."""
    while True:
        told.append(site.ask("hello").head["audit"]["n"])


@pytest.mark.real_processes
def test_a_sites_process_sends_nothing_unrecorded_and_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    site, told = RealSite(tmp_path, recipe("fedavg")), list[int]()
    (site.home / "audit.jsonl").symlink_to("/dev/full")
    with site.at_work() as child:
        refused = site.ask("hello")
        assert (refused.head["error"], refused.tree) == (FULL, {})
        (site.home / "audit.jsonl").unlink()
        assert "error" not in site.ask("hello").head
        assert child.process is not None
        threading.Timer(0.3, child.process.kill).start()  # while it answers
        with pytest.raises(OSError, match="its worker ended"):
            ask_on(site, told)
        found = check_audit(site.home)
        assert found.problems == []
        assert found.last.number in (told[-1], told[-1] + 1)
        assert site.ask("hello").head["audit"]["n"] == found.last.number + 1
    for path in (site.home / "worker.log", site.home / "audit.jsonl", *(site.home / "runs").rglob("*.*")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (site.home / "runs", site.home / "runs" / "x"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_processes_of_a_site_write_private_files_and_logs(tmp_path: Path) -> None:
    code = f"import sys; open({str(tmp_path / 'made')!r}, 'w').close(); sys.stdin.buffer.read(8)"
    child = Child([sys.executable, "-c", code], tmp_path / "home" / "worker.log")
    with pytest.raises(OSError, match="its worker ended"):
        child.ask(b"")
    child.close()
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "home" / "worker.log").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700


def test_the_coordinators_run_folder_is_private(tmp_path: Path) -> None:
    out, _ = begin(tmp_path, "fedavg")
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
