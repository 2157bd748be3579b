"""Halves of the classes, and shots drawn by the seed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset
from promptfed.data.partition import make_partition
from promptfed.data.selection import few, few_each, halved, of_other_classes
from promptfed.data.split import evaluated_on

NAMES = ("ant", "bee", "cat", "dog", "eel")


def toy(count: int = 100, classes: int = 5) -> Dataset:
    """Return two domains; every tenth image of a class in a row tests."""
    n = np.arange(count)
    return Dataset(
        name="toy",
        images=n.astype(np.uint8).reshape(-1, 1, 1, 1).repeat(3, -1),
        labels=n % classes,
        test=n // classes % 5 == 4,
        classes=NAMES[:classes],
        domains=n // (count // 2),
        domain_names=("here", "there"),
    )


def held(data: Dataset) -> tuple[list[int], list[int]]:
    """Return all training and all test images that one client would hold."""
    made = make_partition("iid", {}, data, 1, seed=0)
    return made.train[0].tolist(), made.test[0].tolist()


@pytest.mark.parametrize(("half", "chosen", "others"), [("base", [0, 1, 2], [3, 4]), ("novel", [3, 4], [0, 1, 2])])
def test_a_half_has_its_own_names_and_numbers(half: str, chosen: list[int], others: list[int]) -> None:
    data = toy()
    own = halved(data, half)  # type: ignore[arg-type]
    assert own.classes == tuple(NAMES[label] for label in chosen)
    assert own.others == tuple(NAMES[label] for label in others)
    assert own.images is data.images
    names = [*own.classes, *own.others]
    assert [names[label] for label in own.labels] == [NAMES[label] for label in data.labels]
    train, test = held(own)
    assert sorted(train + test) == [n for n in range(100) if n % 5 in chosen]
    assert of_other_classes(own).tolist() == [n for n in range(100) if n % 5 in others and n // 5 % 5 == 4]


def test_all_classes_are_all() -> None:
    data = toy()
    assert halved(data, "all") is data
    assert len(of_other_classes(data)) == 0
    with pytest.raises(PromptFedError, match=r'^data\.half=base halves the classes, but data set "toy" has only one'):
        halved(toy(classes=1), "base")


def test_even_classes_make_equal_halves() -> None:
    assert [len(halved(toy(classes=4), half).classes) for half in ("base", "novel")] == [2, 2]  # type: ignore[arg-type]


def test_what_nobody_may_use_is_no_test_image_of_the_other_half() -> None:
    data = toy()
    hidden = replace(data, used=np.arange(100) >= 50)
    assert of_other_classes(halved(hidden, "base")).tolist() == [
        n for n in of_other_classes(halved(data, "base")) if n >= 50
    ]
    validating = halved(evaluated_on(data, "val", seed=0), "base")
    new = of_other_classes(validating)
    assert len(new)
    assert not data.test[new].any()  # nor is an official test image, where settings are chosen


@settings(deadline=None)
@given(shots=st.integers(1, 9), seed=st.integers(0, 5))
def test_shots_of_every_class_and_domain(shots: int, seed: int) -> None:
    data = toy()
    train, test = held(few(data, shots, seed))
    assert test == held(data)[1]
    groups = 10 * data.domains[train] + data.labels[train]
    assert np.unique(groups, return_counts=True)[1].tolist() == [min(shots, 8)] * 10
    assert set(train) <= set(held(few(data, shots + 1, seed))[0])  # whoever asks for more gets the same ones and others


def test_the_seed_draws_the_shots() -> None:
    drawn = {tuple(held(few(toy(), 2, seed))[0]) for seed in range(5)}
    assert len(drawn) == 5
    assert held(few(toy(), 2, 3)) == held(few(toy(), 2, 3))
    first = [n for n in range(100) if n % 50 < 10]
    assert held(few(toy(), 2, 0))[0] != first


def test_shots_of_a_half() -> None:
    own = few(halved(toy(), "base"), 3, 0)
    train, _ = held(own)
    assert np.bincount(own.labels[train]).tolist() == [6, 6, 6]
    assert len(of_other_classes(own)) == 8


def test_shots_of_every_client() -> None:
    data = replace(toy(), domains=np.zeros(100, np.int64), domain_names=("here",))
    whole = make_partition("iid", {}, data, 4, seed=0)
    own = few_each(whole, data, 2, seed=1)
    for rows, before in zip(own.train, whole.train, strict=True):
        assert set(rows) <= set(before)
        counts = np.bincount(data.labels[before], minlength=5)
        assert np.bincount(data.labels[rows], minlength=5).tolist() == np.minimum(counts, 2).tolist()
    assert all(map(np.array_equal, own.test, whole.test))
    assert own != few_each(whole, data, 2, seed=2)


def test_no_two_clients_share_a_class_and_the_seed_deals_them() -> None:
    data = toy()
    made = make_partition("disjoint-random", {}, data, 2, seed=0)
    classes = [set(data.labels[rows]) for rows in made.train]
    assert classes[0] & classes[1] == set()
    assert sorted(map(len, classes)) == [2, 3]
    assert [set(data.labels[rows]) for rows in made.test] == classes
    assert len({tuple(make_partition("disjoint-random", {}, data, 2, seed=seed).train[0]) for seed in range(9)}) > 3
    with pytest.raises(
        PromptFedError, match=r"^The disjoint-random partition .*: 5 classes suffice for 5 clients, not 6"
    ):
        make_partition("disjoint-random", {}, data, 6, seed=0)
