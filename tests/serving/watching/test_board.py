"""The runs below a folder: which there are, how they are, and what is drawn of them."""

import json
import os
import shutil
from pathlib import Path

import pytest

from promptfed.core.files import held, write_sealed
from promptfed.results import read_run
from promptfed.results.report.groups import group_runs
from promptfed.results.report.sections import RESULTS, drawn
from promptfed.serving.watching import finding, tail, watched
from promptfed.serving.watching.board import Board, View
from promptfed.serving.watching.watched import Entry, in_words
from support.fake_runs import write_run
from support.growing_runs import age, begun, grow


def entries(board: Board) -> dict[str, Entry]:
    """Look at everything once more, and return it by name."""
    while board.refresh():
        pass
    return {entry.name: entry for _, entry in board.view.entries.values()}


# -- states -----------------------------------------------------------------------------------------------------------


def test_a_run_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    folder, board = tmp_path / "deep" / "run", Board(tmp_path, sparing=0)
    assert entries(board) == {}
    record = begun(folder, done=0)
    with held(folder / ".lock", wait=False):
        (folder / "rounds.jsonl").unlink()
        assert entries(board)["deep/run"].state == "starting"
        grow(record, 4)
        found = entries(board)["deep/run"]
        assert (found.state, found.round, found.rounds) == ("running", 4, 10)
        assert (found.mean, found.worst, found.sent) == ("69.50", "66.00", "492 kB")
        assert found.left == "under a minute"
        assert found.about == "pfedpt on fashion-shops, cnn, seed 0"
        assert found.command == ""
    found = entries(board)["deep/run"]  # nobody holds the lock any more
    assert (found.state, found.left) == ("stopped", "")
    assert found.command == f"promptfed run --resume {folder}"
    with held(folder / ".lock", wait=False):
        record.rewind(2)
        assert entries(board)["deep/run"].round == 2
        grow(record, 8, level=0.8)
        done = write_run(tmp_path / ".hidden" / "run", rounds=10, clients=4, adapted=0.9)
        shutil.copy(done / "summary.json", folder)
        found = entries(board)["deep/run"]
    assert (found.state, found.round, found.mean, found.left) == ("finished", 10, "89.50", "")
    assert found.about == "pfedpt on fashion-shops, cnn, 4 clients, seed 0"
    assert board.view.order == (found.key,)


def test_without_a_lock_time_tells_who_is_at_work(tmp_path: Path) -> None:
    begun(tmp_path / "now")
    begun(tmp_path / "long-ago")
    begun(tmp_path / "before-its-first-round", done=0)
    (tmp_path / "before-its-first-round" / "rounds.jsonl").unlink()
    age(tmp_path / "long-ago")
    age(tmp_path / "before-its-first-round", 300)
    states = {name: entry.state for name, entry in entries(Board(tmp_path, sparing=0)).items()}
    assert states == {"now": "running", "long-ago": "stopped", "before-its-first-round": "starting"}


def test_where_locks_are_not_shown_it_waits_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "run")
    age(tmp_path / "run", 30)
    assert entries(Board(tmp_path))["run"].state == "stopped"
    monkeypatch.setattr(finding, "LOCKS", tmp_path / "nothing")
    assert entries(Board(tmp_path))["run"].state == "running"


def test_damage_is_shown_and_the_others_live(tmp_path: Path) -> None:
    for name in ("good", "recipe", "gone", "summary", "strange", "rounds", "lost"):
        write_run(tmp_path / name, rounds=4, clients=4)
    (tmp_path / "recipe" / "recipe.toml").write_text("rounds = [\n")
    (tmp_path / "gone" / "recipe.toml").unlink()
    (tmp_path / "summary" / "summary.json").write_text('{"method": ')
    (tmp_path / "strange" / "summary.json").write_text('{"accuracy": 3}')
    text = (tmp_path / "rounds" / "rounds.jsonl").read_text()
    (tmp_path / "rounds" / "rounds.jsonl").write_text(text.replace("null", "nul", 1))
    (tmp_path / "lost" / "rounds.jsonl").write_text("".join(text.splitlines(keepends=True)[:2]))
    found = entries(Board(tmp_path, sparing=0))
    assert {name for name, entry in found.items() if entry.state == "damaged"} == found.keys() - {"good"}
    notes = {name: entry.note for name, entry in found.items()}
    assert notes["good"] == ""
    assert "is not valid TOML" in notes["recipe"]
    assert notes["gone"] == "recipe.toml is missing."
    assert "is not valid JSON" in notes["summary"]
    assert "is not a summary" in notes["strange"]
    assert "is damaged: line 1 is not valid JSON" in notes["rounds"]
    assert notes["lost"] == "Round 4 is finished, but its line in rounds.jsonl is missing or torn."
    assert [note for name, note in notes.items() if name != "good" and note[-1] not in ".?"] == []


def test_a_committed_round_must_be_there_once_nobody_works(tmp_path: Path) -> None:
    begun(tmp_path / "run", done=4)
    write_sealed(tmp_path / "run" / "checkpoint" / "state.json", {"round": 5})
    board = Board(tmp_path, sparing=0)
    with held(tmp_path / "run" / ".lock", wait=False):
        assert entries(board)["run"].state == "running"
    assert entries(board)["run"].note == "Round 5 is finished, but its line in rounds.jsonl is missing or torn."


def test_a_run_over_sites_says_why_it_ended(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    (tmp_path / "run" / "federation.json").write_text('{"sites": ["a"]}')
    (tmp_path / "run" / "failed.json").write_text('{"reason": "A site has gone."}')
    age(tmp_path / "run")
    found = entries(Board(tmp_path, sparing=0))["run"]
    assert (found.state, found.note, found.command) == ("stopped", "A site has gone.", "")


# -- finding ----------------------------------------------------------------------------------------------------------


def test_runs_come_and_go(tmp_path: Path) -> None:
    board = Board(tmp_path, sparing=0)
    write_run(tmp_path / "one", rounds=2)
    write_run(tmp_path / "one" / "inside", rounds=2)
    write_run(tmp_path / "two", rounds=2)
    (tmp_path / "linked").symlink_to(tmp_path / "two")
    assert entries(board).keys() == {"one", "two"}
    shutil.rmtree(tmp_path / "one")
    assert entries(board).keys() == {"two"}
    shutil.rmtree(tmp_path)
    assert entries(board) == {}
    write_run(tmp_path / "three", rounds=2)
    assert entries(board).keys() == {"three"}
    alone = Board(tmp_path / "three", sparing=0)
    assert entries(alone).keys() == {"three"}


def test_what_has_not_changed_is_neither_listed_nor_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        write_run(tmp_path / "group" / f"run-{number}", rounds=2)
    age(tmp_path)
    board = Board(tmp_path, sparing=0)
    assert len(entries(board)) == 30
    before = board.view

    def never(*_: object) -> None:
        raise AssertionError("this was read again")

    monkeypatch.setattr(finding, "_listed", never)
    monkeypatch.setattr(tail, "parse_round", never)
    monkeypatch.setattr(watched, "read_json", never)
    monkeypatch.setattr(watched, "read_text", never)
    assert len(entries(board)) == 30
    assert board.view is before


def test_many_runs_are_read_in_slices(tmp_path: Path) -> None:
    for number in range(3):
        write_run(tmp_path / f"run-{number}", rounds=2)
    board = Board(tmp_path, sparing=0)
    seen = []
    while board.refresh(seconds=0):
        seen.append(board.view.unread)
    assert seen == [2, 1]
    assert board.view.unread == 0


def test_names_are_no_harm(tmp_path: Path) -> None:
    names = ["<script>alert(1)<", "a b&c", "\x1b[31mred", os.fsdecode(b"\xff\xfe")]
    for name in names:
        write_run(tmp_path / name, rounds=4, method="<i>")
    board = Board(tmp_path, sparing=0)
    found = entries(board)
    assert found.keys() == {"<script>alert(1)<", "a b&c", "\ufffd[31mred", "\ufffd\ufffd"}
    assert all(entry.key.isalnum() for entry in found.values())
    pictures = board.draw([entry.key for entry in found.values()])
    assert "<script" not in pictures["wide"]
    assert "&lt;script&gt;alert(1)&lt;" in pictures["wide"]
    json.dumps(board.view.since(0)).encode()


# -- what is new, and what is drawn -----------------------------------------------------------------------------------


def test_only_what_is_new_is_told(tmp_path: Path) -> None:
    record = begun(tmp_path / "a")
    begun(tmp_path / "b")
    board = Board(tmp_path, sparing=0)
    entries(board)
    first = board.view
    told = first.since(0)
    assert (len(told["runs"]), len(told["order"]), told["unread"]) == (2, 2, 0)
    grow(record)
    entries(board)
    told = board.view.since(first.version)
    assert [(one["name"], one["round"]) for one in told["runs"]] == [("a", 5)]
    assert "order" not in told
    assert board.view.since(board.view.version)["runs"] == []
    assert View().since(0) == {"runs": [], "unread": 0}


def test_curves_are_those_of_the_report(tmp_path: Path) -> None:
    make = {"rounds": 8, "clients": 6, "newcomers": 2, "join_rounds": 2}
    for name, changes in (("pfedpt", make), ("fedavg", {"rounds": 6, "level": 0.6})):
        write_run(tmp_path / name, method=name, **changes)
    board = Board(tmp_path, sparing=0)
    keys = {name: entry.key for name, entry in entries(board).items()}
    for name in keys:
        (section,) = drawn([one for one in RESULTS if one.name == "curves"], group_runs([read_run(tmp_path / name)]))
        (figure,) = section.figures
        mine = board.draw([keys[name]])
        assert (mine["wide"], mine["narrow"], mine["caption"]) == (figure.wide, figure.narrow, figure.caption)
        assert [key["text"] for key in mine["keys"]] == [key.text for key in figure.keys]
    both = board.draw([keys["pfedpt"], "", keys["fedavg"], "unknown"])
    assert [(key["text"], key["series"]) for key in both["keys"]] == [("pfedpt", 0), ("fedavg", 2)]
    assert board.draw([]) == board.draw(["unknown"]) == {"keys": [], "wide": "", "narrow": "", "caption": ""}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (20, "under a minute"),
        (61, "1 min"),
        (3600, "1 h"),
        (3660, "1 h 1 min"),
        (86400, "1 day"),
        (200_000, "2 days 7 h"),
    ],
)
def test_times_are_told_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
