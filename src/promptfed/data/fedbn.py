"""Lists of training and test files per domain, and FedBN's way (Li et al. 2021) to take few images of each.

FedBN trains every client on the first images of its training list and validates on the last ones, as many as a share
of the shortest list: all clients are then equally small.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.data.photos import Photo

VAL_SHARE = 0.2  # of a training list that is not truncated


@dataclass(frozen=True)
class Lists:
    """The files of one domain, as paths relative to the data set's folder."""

    train: Sequence[str]
    test: Sequence[str]


def truncated(names: Sequence[str], shortest: int, train: float, val: float) -> tuple[Sequence[str], Sequence[str]]:
    """Return the first and the last names, `train` and `val` being shares of the shortest list's length."""
    return names[: int(train * shortest)], names[len(names) - int(val * shortest) :]


def listed(root: Path, lists: Mapping[str, Lists], shares: tuple[float, float] | None) -> list[Photo]:
    """Return the photographs that domain by domain train, validate and test.

    `shares` are FedBN's for training and validation; None takes all, the last fifth of each list for validation.
    """
    shortest = min(len(one.train) for one in lists.values())
    photos = []
    for domain, one in lists.items():
        held_out = int(VAL_SHARE * len(one.train))
        train, val = one.train[: len(one.train) - held_out], one.train[len(one.train) - held_out :]
        if shares is not None:
            train, val = truncated(one.train, shortest, *shares)
        if not train:
            raise PromptFedError(
                f'Truncation leaves domain "{domain}" in {root} without a training image: the shortest training list '
                f"has {shortest}; set data.truncate=false."
            )
        photos += [Photo(root / name, False, domain, class_name(name)) for name in train]
        photos += [Photo(root / name, False, domain, class_name(name), val=True) for name in val]
        photos += [Photo(root / name, True, domain, class_name(name)) for name in one.test]
    return photos


def class_name(path: str) -> str:
    """Return the class that a listed path such as "clipart/ice_cream/1.jpg" names: "ice cream"."""
    return path.rpartition("/")[0].rpartition("/")[2].replace("_", " ")
