"""Head probe: a linear classifier on frozen features, by hand."""

from pathlib import Path

import pytest
import torch

import promptfed
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.methods.head_probe import HeadProbe
from support.toys import BLACK, WHITE, FrozenTokens, dataset, numbered, rng, shards, task

TASK = task(FrozenTokens(layers=2))


def test_one_step_by_hand() -> None:
    method = HeadProbe(lr=1.0, epochs=1, batch=4, weight_decay=0.0)
    own = shards(dataset([WHITE, BLACK, BLACK], [0, 1, 1]), [1, 2])
    start = {"head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}
    up, after = method.fit(TASK, {}, tree.repeat(start, 2), own.data([0, 1], 0, stacked=True))
    # p = 1/2; two layers make 1 + 2 = 3 of a white image and 0 of a black one
    assert up == {}
    torch.testing.assert_close(after["head.bias"], torch.tensor([[0.5, -0.5], [-0.5, 0.5]]))
    torch.testing.assert_close(after["head.weight"][0], torch.tensor([[1.5] * 3, [-1.5] * 3]))
    assert (after["head.weight"][1] == 0).all()


def test_of_a_pretrained_network_a_client_keeps_the_head_alone() -> None:
    data = numbered([2]).data([0], 0, stacked=False)
    first, second = (HeadProbe().init_client(task(FrozenTokens(spread=1.0)), data, rng(who)) for who in (0, 1))
    assert set(first) == {"head.weight", "head.bias"}
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_nothing_travels() -> None:
    method = HeadProbe()
    server = method.init_server(TASK, rng())
    assert server == method.download(TASK, server, torch.arange(3)) == method.deploy(TASK, server) == {}


def test_a_network_without_pretrained_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r"features of a pretrained backbone; set backbone\.name=vit"):
        promptfed.run("head-probe", out=tmp_path / "run", backbone={"name": "cnn"})
