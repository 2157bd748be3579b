"""ViT-tuning: a step by hand, and every client counts once."""

import torch

from promptfed.methods.vit_tuning import ViTTuning
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())


def test_one_round_by_hand() -> None:
    method = ViTTuning(lr=1.0, batch=4, weight_decay=0.0)
    own = featured(torch.tensor([[2.0, 0.0], [0.0, 4.0], [0.0, 4.0], [0.0, 4.0]]), [0, 1, 1, 1], [1, 3])
    server, clients = method.init_server(TASK, rng()), torch.arange(2)
    down = method.download(TASK, server, clients)
    up, personal = method.fit(TASK, down, {}, own.data([0, 1], 0, stacked=True))
    # the head starts at zero here, so both classes have 1/2
    torch.testing.assert_close(up["head.weight"][0], torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    torch.testing.assert_close(up["head.weight"][1], torch.tensor([[0.0, -2.0], [0.0, 2.0]]))
    assert personal == {}
    after = method.aggregate(TASK, server, clients, up, method.weight(own.facts([0, 1])))
    torch.testing.assert_close(after["head.weight"], torch.tensor([[0.5, -1.0], [-0.5, 1.0]]))
    torch.testing.assert_close(after["head.bias"], torch.zeros(2))


def test_features_are_enough() -> None:
    assert ViTTuning().traits.reads == "features"
