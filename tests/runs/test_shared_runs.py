"""Runs of several processes end together, with the last commit whole, and go on with any number of processes."""

import json
import os
import random
import signal
from pathlib import Path

import pytest
import torch

from promptfed.core.errors import PromptFedError
from promptfed.core.group import Group
from promptfed.core.ranks import LostError
from promptfed.core.tree import Tree
from support.ranked import RankedRun, together
from support.stopped_runs import Run, assert_same, bits
from support.tiny_runs import tiny, write_images

ROUNDS = 8


def words(images: Path, *more: str) -> list[str]:
    own = ("method.prompt_epochs=1", "per_round=3", f"rounds={ROUNDS}", "checkpoint_seconds=0")
    return ["pfedpt", *tiny(images, *own, *more)]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "tiny.npz")


@pytest.fixture(scope="module")
def straight(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of one process that never stopped."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert Run(folder, *words(images), "--out", str(folder)).end() == 0
    return folder


def test_one_run_of_two_processes(images: Path, tmp_path: Path, straight: Path) -> None:
    folder = tmp_path / "run"
    run = RankedRun(folder, 2, *words(images), "--out", str(folder))
    assert run.end() == [0, 0]
    assert (run.errors(0), run.errors(1)) == ("", "")
    assert_same(bits(folder), bits(straight))
    done, expected = (json.loads((one / "summary.json").read_text()) for one in (folder, straight))
    changing = {"seconds", "images_per_second", "peak_memory_bytes", "crc32"}
    assert {k: v for k, v in done.items() if k not in changing} == {
        k: v for k, v in expected.items() if k not in changing
    }
    assert json.loads((folder / "env.json").read_text())["processes"] == 2
    pictures = [{path.name: path.read_bytes() for path in one.rglob("*.png")} for one in (folder, straight)]
    assert pictures[0] == pictures[1] != {}


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_one_ends_all_and_loses_no_round(
    sign: signal.Signals, images: Path, tmp_path: Path, straight: Path
) -> None:
    folder = tmp_path / "run"
    run = RankedRun(folder, 2, *words(images, "checkpoint_seconds=1000"), "--out", str(folder))
    run.wait(3)
    run.send(1, sign)
    assert run.end() == [130, 130]
    assert run.errors(0) == f"Stopped. Resume with: promptfed run --resume {folder}\n"
    assert run.errors(1) == ""
    assert json.loads((folder / "checkpoint" / "state.json").read_text())["round"] == run.lines() >= 3
    assert RankedRun(folder, 3, "--resume", str(folder)).end() == [0, 0, 0]
    assert_same(bits(folder), bits(straight))


def kill_again_and_again(images: Path, folder: Path, kills: int, rounds: int) -> None:
    """Kill a random process at a random moment, so many times, and resume with another number of processes."""
    chance, killed = random.Random(kills), 0
    command = [*words(images, f"rounds={rounds}"), "--out", str(folder)]
    while killed < kills:
        size = chance.choice((1, 2, 3, 4))
        run = RankedRun(folder, size, *command)
        run.wait(run.lines() + 1)
        run.send(chance.randrange(size), signal.SIGKILL)
        codes = run.end()
        assert -signal.SIGKILL in codes, "it ended before it was killed"
        assert 0 not in codes
        killed += 1
        if (folder / "recipe.toml").exists():
            command = ["--resume", str(folder)]
    assert RankedRun(folder, 2, *command).end() == [0, 0]


def test_killed_and_resumed_by_others(images: Path, tmp_path: Path, straight: Path) -> None:
    kill_again_and_again(images, tmp_path / "run", 2, ROUNDS)
    assert_same(bits(tmp_path / "run"), bits(straight))


@pytest.mark.slow
def test_killed_twenty_times(images: Path, tmp_path: Path) -> None:
    straight = tmp_path / "straight"
    assert Run(straight, *words(images, "rounds=80"), "--out", str(straight)).end() == 0
    kill_again_and_again(images, tmp_path / "run", 20, 80)
    assert_same(bits(tmp_path / "run"), bits(straight))


def test_the_others_say_that_one_was_lost(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = RankedRun(folder, 2, *words(images, "rounds=500"), "--out", str(folder))
    run.wait(2)
    run.send(1, signal.SIGKILL)
    assert run.end() == [2, -signal.SIGKILL]
    assert "Another process of this run has ended" in run.errors(0)
    assert run.errors(0).endswith(f"Resume with: promptfed run --resume {folder}\n")


def test_what_one_refuses_is_said_once(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    run = RankedRun(folder, 2, *words(images), "--out", str(folder))
    assert run.end() == [2, 2]
    assert run.errors(0) == f"promptfed: {folder} is not empty; choose another --out.\n"
    assert run.errors(1) == ""
    typo = RankedRun(tmp_path / "typo", 2, "pfedptt")
    assert typo.end() == [2, 2]
    assert typo.errors(0).count("did you mean") == 1
    assert typo.errors(1) == ""


# -- the processes themselves -------------------------------------------------------------------------------------


def say_or_fail(group: Group, error: Exception) -> None:
    """Fail in one process while the others wait for what it has to say."""
    with group.together():
        if group.rank == 1:
            raise error
        group.told("numbers")


def fails_in_one(group: Group) -> None:
    """All raise what one raised; then they can go on together."""
    with pytest.raises(PromptFedError, match="this one has had enough") as found:
        say_or_fail(group, PromptFedError("this one has had enough"))
    assert group.knows(found.value)
    assert group.told(group.rank) == list(range(group.size))


class Picky(Exception):  # noqa: N818
    """Cannot be copied: it wants more than it keeps."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fails_strangely(group: Group) -> None:
    with pytest.raises((Picky, RuntimeError), match="1 and 2") as found:
        say_or_fail(group, Picky(1, 2))
    assert (found.type is Picky) == (group.rank == 1)
    assert group.unanimous("still here")


def hangs(group: Group, pipe: Path) -> None:
    """One process is held up until the other has lost patience."""
    if group.rank == 1:
        with pipe.open("rb") as held:
            assert held.read(1) == b"x"
        with pytest.raises(LostError, match="has ended"):
            group.told("numbers")
        return
    with pytest.raises(LostError, match="has not answered for 1 seconds"):
        group.told("numbers")
    assert not group.unanimous("still here")
    with pipe.open("wb") as held:
        held.write(b"x")


def test_who_does_not_answer_is_not_waited_for_in_vain(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert together(2, hangs, tmp_path / "pipe", patience=1) == [0, 0]


def says_much(group: Group) -> None:
    """Say more than fits in one message, and nothing at all; hand over trees of all types and shapes, or none."""
    long = "x" * (5000 * (group.rank + 1))
    assert [len(one) for one in group.told(long)] == [5000 * (rank + 1) for rank in range(group.size)]
    assert group.told(None) == [None] * group.size
    assert group.collected(long) == (["x" * 5000 * (rank + 1) for rank in range(group.size)] if group.leads else [])
    own: Tree = {
        "small": torch.arange(3, dtype=torch.uint8) + group.rank,
        "half": torch.full((2, 0, 3), 1.0, dtype=torch.bfloat16),
        "none": torch.tensor(float("nan")),
        "turned": torch.arange(6.0).view(2, 3).t() + group.rank,
    }
    found = group.gathered({} if group.rank == 2 else own, group.rank)
    assert found.notes == list(range(group.size))
    assert [list(one) for one in found.trees] == [list(own), list(own), []]
    for rank, one in enumerate(found.trees[:2]):
        assert one["small"].tolist() == [rank, rank + 1, rank + 2]
        assert (one["half"].shape, one["half"].dtype) == ((2, 0, 3), torch.bfloat16)
        assert one["none"].isnan()
        assert one["turned"].tolist() == (torch.arange(6.0).view(2, 3).t() + rank).tolist()
        assert all(value.data_ptr() % 64 == 0 for value in one.values() if value.numel())
    beyond = group.gathered(own, limit=100)
    assert not beyond.everywhere
    assert all(value.is_meta != group.leads for one in beyond.trees for value in one.values())
    assert beyond.trees[2]["turned"].shape == (3, 2)


def concludes(group: Group) -> None:
    """Conclude on the leader alone; what goes wrong there goes wrong for all."""

    def work() -> Tree:
        return {"mean": torch.full((2, 2), 7.0 + group.rank)}

    assert group.concluded(work, True)["mean"].unique().tolist() == [7.0 + group.rank]
    assert group.concluded(work, False)["mean"].unique().tolist() == [7.0]

    def fail() -> Tree:
        raise PromptFedError("no mean")

    with pytest.raises(PromptFedError, match="no mean"):
        group.concluded(fail, False)
    assert group.unanimous(3)
    assert not group.unanimous(group.rank)
    assert not group.unanimous(None if group.rank else 3)


def all_of_this(group: Group) -> None:
    for some in (says_much, concludes, fails_in_one, fails_strangely):
        some(group)


def test_what_they_say_to_each_other() -> None:
    assert together(3, all_of_this) == [0, 0, 0]
