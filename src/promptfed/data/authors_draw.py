"""The clients of the pFedPT authors' generator, dealt again: its draws in its order, from numpy's old generator.

Whoever makes the same draws in the same order gets the same clients, so nothing here may be reordered or made
shorter. The images must be in the official order, training images first. The run's own seed plays no part.
"""

import numpy as np
from numpy.random import RandomState

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Indices
from promptfed.data.shares import Partition

SEED = 1


def authors_state() -> RandomState:
    """Return the generator in the state in which the authors' script starts."""
    return RandomState(SEED)


def deal_in_order(
    labels: Indices, classes: int, clients: int, per_client: int, balanced: bool, least: int, state: RandomState
) -> list[Indices]:
    """Return each client's images: class after class to the first clients that still lack classes, in their order."""
    dealt: list[list[Indices]] = [[] for _ in range(clients)]
    lacking = np.full(clients, per_client)
    most = int(clients / classes * per_client)
    for label in range(classes):
        rows = np.flatnonzero(labels == label)
        holders = np.flatnonzero(lacking > 0)[:most]
        if not len(holders):
            raise _too_few(clients, "leave a class without a client")
        lacking[holders] -= 1
        ends = np.cumsum(_amounts(len(rows) / len(holders), len(holders), balanced, least / classes, state))
        for holder, own in zip(holders, np.split(rows, ends), strict=True):
            dealt[holder].append(own)
    return [np.concatenate(own) if own else np.empty(0, np.int64) for own in dealt]


def _amounts(part: float, holders: int, balanced: bool, least: float, state: RandomState) -> Indices:
    """Return what each holder of a class but the last gets; `part` is an equal share."""
    if balanced:
        return np.full(holders - 1, int(part))
    low, high = int(max(part / 10, least)), int(part)
    if low >= high and holders > 1:
        raise _too_few(holders, f"would share a class of {round(part * holders)} images")
    return state.randint(low, high, holders - 1, dtype=np.int64)


def deal_dirichlet(labels: Indices, classes: int, clients: int, alpha: float, state: RandomState) -> list[Indices]:
    """Return each client's images in one draw of Dir(alpha) shares; a client with its equal part gets no more."""
    dealt: list[Indices] = [np.empty(0, np.int64) for _ in range(clients)]
    for label in range(classes):
        rows = np.flatnonzero(labels == label)
        state.shuffle(rows)
        shares = state.dirichlet(np.repeat(alpha, clients))
        shares = shares * [len(own) < len(labels) / clients for own in dealt]
        if not shares.sum():
            break
        ends = (np.cumsum(shares / shares.sum()) * len(rows)).astype(np.int64)[:-1]
        dealt = [np.append(own, more) for own, more in zip(dealt, np.split(rows, ends), strict=True)]
    return dealt


def divide(name: str, dealt: list[Indices], train_fraction: float, state: RandomState) -> Partition:
    """Divide every client's images at random, test images first, as scikit-learn's `train_test_split` draws them."""
    train, test = [], []
    for own in dealt:
        order = state.permutation(len(own))
        tested = len(own) - int(train_fraction * len(own))
        test.append(own[order[:tested]])
        train.append(own[order[tested:]])
    return Partition(name, tuple(train), tuple(test))


def _too_few(clients: int, what: str) -> PromptFedError:
    return PromptFedError(f'partition.draw = "authors" does not fit: {clients} clients {what}; set it to "seed".')
