"""FedPGP: the contrastive term and a step by hand, its two ends, and what travels."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.options import make
from promptfed.core.prompts.text import said
from promptfed.core.tree import Tree
from promptfed.methods.fedpgp import FedPGP
from promptfed.methods.promptfl import PromptFL
from support.toy_clip import NAMES, NET, normal
from support.toys import TinyDual, featured, rng, task

TASK = task(TinyDual())
CLIP = Task(NET, NAMES, 3)
RATES: dict[str, Any] = {"tokens": 3, "lr": 0.5, "batch": 4, "epochs": 2, "momentum": 0.9, "weight_decay": 0.0}
WRONG = 1 / (1 + math.e)  # what softmax (1, 0) gives to the second


def test_the_contrastive_term_by_hand() -> None:
    # cos(T_0, T_σ) is 1 and 0, cos(T_σ, T) is 0 and 1: at τ = 1/2 the logits are (2, 0) and (0, 2)
    anchor, average = torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    own = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    value = FedPGP().contrastive(anchor, average, own)
    expected = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(2))) / 2
    torch.testing.assert_close(value, torch.tensor(expected))


@pytest.mark.parametrize("seed", range(4))
def test_the_contrastive_term_has_its_bounds(seed: int) -> None:
    sets = (torch.nn.functional.normalize(normal(7, 5, seed=3 * seed + n), dim=-1) for n in range(3))
    value = FedPGP(temperature=0.5).contrastive(*sets)
    assert math.log(1 + math.exp(-4)) <= value <= math.log(1 + math.exp(4))


def test_a_round_by_hand_without_contrast() -> None:
    # at p = p_G + u v = 0 the text of the wrong class turns away from the image, by WRONG. U gets the product of that
    # with v = (2, 3), and v that with u = 0
    method = FedPGP(tokens=1, rank=1, contrast=0.0, lr=1.0, momentum=0.0, weight_decay=0.0, epochs=1)
    own = featured(torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 5.0]]), [0, 1, 1], [1, 2])
    start, clients = {"context": torch.zeros(1, 2)}, torch.arange(2)
    personal = {"u": torch.zeros(2, 1, 1), "v": torch.tensor([[[2.0, 3.0]], [[2.0, 3.0]]])}
    up, kept = method.fit(TASK, method.download(TASK, start, clients), personal, own.data([0, 1], 0, stacked=True))
    torch.testing.assert_close(up["context"], torch.tensor([[[-WRONG, 0.0]], [[0.0, -WRONG]]]))
    torch.testing.assert_close(kept["u"], torch.tensor([[[-2 * WRONG]], [[-3 * WRONG]]]))
    torch.testing.assert_close(kept["v"], personal["v"])
    after = method.aggregate(TASK, start, clients, up, method.weight(own.facts([0, 1])))
    torch.testing.assert_close(after["context"], torch.tensor([[-WRONG / 3, -2 * WRONG / 3]]))  # by images


def test_contrast_pulls_the_average_to_the_sentence_and_pushes_the_client_away() -> None:
    method = FedPGP(tokens=3, rank=2, contrast=1e4, lr=1e-4, momentum=0.0, weight_decay=0.0, epochs=1, batch=4)
    data = featured(normal(4, 10), [0, 1, 2, 0], [4]).data([0], 0, stacked=False)
    down, personal = {"context": normal(3, 12)}, {"u": normal(3, 2, seed=1), "v": normal(2, 12, seed=2)}
    up, kept = method.fit(CLIP, down, personal, data)

    def cosines(context: Tensor, own: Tree) -> tuple[float, float]:
        anchor, average = said(CLIP, method.anchor), NET.text(context, per_class=False)
        client = method.prepare(CLIP, {"context": context} | own)["text"]
        return float((anchor * average).sum(-1).mean()), float((average * client).sum(-1).mean())

    (near, alike), (nearer, less) = cosines(down["context"], personal), cosines(up["context"], kept)
    assert nearer > near
    assert less < alike


def test_without_its_own_part_and_contrast_it_is_promptfl_bit_for_bit() -> None:
    data = featured(normal(6, 10), [0, 1, 2, 0, 1, 2], [6]).data([0], 0, stacked=False)
    down, none = {"context": normal(3, 12)}, {"u": torch.zeros(3, 1), "v": torch.zeros(1, 12)}
    up, kept = FedPGP(rank=1, contrast=0.0, **RATES).fit(CLIP, down, none, data)
    plain, _ = PromptFL(csc=False, **RATES).fit(CLIP, down, {}, data)
    assert up["context"].equal(plain["context"])
    assert not kept["u"].any()  # u and v are each other's gradient, so a product of zeros stays


def test_the_servers_model_is_the_averaged_context() -> None:
    server, x = {"context": normal(3, 12)}, {"x": normal(4, 10)}
    found = FedPGP().predict(CLIP, FedPGP().deploy(CLIP, server), x)
    assert found.equal(PromptFL(csc=False).predict(CLIP, server, x))


def test_what_travels_and_what_stays() -> None:
    wide = Task(TinyDual(10, 512), tuple(map(str, range(10))), 4)
    one = featured(torch.eye(10, 512), list(range(10)), [10]).data([0], 0, stacked=False)
    for method, stays in ((FedPGP(), 2112), (make(FedPGP, FedPGP.presets["code"], "method"), 4224)):
        down = method.init_server(wide, rng())
        personal = method.init_client(wide, one, rng(0))
        up, kept = method.fit(wide, down, personal, one)
        assert (tree.floats(down), tree.floats(up), tree.floats(kept)) == (8192, 8192, stays)
    spread = (personal["u"] @ personal["v"]).std()
    torch.testing.assert_close(spread, torch.tensor(0.02**2 * 8**0.5), rtol=0.2, atol=0)


def test_a_client_alone_does_what_it_does_in_the_stack() -> None:
    data = featured(normal(13, 10), [n % 3 for n in range(13)], [5, 1, 7])
    method = FedPGP(tokens=2, rank=2, batch=3, epochs=2, lr=0.02)
    down = method.init_server(CLIP, rng())
    starts = [method.init_client(CLIP, data.data([n], 0, stacked=False), rng(n)) for n in range(3)]
    up, kept = method.fit(CLIP, tree.repeat(down, 3), tree.stack(starts), data.data(range(3), 0, stacked=True))
    for client in range(3):
        alone = method.fit(CLIP, down, starts[client], data.data([client], 0, stacked=False))
        torch.testing.assert_close((tree.row(up, client), tree.row(kept, client)), alone, rtol=1e-4, atol=1e-5)


def test_a_sentence_without_a_place_is_refused() -> None:
    with pytest.raises(PromptFedError, match="has no place for a class name"):
        FedPGP(anchor="a photo").init_server(CLIP, rng())
