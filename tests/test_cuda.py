"""What only a GPU can show: recorded steps give what plain steps give, and resumed runs repeat."""

from pathlib import Path

import pytest
import torch

from promptfed import checks, tree
from promptfed.method import Method
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.local_only import Local
from promptfed.methods.pfedpt import PFedPT

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can see")
METHODS = [
    Local(momentum=0.9, weight_decay=0.01),
    FedAvg(),
    PFedPT(),
    PFedPT(prompt="random-patch"),
    PFedPT(joint=True, prompt_lr=0.1),  # at rate 1 the joint steps magnify rounding
]


def _rounds(method: Method, folder: Path, fleet: str, device: str) -> tuple[tree.Tree, list[tree.Tree]]:
    loop = checks.toy_loop(method, folder, fleet, device=device, per_round=0)
    for t in range(3):
        loop.server, _ = loop.round(t)
        loop.store.seal()
    return tree.to(loop.server, "cpu"), [loop.store.get(client) for client in range(len(checks.SIZES))]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_recorded_steps_equal_plain_steps_on_the_cpu(method: Method, tmp_path: Path) -> None:
    server, personal = _rounds(method, tmp_path / "gpu", "stacked", "cuda")
    expected, homes = _rounds(method, tmp_path / "cpu", "one-by-one", "cpu")
    for got, want in zip([server, *personal], [expected, *homes], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def test_the_same_run_twice_gives_the_same_bits(tmp_path: Path) -> None:
    first, again = (_rounds(PFedPT(), tmp_path / name, "stacked", "cuda") for name in ("a", "b"))
    assert all(torch.equal(first[0][name], again[0][name]) for name in first[0])
