"""One byte of a run folder is changed: whoever reads it gets what was written, or a sentence that refuses it."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.data.shares import DescribedPartition
from promptfed.federation.loop import Loop
from promptfed.federation.store import Store, read_tree, verify
from promptfed.results import read_run
from promptfed.results.folder.predictions import read_predictions
from promptfed.results.folder.record import Line, Record
from promptfed.runs import config, execution
from support.tiny_runs import tiny, write_images

FLIPS = 1000  # of each folder
UNREAD = {".lock", "report.html"}  # nothing reads a number from these


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    images = write_images(tmp_path_factory.mktemp("images") / "tiny.npz")
    return tiny(images, "backbone.depth=1", "method.size=1", "checkpoint_seconds=1000")


@pytest.fixture(scope="module")
def finished(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    execution.start(config.load_one("pfedpt", words), folder)
    return folder


@pytest.fixture(scope="module")
def stopped(words: list[str], finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that committed two rounds and was killed after the third."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    go = Loop.round

    def fail(self: Loop, t: int) -> tuple[Tree, Line]:
        if t == 2:
            raise KeyboardInterrupt
        return go(self, t)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "round", fail)
        with pytest.raises(KeyboardInterrupt):
            execution.start(config.load_one("pfedpt", words), folder)
    third = (finished / "rounds.jsonl").read_text().splitlines(keepends=True)[2]
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(third)
    return folder


class Reader:
    """What is read from a folder; files that are read slowly are read again only when they are damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recipe = config.load_one(str(folder / "recipe.toml"))

    def shown(self) -> str:
        """Return all that report, compare and load say, and the answers they are about."""
        run = read_run(self.folder)
        if run.figures_fault:
            raise PromptFedError(run.figures_fault)
        found = read_predictions(self.folder)
        answers = found and {name: np.asarray(value).tolist() for name, value in vars(found).items()}
        return repr((vars(run) | {"recipe_text": ""}, answers))  # the recipe is there as values, without comments

    def restored(self, damaged: str) -> str:
        """Return all that a run goes on from."""
        recipe = config.load_one(str(self.folder / "recipe.toml")) if damaged == "recipe.toml" else self.recipe
        held = DescribedPartition.load(self.folder / "partition.json")
        record = Record.reopen(self.folder)
        state = record.state(recipe.hash, held.partition.hash)
        assert state is not None
        lines = record.read(state["round"])
        server = record.checkpoint / state["server"]["file"]
        verify(server, state["server"]["crc32"])
        store = Store(lambda client: {}, record.checkpoint)
        store.restore(state["personal"])
        trees = [read_tree(server), *(store.get(client) for client in range(4))]
        plain = [{name: value.tolist() for name, value in one.items()} for one in trees]
        return repr((recipe, held.partition.hash, held.counts.tolist(), state, lines, record.rounds, plain))


def outcome(read: Callable[..., str], *given: Any) -> str | None:
    """Return what is read, or None where it is refused; any other exception is a traceback that a user would see."""
    try:
        return read(*given)
    except PromptFedError:
        return None


def campaign(folder: Path, seed: int, shorter: str = "") -> tuple[int, int]:
    """Change bytes one at a time; return how many were refused and how many made no difference."""
    rng, reader = random.Random(seed), Reader(folder)
    straight = reader.shown(), reader.restored("")
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in UNREAD)
    counts = [0, 0]
    for _ in range(FLIPS):
        path = rng.choice(paths)
        content = path.read_bytes()
        place, byte = rng.randrange(len(content)), rng.randrange(1, 256)
        path.write_bytes(content[:place] + bytes([content[place] ^ byte]) + content[place + 1 :])
        where = f"{path.name}, byte {place}, {content[place] ^ byte}"
        shown, restored = outcome(reader.shown), outcome(reader.restored, path.name)
        path.write_bytes(content)
        assert shown in (None, straight[0]) or (path.name == "rounds.jsonl" and shown == shorter), where
        assert restored in (None, straight[1]), where
        counts[shown is not None and restored is not None] += 1
    return counts[0], counts[1]


def test_a_finished_run(finished: Path) -> None:
    refused, same = campaign(finished, seed=1)
    assert refused > 400
    assert same > 100  # pictures and the like are not numbers


def test_a_stopped_run(stopped: Path, tmp_path: Path) -> None:
    # the third round lies beyond the commit: a damaged line of it may count as not written yet
    short = tmp_path / "run"
    shutil.copytree(stopped, short)
    lines = (short / "rounds.jsonl").read_text().splitlines(keepends=True)
    (short / "rounds.jsonl").write_text("".join(lines[:2]))
    without = Reader(short).shown().replace(str(short), str(stopped))
    refused, _ = campaign(stopped, seed=2, shorter=without)
    assert refused > 400
