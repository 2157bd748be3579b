"""The arithmetic of dealing images to clients: who gets how many of which class, then which ones.

A plan is an int64 [classes, clients] table of training images; owners are an int64 [images] list of client ids.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from promptfed.data.dataset import Indices

NO_CLIENT = -1
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


def proportions(alpha: float, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """One draw from the symmetric Dirichlet distribution, [clients]."""
    # Beyond these bounds a draw is one-hot or uniform to the last digit, but its arithmetic overflows or underflows.
    return rng.dirichlet(np.full(clients, min(max(alpha, 1e-100), 1e12)))


def apportion(shares: NDArray[np.float64], total: int) -> Indices:
    """Whole numbers that follow `shares` (which sum to 1) and sum to `total`."""
    ends = np.rint(np.cumsum(shares) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(np.minimum(ends, total), prepend=0)


def in_proportion(counts: Indices, total: int) -> Indices:
    """Whole numbers that follow the whole numbers `counts` and sum to `total`; zero where the count is zero."""
    ends, whole = np.cumsum(counts), int(counts.sum())
    if not whole:
        return np.zeros_like(counts)
    return np.diff((2 * ends * total + whole) // (2 * whole), prepend=0)


def dirichlet_plan(sizes: Indices, clients: int, alpha: float, rng: np.random.Generator) -> Counts:
    """Split each class over the clients in proportions of its own; `sizes` are training images per class."""
    plan = np.zeros((len(sizes), clients), dtype=np.int64)
    for row, size in zip(plan, sizes, strict=True):
        # In a new order every time: else rounding would favour the same clients in every class.
        row[rng.permutation(clients)] = apportion(proportions(alpha, clients, rng), int(size))
    return plan


def holders_plan(sizes: Indices, held: Flags, rng: np.random.Generator) -> Counts:
    """Share each class equally among the clients that hold it; `held` is [classes, clients]."""
    plan = np.zeros(held.shape, dtype=np.int64)
    for row, size, holds in zip(plan, sizes, held, strict=True):
        holders = rng.permutation(np.flatnonzero(holds))
        if len(holders):
            row[holders] = size // len(holders) + (np.arange(len(holders)) < size % len(holders))
    return plan


def draw_classes(classes: int, per_client: int, clients: int, rng: np.random.Generator) -> Flags:
    """Give every client `per_client` classes at random, each class to as equal a number of clients as possible."""
    # Dealing one shuffled deck round and round is balanced but regular; trades keep the balance and lose the pattern.
    deck = np.resize(rng.permutation(classes), (clients, per_client))
    held = np.zeros((classes, clients), dtype=np.bool_)
    held[deck, np.arange(clients)[:, None]] = True
    for _ in range(8):
        order = rng.permutation(clients)
        for one, other in zip(order[0::2], order[1::2], strict=False):
            _trade(held, one, other, rng)
    return held


def _trade(held: Flags, one: int, other: int, rng: np.random.Generator) -> None:
    """Reshuffle between two clients the classes that only one of them holds."""
    differ = rng.permutation(np.flatnonzero(held[:, one] ^ held[:, other]))
    half = len(differ) // 2
    held[differ[:half], one], held[differ[half:], one] = True, False
    held[differ[:half], other], held[differ[half:], other] = False, True


def top_up(plan: Counts, least: int) -> Counts:
    """Bring every client to `least` images, each moved from the largest class of the client that is largest then."""
    plan, sizes = plan.copy(), plan.sum(axis=0)
    heap = [(-int(size), client) for client, size in enumerate(sizes)]
    heapq.heapify(heap)
    for poor in np.flatnonzero(sizes < least):
        for _ in range(least - int(sizes[poor])):
            size, rich = heapq.heappop(heap)
            kind = plan[:, rich].argmax()
            plan[kind, rich] -= 1
            plan[kind, poor] += 1
            heapq.heappush(heap, (size + 1, rich))
    return plan


def deal(plan: Counts, labels: Indices, test: Flags, rng: np.random.Generator) -> Indices:
    """Owners of all images: training images as planned, and the test images of each class in the same proportions."""
    owner = np.full(len(labels), NO_CLIENT, dtype=np.int64)
    for label, row in enumerate(plan):
        order = rng.permutation(len(row))
        train = rng.permutation(np.flatnonzero((labels == label) & ~test))
        owner[train[: row.sum()]] = np.repeat(order, row[order])
        held_out = rng.permutation(np.flatnonzero((labels == label) & test))
        takers = np.repeat(order, in_proportion(row[order], len(held_out)))
        owner[held_out[: len(takers)]] = takers
    return owner
