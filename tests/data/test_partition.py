from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset
from promptfed.data.deal import apportion, draw_classes, in_proportion, proportions, top_up
from promptfed.data.domain_partitioners import domain_last
from promptfed.data.partition import PARTITIONS, Partition, make_partition
from support.datasets import dataset_of

Case = tuple[str, dict[str, object], Dataset, int]
NATIVE = [name for name in PARTITIONS if not name.startswith("pfllib-") and name != "aspects"]  # it looks at pictures
RANDOM = [name for name in NATIVE if name not in ("disjoint", "disjoint-random", "domain")]


def even(classes: int, train: int, test: int, domains: int = 1) -> Dataset:
    """`train` training and `test` test images of every class in every domain."""
    block = np.repeat(np.arange(classes), train + test)
    flags = np.tile(np.arange(train + test) >= train, classes)
    regions = np.repeat(np.arange(domains), len(block))
    return dataset_of(np.tile(block, domains), np.tile(flags, domains), regions)


def joined(parts: Sequence[Any]) -> list[int]:
    return [int(i) for part in parts for i in part]


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    """Any labels, test flags and domains, but every class and every domain has a training image."""
    classes, regions = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    first = max(classes, regions)
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, classes - 1), st.booleans(), st.integers(0, regions - 1)), min_size=0, max_size=60
        )
    )
    labels = [*(i % classes for i in range(first)), *(row[0] for row in rows)]
    test = [*(False for _ in range(first)), *(row[1] for row in rows)]
    domains = [*(i % regions for i in range(first)), *(row[2] for row in rows)]
    return dataset_of(labels, test, domains, classes, regions)


@st.composite
def cases(draw: st.DrawFn, names: list[str] = NATIVE) -> Case:
    """A partition that must succeed, up to one training image per client."""
    dataset, name = draw(datasets()), draw(st.sampled_from(names))
    train, regions = ~dataset.test, len(dataset.domain_names)
    alpha = draw(st.sampled_from([1e-320, 1e-3, 0.3, 1, 1e6, 1e308]))
    inside = [dataset.labels[train & (dataset.domains == d)] for d in range(regions)]
    clients = draw(st.integers(1, int(train.sum())))
    if name == "domain":
        return name, {}, dataset, regions
    if name == "disjoint":
        each = draw(st.integers(1, len(dataset.classes)))
        return name, {"classes_per_client": each}, dataset, draw(st.integers(1, len(dataset.classes) // each))
    if name == "disjoint-random":
        return name, {}, dataset, draw(st.integers(1, len(dataset.classes)))
    if name == "equal":
        return name, {"each": draw(st.integers(1, int(train.sum()) // clients))}, dataset, clients
    if name.startswith("domain-"):
        clients = regions * draw(st.integers(1, min(len(part) for part in inside)))
    if name.endswith("pathological"):
        present = inside if name.startswith("domain-") else [dataset.labels[train]]
        most = min(len(np.unique(part)) for part in present)
        return name, {"classes_per_client": draw(st.integers(1, most))}, dataset, clients
    return name, {} if name == "iid" else {"alpha": alpha}, dataset, clients


# -- what every split promises ----------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**40))
def test_every_image_at_most_once_in_its_own_part_and_nobody_without(case: Case, seed: int) -> None:
    name, options, dataset, clients = case
    partition = make_partition(name, options, dataset, clients, seed)
    train, test = joined(partition.train), joined(partition.test)
    assert partition.name == name
    assert len(partition) == len(partition.train) == len(partition.test) == clients
    assert len(set(train)) == len(train)
    assert len(set(test)) == len(test)
    assert not dataset.test[train].any()
    assert dataset.test[test].all()
    assert min(len(part) for part in partition.train) >= 1


@settings(max_examples=200, deadline=None)
@given(case=cases(), seed=st.integers(0, 1000))
def test_same_seed_same_split_whatever_the_pictures_show(case: Case, seed: int) -> None:
    name, options, dataset, clients = case
    np.random.seed(seed)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    first = make_partition(name, options, dataset, clients, seed)
    again = make_partition(name, options, replace(dataset, images=dataset.images + 9), clients, seed)
    assert first == again
    assert first.hash == again.hash
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


@settings(max_examples=200, deadline=None)
@given(
    case=cases([name for name in NATIVE if name not in ("iid", "domain", "quantity", "equal")]),
    seed=st.integers(0, 1000),
)
def test_clients_are_tested_only_on_classes_they_train_on(case: Case, seed: int) -> None:
    name, options, dataset, clients = case
    partition = make_partition(name, options, dataset, clients, seed)
    for train, test in zip(partition.train, partition.test, strict=True):
        assert set(dataset.labels[test]) <= set(dataset.labels[train])


@settings(max_examples=200, deadline=None)
@given(case=cases(["iid", "dirichlet", "quantity", "domain", "domain-dirichlet"]), seed=st.integers(0, 1000))
def test_these_use_every_image_unless_only_its_class_is_untrained(case: Case, seed: int) -> None:
    name, options, dataset, clients = case
    partition = make_partition(name, options, dataset, clients, seed)
    assert sorted(joined(partition.train)) == np.flatnonzero(~dataset.test).tolist()
    if name != "domain-dirichlet":
        assert sorted(joined(partition.test)) == np.flatnonzero(dataset.test).tolist()


@settings(max_examples=200, deadline=None)
@given(case=cases(["pathological", "domain-pathological"]), seed=st.integers(0, 1000))
def test_no_client_exceeds_its_number_of_classes(case: Case, seed: int) -> None:
    name, options, dataset, clients = case
    partition = make_partition(name, options, dataset, clients, seed)
    kinds = (partition.counts(dataset) > 0).sum(axis=1)
    assert kinds.max() <= int(str(options["classes_per_client"]))


@settings(max_examples=60, deadline=None)
@given(case=cases(), seed=st.integers(0, 1000))
def test_saved_and_loaded_is_the_same(tmp_path_factory: pytest.TempPathFactory, case: Case, seed: int) -> None:
    name, options, dataset, clients = case
    path = tmp_path_factory.mktemp("saved") / "partition.json"
    partition = make_partition(name, options, dataset, clients, seed)
    partition.save(path, dataset)
    loaded = Partition.load(path, dataset)
    assert loaded == partition
    assert [part.tolist() for part in loaded.test] == [part.tolist() for part in partition.test]
    assert make_partition(f"file:{path}", {}, dataset, clients, seed + 1) == partition


@pytest.mark.parametrize("name", RANDOM)
def test_other_seeds_split_otherwise(name: str) -> None:
    dataset = even(4, 10, 5, domains=2)
    assert len({make_partition(name, options_for(name), dataset, 8, seed).hash for seed in range(20)}) == 20


def options_for(name: str) -> dict[str, object]:
    return {"classes_per_client": 2} if name.endswith("pathological") else {}


@pytest.mark.parametrize("name", NATIVE)
def test_one_class_one_client_one_image(name: str) -> None:
    options = {"classes_per_client": 1} if name.endswith(("pathological", "disjoint")) else {}
    options = {"each": 1} if name == "equal" else options
    partition = make_partition(name, options, dataset_of([0], False), 1, 0)
    assert (joined(partition.train), joined(partition.test)) == ([0], [])


@pytest.mark.parametrize("name", ["iid", "dirichlet", "pathological", "quantity"])
@pytest.mark.timeout(200)
def test_as_many_clients_as_training_images(name: str) -> None:
    dataset = dataset_of(np.arange(2000) ** 2 % 7, np.arange(2000) % 4 == 3, classes=7)
    options: dict[str, object] = {"classes_per_client": 1} if name == "pathological" else {}
    options = {"alpha": 1e-9} if name in ("dirichlet", "quantity") else options
    partition = make_partition(name, options, dataset, 1500, 3)
    assert [len(part) for part in partition.train] == [1] * 1500


# -- each way to split --------------------------------------------------------------


def test_iid_is_equal_within_one_image() -> None:
    partition = make_partition("iid", {}, even(3, 11, 4), 4, 0)
    assert [len(part) for part in partition.train] == [9, 8, 8, 8]
    assert [len(part) for part in partition.test] == [3, 3, 3, 3]


def test_dirichlet_with_a_large_alpha_is_nearly_iid() -> None:
    dataset = even(4, 1000, 200)
    partition = make_partition("dirichlet", {"alpha": 1e6}, dataset, 10, 0)
    tested = np.array([np.bincount(dataset.labels[part], minlength=4) for part in partition.test])
    assert np.abs(partition.counts(dataset) - 100).max() <= 2
    assert np.abs(tested - 20).max() <= 2


def test_dirichlet_with_a_tiny_alpha_gives_each_class_to_one_client() -> None:
    dataset = even(6, 50, 10)
    partition = make_partition("dirichlet", {"alpha": 1e-6}, dataset, 3, 1)
    counts = partition.counts(dataset)
    assert ((counts >= 49).sum(axis=0) == 1).all()
    assert counts.sum() == 300


def test_dirichlet_test_images_follow_the_training_images() -> None:
    dataset = even(5, 1000, 500)
    partition = make_partition("dirichlet", {"alpha": 0.3}, dataset, 8, 5)
    tested = np.array([np.bincount(dataset.labels[part], minlength=5) for part in partition.test])
    assert np.abs(tested - partition.counts(dataset) / 2).max() <= 1
    assert partition.counts(dataset).max() > 400


def test_dirichlet_with_few_images_of_a_class_favours_no_client() -> None:
    partition = make_partition("dirichlet", {"alpha": 1e6}, even(200, 10, 1), 50, 0)
    assert min(len(part) for part in partition.train) >= 25
    assert max(len(part) for part in partition.train) <= 57


@settings(max_examples=50, deadline=None)
@given(dataset=datasets(), data=st.data())
def test_dirichlet_brings_everyone_to_min_train(dataset: Dataset, data: st.DataObject) -> None:
    images = int((~dataset.test).sum())
    clients = data.draw(st.integers(1, images))
    least = data.draw(st.integers(1, images // clients))
    partition = make_partition("dirichlet", {"alpha": 0.01, "min_train": least}, dataset, clients, 0)
    assert min(len(part) for part in partition.train) >= least


@settings(max_examples=100, deadline=None)
@given(classes=st.integers(1, 12), clients=st.integers(1, 30), data=st.data())
def test_drawn_classes_are_balanced(classes: int, clients: int, data: st.DataObject) -> None:
    per_client = data.draw(st.integers(1, classes))
    held = draw_classes(classes, per_client, clients, np.random.default_rng(data.draw(st.integers(0, 99))))
    assert (held.sum(axis=0) == per_client).all()
    assert held.sum(axis=1).max() - held.sum(axis=1).min() <= 1
    assert held.any(axis=1).all() or clients * per_client < classes


def test_drawn_classes_have_no_pattern() -> None:
    sets = [tuple(column) for seed in range(4) for column in draw_classes(10, 5, 50, np.random.default_rng(seed)).T]
    assert len(set(sets)) > 120  # of 252 possible; dealing a deck without trades gives 8
    together = sum(draw_classes(6, 2, 9, np.random.default_rng(seed))[:2].all(axis=0).sum() for seed in range(400))
    assert together / (400 * 9) == pytest.approx(1 / 15, abs=0.015)


def test_pathological_shares_each_class_equally_among_its_holders() -> None:
    dataset = even(10, 100, 20)
    partition = make_partition("pathological", {"classes_per_client": 5}, dataset, 4, 0)
    counts = partition.counts(dataset)
    tested = np.array([np.bincount(dataset.labels[part], minlength=10) for part in partition.test])
    assert sorted(set(counts.flatten().tolist())) == [0, 50]
    assert ((counts > 0).sum(axis=0) == 2).all()
    assert (tested == counts // 5).all()


def test_pathological_draws_only_classes_with_training_images() -> None:
    dataset = dataset_of([0, 0, 2, 2, 4, 4], [False] * 4 + [False, True], classes=6)
    partition = make_partition("pathological", {"classes_per_client": 1}, dataset, 3, 0)
    assert sorted(np.flatnonzero(row).tolist() for row in partition.counts(dataset)) == [[0], [2], [4]]
    with pytest.raises(
        PromptFedError, match=r'classes_per_client = 4 but the training part .* "toy" has only 3 classes'
    ):
        make_partition("pathological", {"classes_per_client": 4}, dataset, 3, 0)


def test_disjoint_gives_consecutive_groups() -> None:
    dataset = dataset_of([0, 1, 2, 3, 4, 0, 3, 4], [False] * 5 + [True] * 3)
    partition = make_partition("disjoint", {"classes_per_client": 2}, dataset, 2, 0)
    assert [part.tolist() for part in partition.train] == [[0, 1], [2, 3]]
    assert [part.tolist() for part in partition.test] == [[5], [6]]


def test_domain_is_one_client_per_domain() -> None:
    dataset = dataset_of([0, 0, 1, 1], [False, False, False, True], [1, 0, 1, 0])
    partition = make_partition("domain", {}, dataset, 2, 0)
    assert [part.tolist() for part in partition.train] == [[1], [0, 2]]
    assert [part.tolist() for part in partition.test] == [[3], []]


def test_nobody_holds_an_unseen_domain() -> None:
    dataset = dataset_of([0, 0, 1, 1, 0], [False, False, False, True, True], [1, 0, 2, 0, 1])
    partition = make_partition("domain", {"unseen": "domain 1"}, dataset, 2, 0)
    assert [part.tolist() for part in partition.train] == [[1], [2]]
    assert [part.tolist() for part in partition.test] == [[3], []]


def test_a_domain_can_be_counted_last() -> None:
    dataset = dataset_of([0, 0, 1, 1], False, [1, 0, 2, 0])
    turned = domain_last(dataset, "domain 0")
    assert turned.domain_names == ("domain 1", "domain 2", "domain 0")
    assert turned.domains.tolist() == [0, 2, 1, 2]
    assert domain_last(dataset, "domain 2").domains.tolist() == dataset.domains.tolist()


@pytest.mark.parametrize("name", ["domain-dirichlet", "domain-pathological"])
def test_clients_of_a_domain_are_consecutive_and_hold_only_it(name: str) -> None:
    dataset = even(4, 10, 5, domains=3)
    partition = make_partition(name, options_for(name), dataset, 6, 0)
    for client, (train, test) in enumerate(zip(partition.train, partition.test, strict=True)):
        assert set(dataset.domains[train]) == {client // 2}
        assert set(dataset.domains[test]) <= {client // 2}


@pytest.mark.parametrize("seed", range(5))
def test_balanced_domains_leave_nobody_with_few_images_or_with_all(seed: int) -> None:
    # 40 training images of each of 8 classes in both domains: 320 a domain, 80 for each of its four clients
    dataset = even(8, 40, 10, domains=2)
    partition = make_partition("domain-dirichlet", {"alpha": 0.3, "balanced": True}, dataset, 8, seed)
    sizes = np.array([len(part) for part in partition.train])
    assert sizes.reshape(2, 4).sum(axis=1).tolist() == [320, 320]
    assert sizes.min() >= 10
    # who has 80 gets no further class, so nobody has more than 79 and a whole class of 40
    assert sizes.max() <= 119
    plain = make_partition("domain-dirichlet", {"alpha": 0.3}, dataset, 8, seed)
    assert [len(part) for part in plain.train] != sizes.tolist()


def test_quantity_skews_sizes_and_not_classes() -> None:
    dataset = even(2, 5000, 1000)
    partition = make_partition("quantity", {"alpha": 0.5}, dataset, 10, 0)
    counts = partition.counts(dataset)
    sizes, tested = counts.sum(axis=1), np.array([len(part) for part in partition.test])
    assert sizes.max() > 3 * sizes.min()
    assert np.abs(tested - sizes / 5).max() <= 1
    large = sizes > 500
    assert np.abs(counts[large, 0] / sizes[large] - 0.5).max() < 0.1


# -- the arithmetic --------------------------------------------------------------------


def test_apportion_and_in_proportion_by_hand() -> None:
    assert apportion(np.array([0.5, 0.25, 0.25]), 10).tolist() == [5, 3, 2]
    assert apportion(np.array([0.0, 1.0]), 7).tolist() == [0, 7]
    assert in_proportion(np.array([4, 0, 2]), 3).tolist() == [2, 0, 1]
    assert in_proportion(np.array([0, 0]), 3).tolist() == [0, 0]


def test_proportions_stay_true_at_the_ends_of_the_number_range() -> None:
    rng = np.random.default_rng(0)
    assert proportions(1e308, 4, rng).tolist() == pytest.approx([0.25] * 4, abs=1e-5)
    winners = [int(proportions(5e-324, 4, rng).argmax()) for _ in range(2000)]
    assert np.bincount(winners).tolist() == pytest.approx([500] * 4, abs=100)


def test_top_up_takes_the_largest_class_of_the_largest_client() -> None:
    plan = np.array([[5, 0, 1], [3, 0, 3]])
    assert top_up(plan, 2).tolist() == [[3, 2, 1], [3, 0, 3]]
    assert plan.tolist() == [[5, 0, 1], [3, 0, 3]]


def test_names_are_those_of_a_recipe() -> None:
    assert list(PARTITIONS) == [
        "iid",
        "dirichlet",
        "pathological",
        "disjoint",
        "disjoint-random",
        "quantity",
        "equal",
        "aspects",
        "domain",
        "domain-dirichlet",
        "domain-pathological",
        "pfllib-iid",
        "pfllib-pathological",
        "pfllib-dirichlet",
    ]
    assert all(kind.name == name for name, kind in PARTITIONS.items())
