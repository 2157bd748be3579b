import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset
from promptfed.data.partition import Partition, make_partition
from promptfed.data.pfllib import LEAST_IMAGES, capped_plan, holder_amounts, holders_in_order

NAMES = ["pfllib-iid", "pfllib-pathological", "pfllib-dirichlet"]


def dataset_of(labels: NDArray[np.int64], classes: int) -> Dataset:
    """A data set with every sixth image in the official test part."""
    return Dataset(
        name="toy",
        images=np.zeros((len(labels), 1, 1, 3), dtype=np.uint8),
        labels=labels,
        test=np.arange(len(labels)) % 6 == 5,
        classes=tuple(str(i) for i in range(classes)),
        domains=np.zeros(len(labels), dtype=np.int64),
        domain_names=("all",),
    )


@pytest.fixture(scope="module")
def cifar() -> Dataset:
    """60,000 labels of 10 classes, 6,000 each, like CIFAR-10 with its two parts together."""
    return dataset_of(np.random.default_rng(0).permutation(np.arange(60_000) % 10), 10)


def sizes_of(partition: Partition) -> NDArray[np.int64]:
    return np.array([len(a) + len(b) for a, b in zip(partition.train, partition.test, strict=True)])


def options_for(name: str, classes: int = 2) -> dict[str, object]:
    return {"classes_per_client": classes} if name == "pfllib-pathological" else {}


# -- the documented phenomena ---------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_pathological_fills_clients_in_order_and_the_last_of_a_block_is_a_giant(cifar: Dataset, seed: int) -> None:
    partition = make_partition("pfllib-pathological", {}, cifar, 50, seed)
    held, sizes = partition.counts(cifar) > 0, sizes_of(partition)
    assert held[:25, :5].all()
    assert held[25:, 5:].all()
    assert held.sum() == 250
    assert sizes.sum() == 60_000
    assert sizes[24] > 0.15 * 60_000
    assert sizes[49] > 0.15 * 60_000
    assert np.median(sizes) == pytest.approx(680, rel=0.1)
    assert np.sort(sizes)[-3] < 1200


@pytest.mark.parametrize("seed", range(5))
def test_iid_gives_the_last_client_almost_half(cifar: Dataset, seed: int) -> None:
    partition = make_partition("pfllib-iid", {}, cifar, 50, seed)
    sizes = sizes_of(partition)
    assert (partition.counts(cifar) > 0).all()
    assert sizes.sum() == 60_000
    assert sizes[49] > 0.3 * 60_000
    assert sizes[:49].max() < 0.02 * 60_000


@pytest.mark.parametrize("seed", range(3))
def test_dirichlet_sizes_stay_within_the_known_range(cifar: Dataset, seed: int) -> None:
    sizes = sizes_of(make_partition("pfllib-dirichlet", {}, cifar, 50, seed))
    assert sizes.sum() == 60_000
    assert sizes.min() >= LEAST_IMAGES
    assert 900 < np.median(sizes) < 1500
    assert 2000 < sizes.max() < 4500


def test_balanced_pathological_is_equal(cifar: Dataset) -> None:
    partition = make_partition("pfllib-pathological", {"balanced": True}, cifar, 50, 0)
    assert sizes_of(partition).tolist() == [1200] * 50
    assert [len(part) for part in partition.train] == [900] * 50


def test_two_hundred_classes_eighty_each_make_three_blocks() -> None:
    plan = holders_in_order(np.full(200, 550), 50, 80, False, np.random.default_rng(0))
    kinds = plan > 0
    assert kinds[:80, :20].all()
    assert kinds[80:160, 20:40].all()
    assert kinds[160:, 40:].all()
    assert kinds.sum(axis=0).tolist() == [80] * 40 + [40] * 10
    assert (plan.sum(axis=1) == 550).all()


@pytest.mark.parametrize("name", NAMES)
def test_official_parts_are_merged_and_divided_three_to_one(cifar: Dataset, name: str) -> None:
    partition = make_partition(name, {}, cifar, 50, 0)
    assert cifar.test[np.concatenate(partition.train)].mean() == pytest.approx(1 / 6, abs=0.01)
    assert cifar.test[np.concatenate(partition.test)].mean() == pytest.approx(1 / 6, abs=0.01)
    for train, size in zip(partition.train, sizes_of(partition), strict=True):
        assert len(train) == math.floor(0.75 * size)
    assert partition == make_partition(name, {}, replace(cifar, test=~cifar.test), 50, 0)
    halves = make_partition(name, {"train_fraction": 0.5}, cifar, 50, 0)
    assert [len(part) for part in halves.train] == (sizes_of(halves) // 2).tolist()


# -- the pieces -----------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(size=st.integers(0, 500), holders=st.integers(1, 40), balanced=st.booleans(), seed=st.integers(0, 99))
def test_amounts_are_never_negative_and_spend_the_class(size: int, holders: int, balanced: bool, seed: int) -> None:
    amounts = holder_amounts(size, holders, balanced, np.random.default_rng(seed))
    assert len(amounts) == holders
    assert amounts.sum() == size
    assert amounts.min() >= (1 if size >= holders else 0)


def test_unbalanced_amounts_lie_between_a_tenth_and_the_whole_of_an_equal_part() -> None:
    amounts = np.array([holder_amounts(6000, 50, False, np.random.default_rng(seed)) for seed in range(200)])
    assert (amounts[:, :-1].min(), amounts[:, :-1].max()) == (12, 119)
    assert holder_amounts(7, 3, True, np.random.default_rng(0)).tolist() == [2, 2, 3]


def test_a_client_with_its_equal_part_gets_no_more() -> None:
    for seed in range(50):
        plan = capped_plan(np.full(6, 100), 4, 0.3, np.random.default_rng(seed))
        before = np.cumsum(plan, axis=0) - plan
        assert plan[before >= 150].sum() == 0


# -- what they promise -------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    classes=st.integers(1, 5),
    clients=st.integers(1, 6),
    extra=st.integers(0, 40),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_every_image_at_most_once_and_nobody_without(
    name: str, classes: int, clients: int, extra: int, seed: int, data: st.DataObject
) -> None:
    labels = np.tile(np.arange(classes), 24 * clients)
    labels = np.concatenate((labels, np.arange(extra) ** 2 % classes))
    dataset = dataset_of(labels, classes)
    options = options_for(name, data.draw(st.integers(1, classes)))
    partition = make_partition(name, options, dataset, clients, seed)
    used = [*np.concatenate(partition.train), *np.concatenate(partition.test)]
    assert len(set(used)) == len(used)
    assert len(partition) == clients
    assert min(len(part) for part in partition.train) >= 1
    assert partition == make_partition(name, options, dataset, clients, seed)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(["pfllib-iid", "pfllib-pathological"]),
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    clients=st.integers(1, 40),
    seed=st.integers(0, 50),
)
def test_too_little_data_ends_in_a_split_or_a_sentence(name: str, labels: list[int], clients: int, seed: int) -> None:
    dataset = dataset_of(np.array(labels), 4)
    try:
        sizes = sizes_of(make_partition(name, options_for(name), dataset, clients, seed))
    except PromptFedError:
        assert min(np.bincount(labels, minlength=4)) < clients
        return
    assert len(sizes) == clients
    assert sizes.sum() <= len(labels)


@pytest.mark.parametrize("name", NAMES)
def test_one_class_and_one_client(name: str) -> None:
    partition = make_partition(name, options_for(name, 1), dataset_of(np.zeros(12, np.int64), 1), 1, 0)
    assert (len(partition.train[0]), len(partition.test[0])) == (9, 3)


@pytest.mark.parametrize("name", ["pfllib-iid", "pfllib-pathological"])
def test_as_many_clients_as_images(name: str) -> None:
    partition = make_partition(name, options_for(name, 1), dataset_of(np.zeros(300, np.int64), 1), 300, 0)
    assert [len(part) for part in partition.train] == [1] * 300
    assert sum(len(part) for part in partition.test) == 0


@pytest.mark.parametrize("name", NAMES)
def test_other_seeds_split_otherwise(name: str) -> None:
    dataset = dataset_of(np.arange(240) % 4, 4)
    assert len({make_partition(name, options_for(name), dataset, 4, seed).hash for seed in range(20)}) == 20


@pytest.mark.timeout(200)
def test_hopeless_draws_end_in_a_sentence() -> None:
    dataset = dataset_of(np.arange(400) % 4, 4)
    with pytest.raises(PromptFedError, match=r"partition\.alpha = 1e-05 left one of 20 clients .* 1000 draws"):
        make_partition("pfllib-dirichlet", {"alpha": 1e-5}, dataset, 20, 0)


@pytest.mark.parametrize(
    ("name", "options", "clients", "sentence"),
    [
        ("pfllib-iid", {}, 5000, "The partition has 5000 clients but only 24 images; use at most 24 clients."),
        ("pfllib-dirichlet", {}, 4, "at least 8 images: 24 images are enough for 3 clients, not 4."),
        ("pfllib-dirichlet", {"alpha": 0}, 2, "partition.alpha must be a finite number above 0, not 0."),
        ("pfllib-pathological", {"classes_per_client": 0}, 2, "partition.classes_per_client must be a whole number"),
        ("pfllib-pathological", {}, 2, 'partition.classes_per_client = 5 but data set "toy" has only 4 classes.'),
        ("pfllib-pathological", {"balanced": "-"}, 2, "partition.balanced must be true or false, not '-'."),
        ("pfllib-iid", {"train_fraction": 1}, 2, "partition.train_fraction must be a number between 0 and 1, not 1."),
        (
            "pfllib-iid",
            {"train_fraction": 0.0},
            2,
            "partition.train_fraction must be a number between 0 and 1, not 0.0",
        ),
    ],
)
def test_mistakes(name: str, options: dict[str, object], clients: int, sentence: str) -> None:
    with pytest.raises(PromptFedError) as caught:
        make_partition(name, options, dataset_of(np.arange(24) % 4, 4), clients, 0)
    assert sentence in str(caught.value)
