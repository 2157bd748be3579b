"""Evaluating on test or on validation images: what trains, what is looked at, and what nobody may touch."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset
from promptfed.data.partition import PARTITIONS, Partition, make_partition
from promptfed.data.split import Split, evaluated_on, fewer, validated


def toy(count: int = 40, official: bool = True) -> Dataset:
    """Return two domains and two classes; of ten images in a row, 7 and 8 validate (if official) and 9 tests."""
    n = np.arange(count)
    return Dataset(
        name="toy",
        images=n.astype(np.uint8).reshape(-1, 1, 1, 1).repeat(3, -1),
        labels=n % 2,
        test=n % 10 == 9,
        classes=("even", "odd"),
        domains=n // (count // 2),
        domain_names=("here", "there"),
        val=(n % 10 == 7) | (n % 10 == 8) if official else None,
    )


def dealt(data: Dataset, name: str = "domain", clients: int = 2) -> tuple[list[int], list[int]]:
    """Return all training and all test images of a partition."""
    made = make_partition(name, {}, data, clients, seed=0)
    return (
        sorted(int(i) for own in made.train for i in own),
        sorted(int(i) for own in made.test for i in own),
    )


def test_on_test_images_validation_images_never_train() -> None:
    data = toy()
    seen = evaluated_on(data, "test", seed=0)
    assert dealt(seen) == ([i for i in range(40) if i % 10 < 7], [9, 19, 29, 39])
    assert dealt(data) == dealt(seen)  # nor where nobody asked
    assert seen.images is data.images


def test_on_official_validation_images_no_test_image_is_used() -> None:
    data = toy()
    seen = evaluated_on(data, "val", seed=0)
    assert dealt(seen) == ([i for i in range(40) if i % 10 < 7], [7, 8, 17, 18, 27, 28, 37, 38])
    assert seen.images is data.images
    assert seen.val is None


def test_without_official_ones_a_share_of_every_class_and_domain_validates() -> None:
    data = toy(official=False)
    seen = evaluated_on(data, "val", seed=3, share=0.25)
    train, held_out = dealt(seen)
    assert sorted(train + held_out) == [i for i in range(40) if i % 10 != 9]
    groups = np.stack([data.domains[held_out], data.labels[held_out]], 1).tolist()
    # 10 even and 8 odd training images per domain: 2.5 is rounded to 3, 2 stays 2
    assert [groups.count([domain, label]) for domain in (0, 1) for label in (0, 1)] == [3, 2, 3, 2]
    assert dealt(evaluated_on(data, "val", seed=3, share=0.25)) == (train, held_out)
    assert dealt(evaluated_on(data, "val", seed=4, share=0.25)) != (train, held_out)


def test_a_set_without_validation_images_is_tested_as_it_is() -> None:
    data = toy(official=False)
    assert evaluated_on(data, "test", seed=0) is data


@settings(deadline=None)  # clustering takes its time
@given(
    name=st.sampled_from(sorted(PARTITIONS)),
    official=st.booleans(),
    split=st.sampled_from(get_args(Split)),
    seed=st.integers(0, 9),
)
def test_no_partition_deals_what_is_left_out(name: str, official: bool, split: Split, seed: int) -> None:
    data = toy(80, official)
    seen = evaluated_on(data, split, seed)
    few = {"classes_per_client": 1} if name.endswith(("pathological", "disjoint")) else {}
    few = {"cells": 1} if name == "aspects" else few
    made = make_partition(name, few, seen, 2, seed)
    for client in range(2):
        for own in (made.train[client], made.test[client]):
            assert seen.dealt[own].all()
            if split == "val":
                assert not data.test[own].any()
        if not name.startswith("pfllib"):
            assert seen.test[made.test[client]].all()
            assert not seen.test[made.train[client]].any()


def test_leaving_out_equals_not_having() -> None:
    """A partition of the images in use is the partition of a set that has only those."""
    seen = evaluated_on(toy(80), "test", seed=0)
    rows = np.flatnonzero(seen.dealt)
    only = replace(
        seen, images=seen.images[rows], labels=seen.labels[rows], test=seen.test[rows], domains=seen.domains[rows]
    )
    only = replace(only, used=None)
    for name in ("iid", "dirichlet"):
        some, all_ = (make_partition(name, {}, data, 3, seed=5) for data in (seen, only))
        for mine, theirs in zip((*some.train, *some.test), (*all_.train, *all_.test), strict=True):
            assert mine.tolist() == rows[theirs].tolist()


@pytest.mark.parametrize("name", ["pfllib-iid", "pfllib-pathological", "pfllib-dirichlet"])
def test_validation_never_looks_at_what_a_partition_tests_on(name: str) -> None:
    data = toy(400, official=False)
    keys = {"classes_per_client": 1} if name == "pfllib-pathological" else {}
    final = make_partition(name, keys, data, 4, seed=0)
    chosen = validated(final, data, seed=0, share=0.25)
    for client, own in enumerate(final.train):
        both = np.concatenate([chosen.train[client], chosen.test[client]])
        assert sorted(both.tolist()) == own.tolist()
        for group in np.unique(data.labels[own] + 10 * data.domains[own]):
            rows, held_out = own, chosen.test[client]
            many, few = (np.sum(data.labels[some] + 10 * data.domains[some] == group) for some in (rows, held_out))
            assert few == min(int(many * 0.25 + 0.5), many - 1)


def test_too_few_to_validate_in_a_partition() -> None:
    data = toy(8, official=False)
    alone = Partition("alone", (np.array([0]), np.array([1])), (np.array([2]), np.array([3])))
    with pytest.raises(PromptFedError, match="too few training images to set some aside"):
        validated(alone, data, seed=0)


def test_a_saved_partition_of_the_test_split_is_refused_in_validation(tmp_path: Path) -> None:
    data = toy()
    path = tmp_path / "partition.json"
    make_partition("domain", {}, evaluated_on(data, "test", 0), 2, 0).save(path, data)
    again = make_partition(f"file:{path}", {}, evaluated_on(data, "test", 0), 2, 0)
    assert again.test[0].tolist() == [9, 19]
    with pytest.raises(PromptFedError, match=r'names image 9, which is left out of "toy" here; .*another evaluation'):
        make_partition(f"file:{path}", {}, evaluated_on(data, "val", 0), 2, 0)


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(PromptFedError, match='Unknown evaluation split "vall"; did you mean "val"'):
        evaluated_on(toy(), "vall", 0)  # type: ignore[arg-type]
    with pytest.raises(PromptFedError, match='"toy" has too few training images to set some aside for validation'):
        evaluated_on(toy(4, official=False), "val", 0)


def test_fewer_keeps_all_validation_images() -> None:
    small = fewer(toy(), 1)
    assert small.val is not None
    assert small.images[small.dealt & ~small.test, 0, 0, 0].tolist() == [0, 1, 20, 21]
    assert small.images[small.val, 0, 0, 0].tolist() == [7, 8, 17, 18, 27, 28, 37, 38]
    assert int(small.test.sum()) == 4
