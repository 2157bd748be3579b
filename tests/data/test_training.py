"""What is done to training batches alone, in numbers worked out by hand."""

from math import log

import numpy as np
import pytest
import torch

from promptfed.core import ops
from promptfed.core.schedule import Schedule
from promptfed.data.augment import Augment
from promptfed.data.batches import ClientData, Pool, Shards
from promptfed.data.training import ClassWeights, Training
from support.toys import dataset, shares

COUNTS = torch.tensor([[8.0, 1.0, 0.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
EVERYTHING = Training(
    Schedule(4, 0, "linear"), Augment(("flip", "crop", "resized-crop", "color")), ClassWeights("balanced")
)


def clients(training: Training, side: int = 8) -> Shards:
    """Return two clients of 6 and 3 images with noise in them, two of the nine of the second class."""
    data = dataset([0] * 9, [0, 0, 0, 1, 0, 0, 1, 0, 0], side)
    data.images[:] = np.random.default_rng(0).integers(0, 256, data.images.shape)
    return Shards(Pool(data, torch.device("cpu")), shares([6, 3]), shares([6, 3]), 0, {}, training=training)


# -- weights of classes ---------------------------------------------------------------------------------------------


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    # images / (classes there are · images of the class): 10 / (3 · 8), 10 / (3 · 1)
    found = ClassWeights("balanced").of(COUNTS)
    torch.testing.assert_close(found, torch.tensor([[10 / 24, 10 / 3, 0, 10 / 3], [1, 1, 1, 1]]))


def test_effective_numbers_lie_between_none_and_balanced() -> None:
    # β = ½: 1 / (1 + ½ + … + ½⁷) = 128 / 255 for eight images, 1 for one; their mean over the ten images is 1
    found = ClassWeights("effective", beta=0.5).of(COUNTS)[0]
    mean = (8 * 128 / 255 + 2) / 10
    torch.testing.assert_close(found, torch.tensor([128 / 255 / mean, 1 / mean, 0, 1 / mean]))


def test_a_client_without_images_has_no_weights() -> None:
    assert ClassWeights("balanced").of(torch.zeros(3)).tolist() == [0, 0, 0]


def test_a_weighted_loss_is_that_of_torch() -> None:
    # three images of the first class, one of the second: weights 2/3 and 2; (3 · 2/3 · ln 2 + 2 · ln 4) / 4 = 1.5 ln 2
    labels, mask = torch.tensor([0, 0, 0, 1, 0]), torch.tensor([1.0, 1, 1, 1, 0])
    logits = torch.tensor([[0.0, 0], [0, 0], [0, 0], [log(3), 0], [9, 9]])
    weights = ClassWeights("balanced")
    found = ops.cross_entropy(logits, labels, weights.weigh(mask, labels, torch.tensor([3.0, 1.0])))
    assert found.item() == pytest.approx(1.5 * log(2))
    by_torch = torch.nn.CrossEntropyLoss(weight=weights.of(torch.tensor([3.0, 1.0])))
    assert found.item() == pytest.approx(by_torch(logits[:4], labels[:4]).item())


def test_a_batch_of_a_frequent_class_has_the_same_mean() -> None:
    # one image of weight 0.05 is still the whole batch
    logits, labels = torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)
    assert ops.cross_entropy(logits, labels, torch.tensor([0.05])).item() == pytest.approx(log(2))


# -- in the batches -------------------------------------------------------------------------------------------------


def of(shards: Shards, client: int, round: int = 0) -> ClientData:  # noqa: A002
    return shards.data([client], round, stacked=False)


def test_a_stack_sees_what_each_client_sees_alone() -> None:
    shards = clients(EVERYTHING)
    stacked = list(shards.data([0, 1], 2, stacked=True).batches(size=2))
    for client in (0, 1):
        for step, alone in enumerate(of(shards, client, 2).batches(size=2)):
            for name in ("x", "mask", "rate"):
                torch.testing.assert_close(stacked[step][name][client], alone[name])
    assert stacked[0]["rate"].tolist() == [0.5, 0.5]


def test_weights_are_each_clients_own() -> None:
    shards = clients(Training(weights=ClassWeights("balanced")))
    for client, (usual, rare) in ((0, (6 / 10, 3.0)), (1, (3 / 4, 3 / 2))):
        for batch in of(shards, client).batches(size=4):
            expected = torch.where(batch["y"] == 1, rare, usual)
            there = batch["index"] + batch["mask"] > 0
            torch.testing.assert_close(batch["mask"][there], expected[there])


def test_images_change_from_round_to_round_and_repeat() -> None:
    shards = clients(EVERYTHING)
    first, again, other = (
        next(iter(of(shards, 0, t).batches(size=6, purpose="a")))["x"].sort(0).values for t in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("split", ["train", "test"])
def test_nothing_is_done_to_what_is_tested_or_looked_at_in_order(split: str) -> None:
    treated, plain = (
        list(shards.data([0], 1, split, stacked=False).batches(size=4, ordered=True))
        for shards in (clients(EVERYTHING), clients(Training()))
    )
    for one, other in zip(treated, plain, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
