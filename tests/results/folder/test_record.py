"""The run folder: files written whole, lines that count, and the state a run goes on from."""

import json
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.core.files import sealed_toml, unsealed, unsealed_toml, write_json, write_text
from promptfed.results.folder.record import FORMAT, Line, Record

STATE: Line = {"round": 2, "recipe": "r", "partition": "p", "server": {"file": "server-2", "crc32": 1}, "personal": {}}
# each line with the CRC-32 of all that comes before the name of the checksum
FIRST, SECOND, THIRD = (
    f'{{"round": {number}, "crc32": "{checksum}"}}'
    for number, checksum in ((1, "067c470d"), (2, "043af954"), (3, "05f89363"))
)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record.create(tmp_path / "run", "seed = 3\n", {"python": "3"})


def test_create(record: Record) -> None:
    assert (record.folder / "recipe.toml").read_text() == sealed_toml("seed = 3\n")
    assert unsealed((record.folder / "env.json").read_text()) == {"python": "3"}
    assert record.checkpoint.is_dir()
    assert record.rounds == []


def test_create_in_an_empty_folder(tmp_path: Path) -> None:
    Record.create(tmp_path, "", {})
    assert (tmp_path / "recipe.toml").exists()


def test_create_refuses_what_is_there(record: Record) -> None:
    with pytest.raises(PromptFedError, match="is not empty"):
        Record.create(record.folder, "seed = 4\n", {})
    assert unsealed_toml((record.folder / "recipe.toml").read_text()) == "seed = 3\n"


def test_reopen(record: Record, tmp_path: Path) -> None:
    assert Record.reopen(record.folder).folder == record.folder
    with pytest.raises(PromptFedError, match="holds no run to resume"):
        Record.reopen(tmp_path)


def test_append_and_rewind(record: Record) -> None:
    for number in (1, 2, 3):
        record.append({"round": number})
    path = record.folder / "rounds.jsonl"
    assert path.read_text() == "".join(f"{line}\n" for line in (FIRST, SECOND, THIRD))
    again = Record.reopen(record.folder)
    again.rewind(2)
    assert again.rounds == [{"round": 1}, {"round": 2}]
    assert path.read_text() == f"{FIRST}\n{SECOND}\n"
    again.append({"round": 3})
    assert path.read_text().count("\n") == 3


def test_lines_of_two_processes_are_refused(record: Record) -> None:
    for number in (1, 2, 2, 3):
        record.append({"round": number})
    assert len(Record.reopen(record.folder).read(2)) == 2
    with pytest.raises(PromptFedError, match="is damaged within its first 3 rounds"):
        Record.reopen(record.folder).read(3)


def test_a_folder_is_held_by_one(record: Record) -> None:
    with record.held():
        with (
            pytest.raises(PromptFedError, match=r"Another process is using .*run; wait"),
            Record.reopen(record.folder).held(),
        ):
            pass
        record.append({"round": 1})
    with Record.reopen(record.folder).held():
        assert len(record.rounds) == 1


def test_create_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(PromptFedError, match="is a file, not a folder"):
        Record.create(tmp_path / "file", "", {})


def test_reading_leaves_the_file_as_it_is(record: Record) -> None:
    for number in (1, 2, 3):
        record.append({"round": number})
    path = record.folder / "rounds.jsonl"
    before = path.read_bytes(), path.stat().st_mtime_ns, record.folder.stat().st_mtime_ns
    again = Record(record.folder)
    assert again.read(2) == [FIRST, SECOND]
    assert again.rounds == [{"round": 1}, {"round": 2}]
    assert before == (path.read_bytes(), path.stat().st_mtime_ns, record.folder.stat().st_mtime_ns)


def test_rewind_to_nothing(record: Record) -> None:
    record.append({"round": 1})
    record.rewind(0)
    assert record.rounds == []
    assert (record.folder / "rounds.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [('{"round": 1}\n', "holds 1 rounds, the checkpoint 2"), ('{"round": 1}\n{"rou', "damaged within its first 2")],
)
def test_rewind_refuses_what_it_cannot_give(record: Record, text: str, sentence: str) -> None:
    path = record.folder / "rounds.jsonl"
    path.write_text(text)
    with pytest.raises(PromptFedError, match=sentence):
        record.rewind(2)
    assert path.read_text() == text


def test_no_state_before_the_first_commit(record: Record) -> None:
    assert record.state("r", "p") is None


def test_commit_and_state(record: Record) -> None:
    record.append({"round": 1})
    record.commit(STATE)
    assert record.state("r", "p") == STATE | {"format": FORMAT}


def test_commit_removes_what_it_does_not_name(record: Record) -> None:
    for name in ("server-1", "server-2", "personal-1", "personal-2", ".state.json.part"):
        (record.checkpoint / name).write_text("x")
    record.commit(STATE | {"personal": {"personal-2": {}}})
    assert {path.name for path in record.checkpoint.iterdir()} == {"server-2", "personal-2", "state.json"}


@pytest.mark.parametrize(
    ("recipe", "partition", "sentence"), [("x", "p", "another recipe"), ("r", "x", "another partition")]
)
def test_a_foreign_state_is_refused(record: Record, recipe: str, partition: str, sentence: str) -> None:
    record.commit(STATE)
    with pytest.raises(PromptFedError, match=sentence):
        record.state(recipe, partition)


@pytest.mark.parametrize("key", ["format", "recipe", "partition", "round", "server", "personal"])
def test_a_state_that_lacks_something_is_refused(record: Record, key: str) -> None:
    record.commit(STATE)
    path = record.checkpoint / "state.json"
    state = json.loads(path.read_text())
    del state[key]
    path.write_text(json.dumps(state))
    with pytest.raises(PromptFedError, match="is damaged or not a checkpoint"):
        record.state("r", "p")


def test_finish(record: Record) -> None:
    record.finish({"seed": 1})
    assert unsealed((record.folder / "summary.json").read_text()) == {"seed": 1}


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"old": 1})

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert json.loads(path.read_text()) == {"old": 1}
    assert [found.name for found in tmp_path.iterdir()] == ["file.json"]


def test_what_a_killed_process_left_is_removed_and_nothing_else(record: Record) -> None:
    left = [record.folder / ".summary.json.part", record.checkpoint / ".state.json.part"]
    others = [record.folder / ".notes.part", record.folder / "summary.json.part"]
    for path in (*left, *others):
        path.write_text("x")
    with record.held():
        assert [path.exists() for path in left] == [False, False]
    assert all(path.exists() for path in others)
