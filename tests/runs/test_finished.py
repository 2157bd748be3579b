"""A finished run is opened without a trace."""

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from promptfed.backbones.painter import Painter
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task
from promptfed.runs.config import Recipe
from promptfed.runs.finished import Words, inverted, open_run
from promptfed.runs.runner import go_on
from support.inverted_runs import classified
from support.stopped_runs import same


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classified("pfedpt", tmp_path_factory.mktemp("finished"), "method.epochs=1")


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Take away the right to write any file or folder; who may write anyhow, as root may, leaves later times."""
    paths = [folder, *folder.rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def state(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Return when each file and folder was last written, and what each file holds."""
    paths = [folder, *sorted(folder.rglob("*"))]
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}


def test_a_read_only_run_is_opened(folder: Path) -> None:
    before = state(folder)
    with read_only(folder):
        run = open_run(folder)
        trees = [run.own(client) for client in range(3)]
    assert state(folder) == before
    assert run.loop.finished == 2
    assert [line["round"] for line in run.loop.record.rounds] == [1, 2]
    assert not same(trees[0][1], trees[1][1])  # each has its own frame


def test_lines_beyond_the_checkpoint_stay(folder: Path) -> None:
    path = folder / "rounds.jsonl"
    kept = path.read_text()
    path.write_text(kept + '{"round": 3, "cli')
    try:
        assert len(open_run(folder).loop.record.rounds) == 2
        assert path.read_text() == kept + '{"round": 3, "cli'
    finally:
        path.write_text(kept)


def test_a_run_that_is_over_goes_on_by_being_read(folder: Path) -> None:
    before = state(folder)
    with read_only(folder):
        done = go_on(folder)
    assert state(folder) == before
    assert done.summary == json.loads((folder / "summary.json").read_text())
    assert len(done.rounds) == 2


@dataclass(frozen=True)
class Plain(Method):
    name: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Word(Method):
    name: ClassVar[str] = "word"
    inverts: ClassVar[bool] = True


def opened(method: Method) -> Words:
    """Return the words of a run."""
    task = Task(Painter((3, 8, 8), 2), ("no", "yes"), 1)
    return Words(Path("here"), Recipe(method={"name": method.name}), method, task, torch.device("cpu"), 1)


def test_a_method_declares_that_it_learns_a_word() -> None:
    run = opened(Word())
    method, model = inverted(run)
    assert isinstance(method, Word)
    assert model is run.task.backbone
    sentence = r"^here is a run of plain, which learns no word; relic, fedti and their kind do\.$"
    with pytest.raises(PromptFedError, match=sentence):
        inverted(opened(Plain()))
