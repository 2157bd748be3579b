"""The audit log: whatever was changed, moved or removed is named; nothing leaves without its record."""

import errno
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from promptfed.cli.sites import app
from promptfed.core.errors import PromptFedError
from promptfed.sites import audit_log, wire
from promptfed.sites.audit_check import check_audit, read_known, totals
from promptfed.sites.audit_log import GENESIS, AuditLog, Mark, describe, digest_of, older_files
from promptfed.sites.identity import signing_key
from promptfed.sites.wire import Message, Refused
from support.curious import Prober
from support.three_sites import OPEN, recipe, workers

COUNT = 14


def message(number: int) -> Message:
    """Return an answer as a site gives it."""
    head = {"run": f"run-{number // 8}", "round": number, "kind": "fit", "nonce": f"{number:032x}", "images": 5}
    return Message(head, {"up.weight": torch.full((2, 3), float(number))})


def write_log(home: Path, count: int = COUNT) -> list[Mark]:
    """Write a log of so many records."""
    log = AuditLog(home, "north")
    extra: dict[str, object] = {"to": "a" * 64, "terms": None, "recipe": "b" * 64, "guards": {}}
    return [log.append({**extra, **describe(message(number))}) for number in range(count)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home of a site with a log in several files."""
    home, largest = tmp_path_factory.mktemp("audit") / "home", audit_log.LARGEST
    audit_log.LARGEST = 4000
    try:
        write_log(home)
    finally:
        audit_log.LARGEST = largest
    assert len(older_files(home)) == 2
    return home


@pytest.fixture
def home(sound: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may spoil."""
    return Path(shutil.copytree(sound, tmp_path / "home"))


def files(home: Path) -> list[Path]:
    """Return the files of a log, oldest first."""
    return [*older_files(home), home / audit_log.FILE]


def lines(home: Path) -> list[bytes]:
    """Return all lines, in order."""
    return b"".join(path.read_bytes() for path in files(home)).splitlines(keepends=True)


def rewrite(home: Path, content: list[bytes]) -> None:
    """Put these lines in place of the log's, in one file."""
    for path in older_files(home):
        path.unlink()
    (home / audit_log.FILE).write_bytes(b"".join(content))


# -- what is in it ----------------------------------------------------------------------------------------------------


def test_a_record_says_what_left_and_holds_no_value(home: Path) -> None:
    found = check_audit(home)
    assert found.problems == []
    assert [record["n"] for record in found.records] == list(range(1, COUNT + 1))
    last = found.records[-1]
    assert last["tensors"] == {"up.weight": {"type": "float32", "shape": [2, 3]}}
    assert (last["bytes"], last["head"], last["digest"]) == (24, {"images": 5}, digest_of(message(COUNT - 1)))
    assert stat.S_IMODE((home / audit_log.FILE).stat().st_mode) == 0o600
    assert [(run.run, run.records, run.kinds, run.bytes) for run in totals(found.records)] == [
        ("run-0", 8, {"fit": 8}, 192),
        ("run-1", 6, {"fit": 6}, 144),
    ]


def test_what_a_site_sends_is_in_its_log_with_terms_cost_and_refusals(tmp_path: Path) -> None:
    noisy = ("guards.clip=0.5", "guards.noise=20.0", "guards.entropy=system", "guards.budget=3")
    prober = Prober(tmp_path, recipe("fedavg", *noisy), OPEN)
    answer = prober.fit(1)
    assert "error" not in answer.head
    assert prober.ask("anything").head["error"] == "the request is of an unknown kind"
    found = check_audit(tmp_path / "home" / "north")
    assert found.problems == []
    record = next(one for one in found.records if one["kind"] == "fit")
    told = answer.head.pop("audit")
    assert record["digest"] == digest_of(answer)
    assert (record["guards"]["clip"], record["guards"]["noise"]) == (0.5, 20.0)
    assert record["guards"]["epsilon"] == pytest.approx(record["guards"]["epsilon_for_life"])
    assert 0 < record["guards"]["epsilon"] < 3
    assert record["terms"] is not None
    assert told["n"] == record["n"]
    assert [one["error"] for one in found.records if one["error"]] == ["the request is of an unknown kind"]


# -- whatever is changed is noticed -----------------------------------------------------------------------------------


def test_any_flipped_byte_is_noticed(home: Path) -> None:
    draw = random.Random(0)
    for path in [*files(home), home / audit_log.HEAD]:
        content = path.read_bytes()
        for _ in range(60):
            place, change = draw.randrange(len(content)), draw.randrange(1, 256)
            changed = bytearray(content)
            changed[place] ^= change
            path.write_bytes(changed)
            assert check_audit(home).problems, (path.name, place, change)
        path.write_bytes(content)
    assert check_audit(home).problems == []


@pytest.mark.slow
def test_every_flipped_byte_of_a_line_is_noticed(home: Path) -> None:
    rewrite(home, lines(home))
    content, path = (home / audit_log.FILE).read_bytes(), home / audit_log.FILE
    start = content.index(b"\n") + 1
    for place in range(start, content.index(b"\n", start) + 1):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        assert check_audit(home).problems, place


def test_any_line_that_is_missing_is_named(home: Path) -> None:
    whole = lines(home)
    for gone in range(COUNT - 1):
        rewrite(home, whole[:gone] + whole[gone + 1 :])
        problems = check_audit(home).problems
        assert problems == [f"record {gone + 1} should come before line {gone + 1} of audit.jsonl, and is missing"]
    rewrite(home, whole[:5] + whole[8:])
    assert check_audit(home).problems == ["records 6 to 8 should come before line 6 of audit.jsonl, and are missing"]


@pytest.mark.parametrize("kept", [0, 1, COUNT - 1])
def test_a_missing_end_is_noticed(kept: int, home: Path) -> None:
    rewrite(home, lines(home)[:kept])
    assert check_audit(home).problems == [f"the log ends at record {kept}, and audit.head says that there were {COUNT}"]


def test_lines_that_changed_places_are_named(home: Path) -> None:
    whole = lines(home)
    for first in range(COUNT - 1):
        swapped = [*whole[:first], whole[first + 1], whole[first], *whole[first + 2 :]]
        rewrite(home, swapped)
        assert any(f"line {first + 2} of audit.jsonl is out of order" in one for one in check_audit(home).problems)
    rewrite(home, [*whole, whole[3]])
    assert check_audit(home).problems == [
        "line 15 of audit.jsonl is out of order: record 4 comes where record 15 should be",
    ]


def test_a_record_written_with_another_key_is_noticed(home: Path, tmp_path: Path) -> None:
    write_log(tmp_path / "other")
    forged = lines(tmp_path / "other")
    whole = lines(home)
    rewrite(home, [*whole[:3], forged[3], *whole[4:]])
    problems = check_audit(home).problems
    assert "record 4 is not signed with this site's key" in problems[0]
    for name in (audit_log.FILE, audit_log.HEAD):  # a whole other log
        shutil.copy(tmp_path / "other" / name, home / name)
    assert len(check_audit(home).problems) >= COUNT


def test_a_log_that_was_set_back_as_a_whole_does_not_fit_what_the_coordinator_was_told(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_log(home, 3)
    backup = shutil.copytree(home, tmp_path / "backup")
    known = write_log(home, 2)[-1]
    assert check_audit(home, known=known).problems == []
    shutil.rmtree(home)
    backup.rename(home)
    assert check_audit(home).problems == []
    assert check_audit(home, known=known).problems == [
        "the log ends at record 3, and the coordinator was told of record 5"
    ]
    write_log(home, 2)  # it goes on as if nothing had been
    assert check_audit(home, known=known).problems == [
        "line 5 of audit.jsonl is not the record 5 that the coordinator was told of"
    ]


def test_older_files_may_lie_elsewhere_if_that_is_said(home: Path) -> None:
    older_files(home)[0].unlink()
    first = check_audit(home)
    missing = first.records[0]["n"]
    assert first.problems == [
        f"records 1 to {missing - 1} should come before line 1 of {older_files(home)[0].name}, and are missing"
    ]
    assert check_audit(home, since=missing).problems == []


# -- crashes and full disks -------------------------------------------------------------------------------------------


def test_a_crash_at_any_byte_of_a_record_leaves_a_sound_log(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    write_log(before, 2)
    shutil.copytree(before, after)
    write_log(after, 1)
    record = lines(after)[2]
    for length in [*range(1, len(record), 37), len(record) - 1, len(record)]:
        home = Path(shutil.copytree(before, tmp_path / "home"))
        with (home / audit_log.FILE).open("ab") as file:
            file.write(record[:length])
        found = check_audit(home)
        assert (found.problems, found.torn) == ([], length < len(record))
        marks = write_log(home, 1)
        assert marks[0].number == 3 + (length == len(record))
        assert check_audit(home).problems == []
        shutil.rmtree(home)


def test_the_half_of_a_record_that_had_left_is_no_crash(home: Path) -> None:
    path = home / audit_log.FILE
    path.write_bytes(path.read_bytes()[:-9])
    assert check_audit(home).problems == [f"the log ends at record {COUNT - 1}, and audit.head says that there were 14"]
    with pytest.raises(Refused, match="its audit log does not check out"):
        write_log(home, 1)


@pytest.mark.parametrize("spoil", ["end", "head", "all"])
def test_a_site_whose_log_was_tampered_with_sends_nothing(spoil: str, tmp_path: Path) -> None:
    worker = workers(tmp_path)["north"]
    head = {"run": "x", "round": 0, "nonce": "0", "kind": "hello", "site": "north", "client": 0, "classes": []}
    asked = wire.pack(Message(head | {"recipe": recipe("fedavg").to_toml()}, {}))
    for _ in range(2):
        assert "error" not in wire.unpack(worker.answer(asked), 2**30).head
    path = worker.home / audit_log.FILE
    if spoil == "end":
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    elif spoil == "all":
        path.unlink()
    else:
        (worker.home / audit_log.HEAD).write_text("{}")
    answer = wire.unpack(workers(tmp_path)["north"].answer(asked), 2**30)
    assert answer.head["error"] == audit_log.DAMAGED
    assert answer.tree == {}


def test_a_disk_that_fills_up_leaves_the_log_as_it_was(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, left = os.write, [300]

    def full(file: int, content: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = honest(file, content[: left[0]])
        left[0] -= written
        return written

    log = AuditLog(home, "north")
    before = lines(home)
    monkeypatch.setattr("promptfed.sites.audit_log.os.write", full)
    with pytest.raises(OSError, match="No space left"):
        log.append(describe(message(20)))
    assert lines(home) == before
    left[0] = 10**6
    assert log.append(describe(message(20))).number == COUNT + 1
    assert check_audit(home).problems == []


def test_what_left_without_a_record_is_counted_by_the_next_one(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg"), OPEN)
    home = tmp_path / "home" / "north"
    (home / audit_log.FILE).symlink_to("/dev/full")
    for _ in range(2):
        assert "its disk is full" in prober.ask("hello").head["error"]
    (home / audit_log.FILE).unlink()
    assert "error" not in prober.ask("hello").head
    assert "error" not in prober.ask("hello", run="y", nonce="x" * 10**5).head
    found = check_audit(home)
    assert (found.problems, [record.get("unrecorded") for record in found.records]) == ([], [2, None])
    assert found.records[1]["nonce"].startswith("sha256:")  # nobody fills the disk by long names


WRITER = """
import os
import sys
from pathlib import Path
from promptfed.sites.audit_log import AuditLog
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        log = AuditLog(Path(sys.argv[1]), "north")
        print(os.getpid(), flush=True)
        while True:
            print(log.append({"run": "x", "filler": "y" * 3000}).number, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@pytest.mark.slow  # test_full_disks.py kills the process of a site once
def test_kill_9_while_writing_loses_no_record_that_was_told(tmp_path: Path) -> None:
    home, pipe = tmp_path / "home", subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", WRITER, str(home)], stdin=pipe, stdout=pipe, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for kill in range(5):
            print("begin", file=writer.stdin, flush=True)
            child, told = int(writer.stdout.readline()), 0
            for _ in range(1 + kill):
                told = int(writer.stdout.readline())
            os.kill(child, signal.SIGKILL)
            while (line := writer.stdout.readline().strip()) != "gone":
                told = int(line)
            found = check_audit(home)
            assert found.problems == []
            assert found.last.number in (told, told + 1)


# -- reading it -------------------------------------------------------------------------------------------------------


def said(*words: object) -> Iterator[str]:
    """Run `sites audit`, and yield its exit code and all that it says."""
    done = CliRunner().invoke(app, ["audit", *map(str, words)])
    yield str(done.exit_code)
    yield " ".join(done.output.split())


def test_the_command_shows_totals_and_names_what_is_wrong(home: Path) -> None:
    code, text = said(home)
    assert code == "0"
    assert "run-0" in text
    assert "8 fit" in text
    assert f"14 records, all as they were written; the last is 14:{check_audit(home).last.hash}" in text
    code, text = said(home, "--json")
    content = json.loads(text)
    assert content["whole"] is True
    assert len(content["records"]) == COUNT
    rewrite(home, lines(home)[1:])
    code, text = said(home)
    assert code == "1"
    assert "Record 1 should come before line 1 of audit.jsonl, and is missing." in text
    code, text = said(home, "--json")
    assert (code, json.loads(text)["whole"]) == ("1", False)


def test_elsewhere_the_key_is_given(home: Path) -> None:
    known = f"14:{check_audit(home).last.hash}"
    key = signing_key(home).public_key().public_bytes_raw().hex()
    (home / "identity.pem").unlink()
    with pytest.raises(PromptFedError, match="give the site's key by --key"):
        check_audit(home)
    assert next(said(home, "--key", key, "--known", known)) == "0"
    assert next(said(home, "--key", "00" * 32)) == "1"


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="holds no audit log"):
        check_audit(tmp_path)
    with pytest.raises(PromptFedError, match="is not a record as sites status prints it"):
        read_known("12:abc")
    assert Mark(0, GENESIS) == audit_log.read_head(tmp_path)
