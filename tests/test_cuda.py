"""What only a GPU shows: recorded steps give what plain steps give, and runs repeat."""

from pathlib import Path
from typing import Any

import pytest
import torch

import promptfed
from promptfed.core import tree
from promptfed.core.method import Method
from promptfed.federation.store import Store
from promptfed.methods.fedapt import FedAPT
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.fedclip import FedCLIP
from promptfed.methods.fedvpt_d import FedVPTDeep
from promptfed.methods.local_only import Local
from promptfed.methods.moon import Moon
from promptfed.methods.per_fedavg import PerFedAvg
from promptfed.methods.pfedpg import PFedPG
from promptfed.methods.pfedpt import PFedPT
from promptfed.runs import checks
from support.loops import make

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can see")
METHODS = [
    Local(momentum=0.9, weight_decay=0.01),
    FedAvg(),
    PFedPT(),
    PFedPT(prompt="random-patch"),
    PFedPT(joint=True, prompt_lr=0.1),  # at rate 1 the joint steps magnify rounding
    PFedPG(tokens=2, lr=0.05, epochs=1, batch=8),
    FedVPTDeep(tokens=2, lr=0.05, epochs=1, batch=8),
    PerFedAvg(lr=0.05, epochs=1, batch=8),
    Moon(lr=0.05, epochs=1, batch=8),
    FedAPT(tokens=2, batch=8),
    FedCLIP(batch=8),
]

LEARNING = [
    FedAvg(lr=0.05, epochs=2, batch=8, momentum=0.5, weight_decay=0.01),
    PFedPT(lr=0.05, epochs=1, batch=8),
    PerFedAvg(lr=0.05, epochs=1, batch=8),
]


def _rounds(method: Method, folder: Path, fleet: str, device: str) -> tuple[tree.Tree, list[tree.Tree]]:
    loop = checks.toy_loop(method, folder, fleet, device=device, per_round=0)
    for t in range(3):
        loop.server, _ = loop.round(t)
        loop.store.seal()
    homes = [tree.to(loop.store.get(client), "cpu") for client in range(len(checks.SIZES))]
    return tree.to(loop.server, "cpu"), homes


@pytest.mark.parametrize("method", LEARNING, ids=repr)
def test_recorded_steps_follow_a_schedule_and_see_changed_and_weighted_images(method: Method, tmp_path: Path) -> None:
    tables: dict[str, Any] = {
        "schedule": {"name": "cosine", "warmup": 1},
        "train": {"augment": "flip+crop+resized-crop+color", "class_weights": "balanced"},
    }
    gpu = make(method, tmp_path / "gpu", "stacked", rounds=4, device="cuda", **tables)
    cpu = make(method, tmp_path / "cpu", rounds=4, **tables)
    recorded = set()
    for t in range(4):
        for loop in (gpu, cpu):
            loop.server, _ = loop.round(t)
            loop.store.seal()
        recorded.add(len(gpu.task.captured))
        torch.testing.assert_close(tree.to(gpu.server, "cpu"), cpu.server, rtol=1e-3, atol=1e-4)
    for client in range(5):
        got = tree.to(gpu.store.get(client), "cpu")
        torch.testing.assert_close(got, cpu.store.get(client), rtol=1e-3, atol=1e-4)
    assert len(recorded) == 1  # no round records a step of its own


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_recorded_steps_equal_plain_steps_on_the_cpu(method: Method, tmp_path: Path) -> None:
    server, personal = _rounds(method, tmp_path / "gpu", "stacked", "cuda")
    expected, homes = _rounds(method, tmp_path / "cpu", "one-by-one", "cpu")
    for got, want in zip([server, *personal], [expected, *homes], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def test_a_run_says_how_much_memory_it_had_at_most(tmp_path: Path) -> None:
    words = ("rounds=1", "clients=2", "data.limit=1", "evaluate.after=false", "device=cuda")
    found = promptfed.run("clip-zs", out=tmp_path / "run", overrides=words).summary["peak_memory_bytes"]
    assert 10**6 < found < torch.cuda.get_device_properties(0).total_memory


def test_the_same_run_twice_gives_the_same_bits(tmp_path: Path) -> None:
    first, again = (_rounds(PFedPT(), tmp_path / name, "stacked", "cuda") for name in ("a", "b"))
    assert all(torch.equal(first[0][name], again[0][name]) for name in first[0])


def test_personal_trees_of_a_gpu_are_saved_beside_those_of_an_earlier_checkpoint(tmp_path: Path) -> None:
    def own(value: float) -> tree.Tree:
        return {"w": torch.full((3,), value, device="cuda")}

    first = Store(lambda client: {}, tmp_path)
    for client in range(4):
        first.put(client, own(client))
    first.seal()
    resumed = Store(lambda client: {}, tmp_path)
    resumed.restore(first.commit())
    for client in (0, 1, 2):  # most of the file is out of date now, so that client 3 is written anew
        resumed.put(client, own(10 + client))
    resumed.seal()
    again = Store(lambda client: {}, tmp_path)
    again.restore(resumed.commit())
    assert [again.get(client)["w"].tolist() for client in range(4)] == [[v] * 3 for v in (10.0, 11.0, 12.0, 3.0)]
