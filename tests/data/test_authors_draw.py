"""The published draw of pFedPT's authors: the sizes it is known to give, and every image by a second way."""

import numpy as np
import pytest
from numpy.typing import NDArray

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset
from promptfed.data.partition import Partition, make_partition


def dataset_of(labels: NDArray[np.int64], classes: int) -> Dataset:
    return Dataset(
        name="toy",
        images=np.zeros((len(labels), 1, 1, 3), dtype=np.uint8),
        labels=labels,
        test=np.arange(len(labels)) >= len(labels) * 5 // 6,
        classes=tuple(str(label) for label in range(classes)),
        domains=np.zeros(len(labels), dtype=np.int64),
        domain_names=("all",),
    )


@pytest.fixture(scope="module")
def cifar() -> Dataset:
    """60,000 labels, 6,000 of each class as in CIFAR-10: the sizes of the clients depend on nothing else."""
    return dataset_of(np.random.default_rng(0).permutation(np.arange(60_000) % 10), 10)


def authors(dataset: Dataset, name: str, clients: int = 50, seed: int = 0, **options: object) -> Partition:
    return make_partition(f"pfllib-{name}", {**options, "draw": "authors"}, dataset, clients, seed)


@pytest.mark.parametrize(
    ("name", "options", "train", "test"),
    [
        (
            "dirichlet",
            {"alpha": 0.3},
            [862, 481, 1532, 417, 394, 1046, 506, 909, 745, 936],
            [288, 161, 511, 139, 132],
        ),
        ("dirichlet", {"alpha": 0.1}, [792, 295, 1070, 217, 15, 1284, 2151, 388, 294, 280], [264, 99, 357, 73, 6]),
        ("pathological", {}, [355, 675, 637, 352, 476, 557, 630, 323, 456, 422], [119, 225, 213, 118, 159]),
        (
            "pathological",
            {"classes_per_client": 2},
            [324, 456, 411, 549, 375, 838, 681, 462, 600, 4299],
            [109, 153, 138, 183, 126],
        ),
        ("iid", {"balanced": True}, [900] * 10, [300] * 5),
    ],
)
def test_the_sizes_are_those_of_the_authors_script(
    cifar: Dataset, name: str, options: dict[str, object], train: list[int], test: list[int]
) -> None:
    partition = authors(cifar, name, **options)
    assert [len(rows) for rows in partition.train[:10]] == train
    assert [len(rows) for rows in partition.test[:5]] == test
    assert sum(len(rows) for rows in (*partition.train, *partition.test)) == 60_000


# -- every image, by the published steps written out in plain Python ------------------------------------------------


def halves(rows: list[int]) -> tuple[list[int], list[int]]:
    """Return (train, test) of a client as scikit-learn draws them with `train_size=0.75` from the global state."""
    order = np.random.permutation(len(rows))
    count = len(rows) - int(len(rows) * 3 // 4)
    return sorted(rows[i] for i in order[count:]), sorted(rows[i] for i in order[:count])


def plain_dirichlet(labels: list[int], classes: int, clients: int, alpha: float) -> list[list[int]]:
    mine: list[list[int]] = [[]]
    while min(map(len, mine)) < 8:
        mine = [[] for _ in range(clients)]
        for label in range(classes):
            rows = np.array([row for row, one in enumerate(labels) if one == label])
            np.random.shuffle(rows)
            shares = np.random.dirichlet([alpha] * clients)
            open_ = [
                share if len(own) * clients < len(labels) else 0.0 for share, own in zip(shares, mine, strict=True)
            ]
            parts, total, start, reached = [], np.sum(open_), 0, 0.0
            for share in open_:
                reached += share / total
                parts.append(rows[start : int(reached * len(rows))])
                start = int(reached * len(rows))
            parts[-1] = np.append(parts[-1], rows[start:])
            for own, part in zip(mine, parts, strict=True):
                own.extend(part.tolist())
    return mine


def plain_pathological(labels: list[int], classes: int, clients: int, per_client: int) -> list[list[int]]:
    mine: list[list[int]] = [[] for _ in range(clients)]
    had = [0] * clients
    for label in range(classes):
        rows = [row for row, one in enumerate(labels) if one == label]
        chosen = [client for client in range(clients) if had[client] < per_client]
        chosen = chosen[: int(clients / classes * per_client)]
        part = len(rows) / len(chosen)
        sizes = np.random.randint(max(part / 10, 8 / classes), part, len(chosen) - 1).tolist()
        for client, size in zip(chosen, [*sizes, len(rows) - sum(sizes)], strict=True):
            mine[client] += rows[:size]
            rows = rows[size:]
            had[client] += 1
    return mine


@pytest.fixture
def global_state() -> None:
    """Start numpy's global generator where the authors' script starts it."""
    np.random.seed(1)


@pytest.mark.usefixtures("global_state")
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_dirichlet_clients_hold_the_very_images(alpha: float) -> None:
    labels = np.random.default_rng(3).integers(0, 6, 900)
    plain = [halves(rows) for rows in plain_dirichlet(labels.tolist(), 6, 7, alpha)]
    found = authors(dataset_of(labels, 6), "dirichlet", 7, alpha=alpha)
    assert [(a.tolist(), b.tolist()) for a, b in zip(found.train, found.test, strict=True)] == plain


@pytest.mark.usefixtures("global_state")
@pytest.mark.parametrize(("clients", "per_client"), [(6, 2), (9, 4), (5, 6)])
def test_pathological_clients_hold_the_very_images(clients: int, per_client: int) -> None:
    labels = np.random.default_rng(4).integers(0, 6, 900)
    plain = [halves(rows) for rows in plain_pathological(labels.tolist(), 6, clients, per_client)]
    found = authors(dataset_of(labels, 6), "pathological", clients, classes_per_client=per_client)
    assert [(a.tolist(), b.tolist()) for a, b in zip(found.train, found.test, strict=True)] == plain


def test_the_seed_of_a_run_changes_nothing_and_the_global_generator_stays(cifar: Dataset) -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    for name in ("dirichlet", "pathological", "iid"):
        assert authors(cifar, name, seed=0) == authors(cifar, name, seed=5)
        assert authors(cifar, name) != make_partition(f"pfllib-{name}", {}, cifar, 50, 0)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


def test_equal_clients_also_from_the_seed(cifar: Dataset) -> None:
    partition = make_partition("pfllib-iid", {"balanced": True}, cifar, 50, 3)
    assert {len(rows) for rows in partition.train} == {900}
    assert (partition.counts(cifar) > 0).all()


@pytest.mark.parametrize(
    ("name", "clients", "options", "sentence"),
    [
        ("iid", 20, {"draw": "author"}, 'Unknown partition.draw "author"; did you mean "authors"?'),
        ("iid", 20, {"balanced": 1}, "partition.balanced must be true or false, not 1."),
        ("iid", 7, {}, "7 clients would share a class of 7 images; set it to"),
        ("pathological", 3, {"classes_per_client": 1}, "3 clients leave a class without a client; set it to"),
    ],
)
def test_mistakes(name: str, clients: int, options: dict[str, object], sentence: str) -> None:
    dataset = dataset_of(np.arange(28) % 4, 4)
    with pytest.raises(PromptFedError) as caught:
        make_partition(f"pfllib-{name}", {"draw": "authors"} | options, dataset, clients, 0)
    assert sentence in str(caught.value)
