"""Partitions for one concept: equal counts; and which partitions are shown the images."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset
from promptfed.data.partition import PARTITIONS, Partition, make_partition
from promptfed.data.partitioners import Equal, Iid
from support.datasets import coloured, dataset_of

NAMES = st.sampled_from(["equal", "quantity"])


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# -- equal counts -----------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(clients=st.integers(1, 8), each=st.integers(1, 5), more=st.integers(0, 9), test=st.integers(0, 20))
def test_everyone_has_the_same_number(clients: int, each: int, more: int, test: int) -> None:
    train = clients * each + more
    data = dataset_of([0] * (train + test), [False] * train + [True] * test)
    found = Equal(each).split(data, clients, seeded(more))
    assert [len(own) for own in found.train] == [each] * clients
    used = np.concatenate(found.train)
    assert len(set(used.tolist())) == len(used)
    assert used.max() < train
    tested = [len(own) for own in found.test]
    assert sum(tested) == test
    assert max(tested) - min(tested) <= 1


def test_another_seed_deals_others() -> None:
    data = dataset_of([0] * 40, False)
    one, same, other = (Equal(3).split(data, 5, seeded(seed)) for seed in (0, 0, 1))
    assert one == same
    assert one != other


@settings(max_examples=100, deadline=None)
@given(images=st.integers(1, 12), clients=st.integers(1, 9), each=st.integers(1, 5), test=st.integers(0, 9), name=NAMES)
def test_repeated_images_never_meet_in_one_client(images: int, clients: int, each: int, test: int, name: str) -> None:
    data = dataset_of([0] * (images + test), [False] * images + [True] * test)
    found = make_partition(name, {"each": each, "repeat": True}, data, clients, seed=images)
    assert found.repeats
    for own in found.train:
        assert 1 <= len(set(own.tolist())) == len(own) <= images
        assert not data.test[own].any()
    assert sorted(np.concatenate(found.test).tolist()) == np.flatnonzero(data.test).tolist()
    if name == "equal":
        assert [len(own) for own in found.train] == [min(each, images)] * clients
    if clients * each >= images > each:  # dealt round and round, no image is held much more often than another
        held = np.bincount(np.concatenate(found.train), minlength=images)
        assert name == "quantity" or held.max() - held.min() <= 1


@settings(max_examples=60, deadline=None)
@given(images=st.integers(6, 40), clients=st.integers(1, 6), data=st.data())
def test_quantity_with_a_mean_size_deals_as_many(images: int, clients: int, data: st.DataObject) -> None:
    each = data.draw(st.integers(1, images // clients))
    found = make_partition("quantity", {"each": each}, dataset_of([0] * images, False), clients, seed=each)
    sizes = [len(own) for own in found.train]
    assert (sum(sizes), min(sizes) >= 1, found.repeats) == (clients * each, True, False)


def test_fifty_clients_of_one_concept() -> None:
    clematis = dataset_of([0] * 112, False)
    equal = make_partition("equal", {"repeat": True}, clematis, 50, seed=0)
    assert [len(own) for own in equal.train] == [3] * 50  # 150 of 112
    skewed = make_partition("quantity", {"alpha": 0.3, "each": 3, "repeat": True}, clematis, 50, seed=0)
    sizes = [len(own) for own in skewed.train]
    assert min(sizes) == 1
    assert max(sizes) > 9
    assert 150 <= sum(sizes) <= 200


def test_too_few_images_are_named() -> None:
    data = dataset_of([0] * 10, False)
    with pytest.raises(
        PromptFedError, match=r"deals 12 training images to 4 clients .* only 10; .* at most 2 images each"
    ):
        Equal(3).split(data, 4, seeded())
    with pytest.raises(PromptFedError, match=r"partition\.each must be a whole number"):
        Equal(0)
    for name in ("equal", "quantity"):
        with pytest.raises(PromptFedError, match="at least 1 client, not 0"):
            make_partition(name, {"repeat": True}, data, 0, seed=0)


# -- which images are handed over -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blind(Iid):
    """Deals images that it is not shown."""

    name: ClassVar[str] = "blind"

    def split(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        assert len(dataset.images) == 0
        return super().split(dataset, clients, rng)


@dataclass(frozen=True)
class Seeing(Iid):
    """Deals images that it asks to see."""

    name: ClassVar[str] = "seeing"
    needs_images: ClassVar[bool] = True

    def split(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        assert dataset.images[:, 0, 0, 0].tolist() == [10, 30]
        return super().split(dataset, clients, rng)


@pytest.mark.parametrize("kind", [Blind, Seeing])
def test_of_some_images_only_who_needs_them_sees_them(kind: type[Iid], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTITIONS, kind.name, kind)
    data = replace(coloured([10, 20, 30], [False] * 3), used=np.array([True, False, True]))
    found = make_partition(kind.name, {}, data, 2, seed=0)
    assert sorted(own.tolist() for own in found.train) == [[0], [2]]


def test_only_aspects_look_at_images() -> None:
    assert [name for name, kind in PARTITIONS.items() if getattr(kind, "needs_images", False)] == ["aspects"]
