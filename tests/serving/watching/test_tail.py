"""A growing rounds.jsonl: what is appended, torn, cut back, damaged or gone."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from promptfed.results.folder.parts import parse_round
from promptfed.serving.watching import tail
from promptfed.serving.watching.tail import Tail
from support.fake_runs import one_round
from support.growing_runs import CLIENTS, FLOATS, begun, grow


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the lines that were read."""
    numbers: list[int] = []

    def counting(path: Path, number: int, line: str) -> Any:
        numbers.append(number)
        return parse_round(path, number, line)

    monkeypatch.setattr(tail, "parse_round", counting)
    return numbers


def line(number: int, level: float = 0.7) -> bytes:
    return json.dumps(one_round(number, level, CLIENTS, FLOATS)).encode() + b"\n"


def test_only_what_was_appended_is_read(tmp_path: Path, parsed: list[int]) -> None:
    record = begun(tmp_path / "run")
    found = Tail(tmp_path / "run" / "rounds.jsonl")
    assert found.refresh()
    assert parsed == [1, 2, 3, 4]
    assert not found.refresh()
    grow(record, 2)
    assert found.refresh()
    assert parsed == [1, 2, 3, 4, 5, 6]
    last = found.points[6]
    assert (last.mean, last.worst, last.best) == (0.695, 0.66, 0.74)
    assert (last.sent, last.seconds) == (2 * 4 * FLOATS * 2, 1.5)
    assert found.points[5].mean is None


def test_a_line_counts_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    whole = line(2)
    path.write_bytes(line(1) + whole[:40])
    found = Tail(path)
    found.refresh()
    assert (list(found.points), found.fault) == ([1], "")
    with path.open("ab") as file:
        file.write(whole[40:-1])
    found.refresh()
    assert list(found.points) == [1]
    with path.open("ab") as file:
        file.write(b"\n")
    found.refresh()
    assert (list(found.points), found.fault) == ([1, 2], "")


def test_a_resumed_run_is_read_again(tmp_path: Path) -> None:
    record = begun(tmp_path / "run", done=6)
    found = Tail(tmp_path / "run" / "rounds.jsonl")
    found.refresh()
    record.rewind(3)
    assert found.refresh()
    assert list(found.points) == [1, 2, 3]
    grow(record, 2)
    found.refresh()
    assert list(found.points) == [1, 2, 3, 4, 5]
    record.rewind(2)
    grow(record, 6, level=0.9)  # now it is longer than when we last looked
    found.refresh()
    assert list(found.points) == list(range(1, 9))
    assert found.points[4].mean == pytest.approx(0.895)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_it_reads_what_a_fresh_reader_would(tmp_path: Path, seed: int) -> None:
    draw, path = random.Random(seed), tmp_path / "rounds.jsonl"
    content = bytearray()
    found = Tail(path)
    for step in range(60):
        match draw.choice(("add", "add", "tear", "cut", "cut in place", "look")):
            case "add":
                content = content[: content.rfind(b"\n") + 1]
                content += line(content.count(b"\n") + 1, draw.random() / 2 + 0.2)
            case "tear":
                content += line(content.count(b"\n") + 1)[: draw.randrange(1, 60)]
            case "look":
                found.refresh()
            case how:
                lines = bytes(content).splitlines(keepends=True)
                content = bytearray(b"".join(lines[: draw.randrange(len(lines) + 1)]))
                if how == "cut":
                    path.unlink(missing_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(step, step))  # as if time had passed
    found.refresh()
    fresh = Tail(path)
    fresh.refresh()
    assert (found.points, found.fault) == (fresh.points, fresh.fault)


def test_damage_is_one_sentence_until_it_is_mended(tmp_path: Path, parsed: list[int]) -> None:
    record = begun(tmp_path / "run")
    grow(record, 2)
    path = tmp_path / "run" / "rounds.jsonl"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"round": 5', b'"round": 7'))
    found = Tail(path)
    found.refresh()
    assert list(found.points) == [1, 2, 3, 4]
    assert found.fault.startswith(f'"{path}" is damaged in line 5: it does not match its checksum')
    grow(record)
    parsed.clear()
    found.refresh()
    assert parsed == [5]  # not all of it, each time it grows
    path.write_bytes(good)
    found.refresh()
    assert (len(found.points), found.fault) == (6, "")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\xff\xfe\n", "line 1 is not text"),
        (b"[]\n", "is not a round"),
        (b"null\n", "is not a round"),
        (b"[" * 100_000 + b"\n", "is not a round"),
        (line(1).replace(b'"round": 1', b'"round": 0'), "its number is 0"),
        (line(1).replace(b'"round": 1', b'"round": 1e999'), "is not a round"),
        (line(1).replace(b'"mean": 0.', b'"mean": 1e300, "m": 0.', 1), "an accuracy is not between 0 and 1"),
        (line(1).replace(b'"clients": [', b'"clients": 5, "c": [', 1), "is not a round"),
        (line(1).replace(b'"measures": {', b'"measures": [1], "m": {', 1), "is not a round"),
    ],
)
def test_what_is_no_round_is_said(tmp_path: Path, raw: bytes, words: str) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(raw)
    found = Tail(path)
    found.refresh()
    assert words in found.fault
    assert found.fault.endswith(".")
    assert found.points == {}


def test_a_file_that_goes_and_comes(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    found = Tail(path)
    assert not found.refresh()
    path.write_bytes(line(1))
    assert found.refresh()
    path.unlink()
    assert found.refresh()
    assert found.points == {}
    os.mkfifo(path)  # reading it would wait for ever
    assert not found.refresh()
    path.unlink()
    path.write_bytes(line(1) + line(2))
    assert found.refresh()
    assert list(found.points) == [1, 2]
