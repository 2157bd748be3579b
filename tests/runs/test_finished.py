"""A finished run is opened without a trace."""

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from promptfed.backbones.painter import Painter
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed
from promptfed.core.method import Method, Task, adapts
from promptfed.core.tree import Tree
from promptfed.data import Dataset, open_dataset
from promptfed.federation.loop import Loop
from promptfed.runs import planning
from promptfed.runs.config import Recipe
from promptfed.runs.finished import Words, inverted, open_run
from promptfed.runs.resuming import resume
from promptfed.runs.runner import run
from support.inverted_runs import classified
from support.stopped_runs import same
from support.tiny_runs import write_images


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
        opened = open_run(folder)
        trees = [opened.own(client) for client in range(3)]
        loop = opened.loop
    assert state(folder) == before
    assert loop.finished == 2
    assert [line["round"] for line in loop.record.rounds] == [1, 2]
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
        done = resume(folder)
    assert state(folder) == before
    assert done.summary == unsealed((folder / "summary.json").read_text())
    assert len(done.rounds) == 2


# -- without the images ---------------------------------------------------------------------------------------------

SMALL = ("clients=3", "rounds=2", "per_round=1", "device=cpu", "method.batch=8")
VIT = ("backbone.name=vit-tiny", "backbone.width=8", "backbone.depth=1", "backbone.heads=2", "backbone.patch=4")
CLIP = ("backbone.name=clip",)
RUNS = {  # what is trained, and whether its model is adapted to the client's images
    "fedavg": (VIT, False),
    "local": (VIT, False),  # two of three clients have never trained
    "pfedpt": (VIT, False),
    "fedavg+pt": (("prompt.kind=random-patch", *VIT), False),
    "fedper": (VIT, False),
    "moon": (VIT, False),
    "per-fedavg": (VIT, True),
    "fedbabu": (VIT, True),
    "pfedpg": (("method.tokens=2",), True),
    "promptfl": (CLIP, False),  # these two read features
    "fedapt": ((*CLIP, "method.domains=4"), False),
}


@pytest.fixture(scope="module", params=RUNS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """Return a run folder, and whether the method adapts."""
    words, changes = RUNS[request.param]
    images = write_images(tmp_path_factory.mktemp("images") / "tiny.npz", 48)
    epochs = () if request.param == "per-fedavg" else ("method.epochs=1",)
    every = (f"data.name=npz:{images}", "partition.name=iid", *SMALL, *epochs, *words)
    return run(request.param.removesuffix("+pt"), out=images.parent / "run", overrides=every).folder, changes


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the data sets that are loaded from now on."""
    found: list[str] = []

    def counted(name: str, **chosen: object) -> Dataset:
        found.append(name)
        return open_dataset(name, **chosen)

    monkeypatch.setattr(planning, "open_dataset", counted)
    return found


def logits(loop: Loop, client: int, params: Tree) -> Tensor:
    """Return what a model says of the client's test images."""
    data = loop.shards.data([client], 0, "test", stacked=False)
    batch = next(iter(data.batches("test", size=8, ordered=True)))
    with torch.no_grad():
        return loop.method.predict(loop.task, loop.method.prepare(loop.task, params), tree.drop(batch, ["y"]))


def test_images_are_loaded_only_to_adapt_a_model(trained: tuple[Path, bool], loads: list[str]) -> None:
    folder, changes = trained
    opened = open_run(folder)
    models = [opened.deployed(client) for client in range(3)]
    assert opened.server or models[0]
    assert adapts(opened.method) == changes
    assert len(loads) == changes


def test_a_model_opened_without_images_says_the_same(trained: tuple[Path, bool]) -> None:
    folder, changes = trained
    opened, loop = open_run(folder), open_run(folder).loop
    assert same(opened.server, loop.server)
    for client in range(3):
        data = loop.shards.data([client], loop.settings.total, stacked=False)
        down = tree.row(loop.method.download(loop.task, loop.server, torch.tensor([client])), 0)
        wanted = loop.method.adapt(loop.task, down, loop.store.get(client), data)
        found = opened.deployed(client)
        assert torch.equal(logits(loop, client, found), logits(loop, client, wanted))
        assert not changes or same(found, wanted)


def test_facts_come_from_the_partitions_file(trained: tuple[Path, bool], loads: list[str]) -> None:
    opened = open_run(trained[0])
    known = opened.sides, *opened.pixel_statistics, opened.finished, len(opened)
    facts = [opened.facts(client) for client in range(3)]
    assert loads == []
    loop, images = opened.loop, opened.plan.dataset
    assert known == (images.sides, images.mean, images.std, loop.settings.total, len(loop.shards))
    assert all(same(facts[client], tree.row(loop.shards.facts([client]), 0)) for client in range(3))
    assert opened.data(0, 0).capacity == loop.shards.capacity


def test_a_client_that_does_not_exist(folder: Path) -> None:
    for client in (-1, 3):
        with pytest.raises(PromptFedError, match=f"has clients 0 to 2, not {client}"):
            open_run(folder).deployed(client)


# -- words ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain(Method):
    name: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Word(Method):
    name: ClassVar[str] = "word"
    shared: bool = True

    def spoken(
        self,
        task: Task,
        params: Tree,
        chosen: Tensor,
        visual: Tensor | None = None,
        templates: Sequence[str] | None = None,
    ) -> Tensor:
        return params["word"]


def words_of(method: Method) -> Words:
    """Return the words of a run."""
    task = Task(Painter((3, 8, 8), 2), ("no", "yes"), 1)
    return Words(Path("here"), Recipe(method={"name": method.name}), method, task, torch.device("cpu"), 1)


def test_a_method_declares_that_it_learns_a_word() -> None:
    words = words_of(Word())
    method, model = inverted(words)
    assert isinstance(method, Word)
    assert model is words.task.backbone
    sentence = r"^here is a run of plain, which learns no word; relic, fedti and similar methods do\.$"
    with pytest.raises(PromptFedError, match=sentence):
        inverted(words_of(Plain()))
