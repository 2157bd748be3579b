"""The least memory of a run: what its method's trees take, counted before they are made, and refused if too much."""

from pathlib import Path
from typing import Any

import pytest

from promptfed.backbones import BACKBONES
from promptfed.backbones.clip import CLIP
from promptfed.core import memory, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.memory import ShortOfMemoryError
from promptfed.core.method import Task
from promptfed.federation.loop import Loop
from promptfed.methods.fedpgp import FedPGP
from promptfed.results.folder.record import Record
from promptfed.runs import config, costs, execution, footprint, planning
from promptfed.runs.planning import make_loop, prepare
from support.inverted_runs import painting
from support.photographs import put_sites
from support.tiny_runs import tiny, write_images
from support.toy_clip import ARCH, NAMES, SHAPE, normal
from support.toys import featured, rng

WORDS = ("backbone.name=vit-tiny", "backbone.width=1024", "backbone.depth=800")  # 27 GB of weights in small pieces


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "tiny.npz")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> float:
    """Let the machine have 4 MB, of which torch and the rest know nothing."""
    monkeypatch.setattr(memory, "machine_bytes", lambda: 4e6)
    return 4e6


def loop_of(folder: Path, method: str, *words: str) -> Loop:
    return make_loop(prepare(config.load_one(method, words), None, None), Record(folder))


@pytest.mark.parametrize("method", ["fedavg", "fedmtl", "moon", "local", "pfedpt", "per-fedavg", "fedrod"])
def test_the_trees_are_those_that_the_method_makes(method: str, images: Path, tmp_path: Path) -> None:
    loop = loop_of(tmp_path, method, *tiny(images))
    down = tree.row(loop.method.download(loop.task, loop.server, loop.everyone[:1]), 0)
    client = tree.nbytes(down) + tree.nbytes(loop.store.get(0))
    for width in (1, 3):
        wanted = tree.nbytes(loop.server) + 2 * width * client
        assert footprint.least_bytes(loop.method, loop.task, loop.shards, width) == wanted > 0


def test_a_method_that_looks_at_its_numbers_is_counted_too(images: Path, tmp_path: Path) -> None:
    with painting():
        loop = loop_of(
            tmp_path, "relic", *tiny(images, "backbone.name=painter")[:1], "backbone.name=painter", "clients=2"
        )
    assert "painter" not in BACKBONES
    client = tree.nbytes(loop.store.get(0)) + tree.nbytes(loop.server)
    assert footprint.least_bytes(loop.method, loop.task, loop.shards, 1) == tree.nbytes(loop.server) + 2 * client


def test_a_run_whose_size_was_estimated_trains_as_any_other() -> None:
    # CLIP keeps the anchor's features, which FedPGP asks for at its start: without numbers nothing would be trained
    data = featured(normal(6, 10), [0, 1, 2, 0, 1, 2], [6])
    method = FedPGP(tokens=2, rank=2, lr=0.5, batch=3, epochs=1)
    ups = []
    for estimated in (False, True):
        task = Task(CLIP.random(SHAPE, NAMES, ARCH), NAMES, 1)
        if estimated:
            assert footprint.least_bytes(method, task, data, 1) == 4 * (24 + 2 * (24 + 28))
        server = method.init_server(task, rng())
        ups.append(
            method.fit(
                task,
                server,
                method.init_client(task, data.data([0], 0, stacked=False), rng(0)),
                data.data([0], 0, stacked=False),
            )[0]["context"]
        )
        assert (ups[-1] - server["context"]).abs().max() > 1e-3
    assert ups[0].equal(ups[1])


def test_a_whole_model_is_refused_before_it_is_made(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "machine_bytes", lambda: 30e9)

    def never(*given: Any, **named: Any) -> None:
        raise AssertionError("the model is made")

    monkeypatch.setattr(planning, "Loop", never)
    recipe = config.load_one("fedavg", [f"data.name=npz:{images}", "clients=4", "partition.name=iid", *WORDS])
    sentence = r"needs at least 80\.\d GB, and there are 30\.0 GB; lower backbone\.depth"
    with pytest.raises(PromptFedError, match=sentence):
        execution.start(recipe, tmp_path / "run")
    with pytest.raises(PromptFedError, match=sentence):
        costs.estimate(recipe)
    assert not (tmp_path / "run").exists()


def test_a_gpu_has_its_own_memory(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of(tmp_path, "fedavg", *tiny(images))
    monkeypatch.setattr(footprint, "least_bytes", lambda *given: 10)

    class Device:
        type = "cuda"

    class OnGpu:
        class pool:  # noqa: N801
            class x:  # noqa: N801
                device = Device()

    shards: Any = OnGpu()
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (1, 10))
    footprint.require_room(loop.method, loop.task, shards, 1)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (9, 9))
    with pytest.raises(ShortOfMemoryError):
        footprint.require_room(loop.method, loop.task, shards, 1)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["method.batch=20000"], "lower method.batch."),
        (["method.epochs=20000"], "lower method.epochs."),
        (["method.batch=20000", "method.epochs=20"], "lower method.batch."),
    ],
)
def test_batches_beyond_all_memory_are_refused(
    words: list[str], keys: str, images: Path, tmp_path: Path, small: float
) -> None:
    recipe = config.load_one("fedavg", [*tiny(images), *words])
    with pytest.raises(PromptFedError, match="There is not enough memory for this: it needs at least") as refused:
        execution.start(recipe, tmp_path / "run")
    assert str(refused.value).endswith(keys)


def test_the_answers_of_too_many_clients_are_refused_after_the_first(
    images: Path, tmp_path: Path, small: float
) -> None:
    recipe = config.load_one("fedavg", [*tiny(images), "backbone.width=192"])
    with pytest.raises(PromptFedError, match=r"lower per_round, or else clients\."):
        execution.start(recipe, tmp_path / "run")


def test_photographs_of_too_many_pixels_are_refused_unread(tmp_path: Path, small: float) -> None:
    put_sites(tmp_path / "photos", ["one"])
    words = [f"data.name=folder:{tmp_path / 'photos'}", "data.size=4000", "clients=2"]
    with pytest.raises(PromptFedError, match=r"lower data\.size\."):
        execution.start(config.load_one("fedavg", words), tmp_path / "run")
