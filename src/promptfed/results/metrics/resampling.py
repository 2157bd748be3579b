"""The bootstrap over test images: each resample draws as many images as there are, with replacement."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
LEVEL = 0.95
ROOM = 2**22  # weights in memory at a time

Weights = NDArray[np.float32]


def resamples(images: int, seed: int, client: int) -> Iterator[tuple[slice, Weights]]:
    """Yield how often each resample has each of a client's images [rows, images], with the numbers of the resamples."""
    rng = np.random.default_rng((seed, client))
    step = max(1, ROOM // images)
    for first in range(0, RESAMPLES, step):
        rows = min(step, RESAMPLES - first)
        drawn = rng.integers(0, images, (rows, images)) + images * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * images).reshape(rows, images)
        yield slice(first, first + rows), counts.astype(np.float32)


def interval(values: NDArray[Any]) -> list[float] | None:
    """Return the middle `LEVEL` of the values, those that are NaN left out."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    ends = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [round(float(end), 6) for end in ends]
