import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset
from promptfed.data.partition import make_partition


def toy(domains: int, test: int) -> Dataset:
    """18 images of 3 classes; of each six the last `test` are test images."""
    return Dataset(
        name="toy",
        images=np.zeros((18, 1, 1, 3), dtype=np.uint8),
        labels=np.arange(18) // 6,
        test=np.arange(18) % 6 >= 6 - test,
        classes=("shirt", "shoe", "bag"),
        domains=np.arange(18) % domains,
        domain_names=tuple(f"domain {i}" for i in range(domains)),
    )


@pytest.mark.parametrize(
    ("name", "options", "clients", "sentence"),
    [
        ("dirichlett", {}, 2, 'Unknown partition "dirichlett"; did you mean "dirichlet"?'),
        ("file", {}, 2, 'Unknown partition "file"; did you mean "file:PATH"?'),
        ("dirichlet", {"alpa": 1}, 2, 'Unknown key "alpa" in the partition "dirichlet"; did you mean "alpha"?'),
        ("iid", {"alpha": 1}, 2, 'Unknown key "alpha" in the partition "iid"; valid: none.'),
        ("file:x.json", {"alpha": 1}, 2, 'Unknown key "alpha" in the partition "file:x.json"; valid: none.'),
        ("dirichlet", {"alpha": 0}, 2, "partition.alpha must be a finite number above 0, not 0."),
        ("quantity", {"alpha": -0.5}, 2, "partition.alpha must be a finite number above 0, not -0.5."),
        ("domain-dirichlet", {"balanced": 1}, 2, "partition.balanced must be true or false, not 1."),
        ("domain-dirichlet", {"alpha": float("nan")}, 2, "partition.alpha must be a finite number above 0, not nan."),
        ("dirichlet", {"alpha": float("inf")}, 2, "partition.alpha must be a finite number above 0, not inf."),
        ("dirichlet", {"alpha": "0.3"}, 2, "partition.alpha must be a finite number above 0, not '0.3'."),
        ("dirichlet", {"alpha": True}, 2, "partition.alpha must be a finite number above 0, not True."),
        ("dirichlet", {"min_train": 0}, 2, "partition.min_train must be a whole number of at least 1, not 0."),
        (
            "dirichlet",
            {"min_train": 7},
            2,
            "partition.min_train = 7 asks for 14 training images for 2 clients but there are only 12; use at most 6.",
        ),
        (
            "pathological",
            {"classes_per_client": 0},
            2,
            "partition.classes_per_client must be a whole number of at least 1, not 0.",
        ),
        (
            "disjoint",
            {"classes_per_client": 1.5},
            2,
            "partition.classes_per_client must be a whole number of at least 1, not 1.5.",
        ),
        (
            "disjoint",
            {"classes_per_client": 4},
            2,
            'partition.classes_per_client = 4 but data set "toy" has only 3 classes.',
        ),
        (
            "disjoint",
            {},
            2,
            "The disjoint partition has no classes left for client 1: 3 classes with "
            "partition.classes_per_client = 2 suffice for 1 clients, not 2.",
        ),
        (
            "domain-pathological",
            {"classes_per_client": 4},
            2,
            'partition.classes_per_client = 4 but the training part of domain "domain 0" has only 3 classes.',
        ),
        (
            "domain",
            {},
            3,
            'The domain partition has one client per domain: data set "toy" has 2 domains, so use 2 clients, not 3.',
        ),
        (
            "domain-dirichlet",
            {},
            3,
            'The domain-dirichlet partition divides clients evenly over the 2 domains of "toy"; use 4 clients, not 3.',
        ),
        (
            "domain-dirichlet",
            {},
            14,
            'The partition has 7 clients in domain "domain 0" but only 6 training images; '
            'use at most 6 clients in domain "domain 0".',
        ),
        (
            "domain-dirichlet",
            {"balanced": True},
            2,
            "The balanced domain-dirichlet partition with partition.alpha = 0.5 cannot give each of 1 clients 10 "
            'images of the training part of domain "domain 0"; raise partition.alpha or use fewer clients.',
        ),
        ("iid", {}, 0, "A partition needs at least 1 client, not 0."),
        ("domain-dirichlet", {}, 0, "divides clients evenly over the 2 domains"),
        *[
            (name, {}, 5000, "The partition has 5000 clients but only 12 training images; use at most 12 clients.")
            for name in ("iid", "dirichlet", "pathological", "disjoint", "quantity")
        ],
    ],
)
def test_mistakes(name: str, options: dict[str, object], clients: int, sentence: str) -> None:
    with pytest.raises(PromptFedError) as caught:
        make_partition(name, options, toy(domains=2, test=2), clients, 0)
    assert sentence in str(caught.value)


def test_a_group_of_classes_without_training_images_is_a_sentence() -> None:
    dataset = toy(domains=1, test=0)
    untrained = Dataset(**{**vars(dataset), "test": dataset.labels == 1})
    with pytest.raises(PromptFedError, match='"disjoint" leaves client 1 of 3 without a training image'):
        make_partition("disjoint", {"classes_per_client": 1}, untrained, 3, 0)
