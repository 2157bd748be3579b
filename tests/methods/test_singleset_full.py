"""SingleSet-Full: every client fine-tunes the whole model, by hand."""

import torch

from promptfed.core import tree
from promptfed.methods.local_only import Local
from promptfed.methods.singleset_full import SingleSetFull
from support.toys import WHITE, FrozenTokens, dataset, numbered, rng, shards, task

TASK = task(FrozenTokens(spread=1.0), 3)


def test_one_step_by_hand() -> None:
    method = SingleSetFull(lr=1.0, epochs=1, batch=4, weight_decay=0.1)
    data = shards(dataset([WHITE], [0]), [1]).data([0], 0, stacked=False)
    start = {
        "scale": torch.ones(3),
        "head.weight": torch.tensor([[1.0] * 3, [1.0] * 3]),
        "head.bias": torch.tensor([1.0, 1.0]),
    }
    up, after = method.fit(TASK, {}, start, data)
    # equal logits, p = 1/2: the body's gradient cancels, the head's is ∓1/2; decay takes a tenth of everything
    assert up == {}
    torch.testing.assert_close(after["scale"], torch.full((3,), 0.9))
    torch.testing.assert_close(after["head.weight"], torch.tensor([[1.4] * 3, [0.4] * 3]))
    torch.testing.assert_close(after["head.bias"], torch.tensor([1.4, 0.4]))


def test_it_is_local_with_other_defaults() -> None:
    own = numbered([5, 2, 9])
    same = Local(lr=0.01, epochs=5, batch=64, momentum=0.9, weight_decay=1e-3)
    start = SingleSetFull().init_client(TASK, own.data([0], 0, stacked=False), rng(0))
    data = own.data(range(3), 4, stacked=True)
    found, wanted = (method.fit(TASK, {}, tree.repeat(start, 3), data) for method in (SingleSetFull(), same))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert set(found[1]) == set(start) == {"scale", "head.weight", "head.bias"}
    assert not found[1]["scale"].equal(start["scale"].expand(3, 3))


def test_nothing_travels() -> None:
    method = SingleSetFull()
    server = method.init_server(TASK, rng())
    assert server == method.download(TASK, server, torch.arange(3)) == method.deploy(TASK, server) == {}
