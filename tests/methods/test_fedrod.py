"""FedRoD: what each head learns from unequal classes, by hand."""

import math

import pytest
import torch

from promptfed.backbones.cnn import ConvNet
from promptfed.core import tree
from promptfed.core.tree import Tree
from promptfed.methods.fedrod import FedRoD
from support.toys import BLACK, WHITE, FrozenTokens, dataset, graded, rng, shards, task

TASK = task(FrozenTokens())
ONE_STEP = FedRoD(lr=1.0, epochs=1, batch=4, weight_decay=0.0)


def zeros() -> tuple[Tree, Tree]:
    down = {"scale": torch.ones(3), "head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}
    return down, {"private.weight": torch.zeros(2, 3), "private.bias": torch.zeros(2)}


def test_the_private_head_alone_learns_which_classes_are_frequent() -> None:
    data = shards(dataset([BLACK] * 4, [0, 1, 1, 1]), [4]).data([0], 0, stacked=False)
    down, personal = zeros()
    up, own = ONE_STEP.fit(TASK, down, personal, data)
    # balanced: logits 0 + ln(1, 3), so p = (1/4, 3/4), just the labels' shares: no gradient
    torch.testing.assert_close(up, down)
    # plain: p = 1/2, so the gradient is (1/2 − 1/4, 1/2 − 3/4)
    torch.testing.assert_close(own["private.bias"], torch.tensor([-0.25, 0.25]))


def test_the_body_learns_from_the_balanced_loss_alone() -> None:
    data = shards(dataset([WHITE, WHITE], [0, 1]), [2]).data([0], 0, stacked=False)
    down, _ = zeros()
    private = {"private.weight": torch.tensor([[5.0] * 3, [0.0] * 3]), "private.bias": torch.zeros(2)}
    up, _ = ONE_STEP.fit(TASK, down, private, data)
    torch.testing.assert_close(up["scale"], torch.ones(3))
    torch.testing.assert_close(up["head.bias"], torch.zeros(2))


def test_one_step_with_missing_class_and_both_heads() -> None:
    data = shards(dataset([WHITE], [0]), [1]).data([0], 0, stacked=False)
    down, personal = zeros()
    down["head.weight"] = torch.tensor([[math.log(3) / 3] * 3, [0.0] * 3])
    up, own = ONE_STEP.fit(TASK, down, personal, data)
    # class 1 is missing: balanced, class 0 is certain and nothing that is shared moves
    torch.testing.assert_close(up, down)
    # the private head adds to the generic logits (ln 3, 0): p = 3/4, features (1, 1, 1)
    torch.testing.assert_close(own["private.weight"], torch.tensor([[0.25] * 3, [-0.25] * 3]))
    torch.testing.assert_close(own["private.bias"], torch.tensor([0.25, -0.25]))


def test_both_heads_are_summed_and_the_server_has_one() -> None:
    model = {
        "scale": torch.ones(3), "head.weight": torch.ones(2, 3), "head.bias": torch.zeros(2),
        "private.weight": torch.zeros(2, 3), "private.bias": torch.tensor([0.5, -0.5]),
    }  # fmt: skip
    batch = {"x": torch.ones(1, 3, 2, 2)}
    torch.testing.assert_close(ONE_STEP.predict(TASK, model, batch), torch.tensor([[3.5, 2.5]]))
    server = tree.drop(model, ["private.weight", "private.bias"])
    assert ONE_STEP.deploy(TASK, server) is server
    torch.testing.assert_close(ONE_STEP.predict(TASK, server, batch), torch.tensor([[3.0, 3.0]]))


CNN = ConvNet((3, 6, 6), 2, channels=(2,), kernel=3, hidden=(4,), pool_after=(1,))


@pytest.mark.parametrize("backbone", [CNN, FrozenTokens(spread=1.0)], ids=["cnn", "tokens"])
def test_a_client_alone_does_what_it_does_in_the_stack(backbone: ConvNet | FrozenTokens) -> None:
    method, where = FedRoD(lr=0.05, epochs=3, batch=2), task(backbone, 3)
    own = graded([5, 1, 9], side=backbone.shape[1])
    down = method.init_server(where, rng())
    start = method.init_client(where, own.data([0], 0, stacked=False), rng(0))
    up, personal = method.fit(where, tree.repeat(down, 3), tree.repeat(start, 3), own.data(range(3), 4, stacked=True))
    assert set(up) == set(down)
    assert set(personal) == set(start) == {"private.weight", "private.bias"}
    for client in range(3):
        alone = method.fit(where, down, start, own.data([client], 4, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(personal, client)), alone, rtol=1e-4, atol=1e-5)
