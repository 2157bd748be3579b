"""Statistics that compare rows, one per client: cosines, correlations, neighbours, maps in the plane; numpy only."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def cosines(vectors: Array) -> Array:
    """Return the cosine of every two rows [N, N]; for a row of zeros it is 0."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(norms > 0, norms, 1)
    return np.clip(units @ units.T, -1, 1)


def centred(vectors: Array) -> Array:
    """Return the rows minus their mean; what equal rows leave is rounding error and becomes zero."""
    rest = vectors - vectors.mean(0)
    noise = 1e-9 * np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(np.linalg.norm(rest, axis=1, keepdims=True) > noise, rest, 0)


def label_distances(counts: Array) -> Array:
    """Return the total variation between every two clients' label distributions [N, N]: 0 equal, 1 disjoint."""
    held = shares(counts)
    distances: Array = np.abs(held[:, None] - held[None]).sum(-1) / 2
    return distances


def shares(counts: NDArray[Any]) -> Array:
    """Return each row as shares of its sum; a row of zeros stays zero."""
    found: Array = np.asarray(counts, np.float64) / np.maximum(counts.sum(1, keepdims=True), 1)
    return found


def row_cosines(first: Array, second: Array) -> Array:
    """Return the cosine of each row with the same row of the other [N]; for a row of zeros it is 0."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    found: Array = (first * second).sum(1) / np.where(lengths > 0, lengths, 1)
    return found


def row_correlations(first: Array, second: Array) -> list[float | None]:
    """Return Pearson's correlation of each row with the same row of the other; None if one of them is constant."""
    one, other = first - first.mean(1, keepdims=True), second - second.mean(1, keepdims=True)
    flat = (np.abs(one).max(1) < 1e-9) | (np.abs(other).max(1) < 1e-9)
    return [None if none else float(value) for none, value in zip(flat, row_cosines(one, other), strict=True)]


def same_neighbours(vectors: Array, groups: NDArray[Any]) -> float:
    """Return the share of rows whose nearest other row is in the same group; among equals the first counts."""
    lengths = (vectors**2).sum(1)
    apart = lengths[:, None] + lengths[None] - 2 * vectors @ vectors.T
    np.fill_diagonal(apart, np.inf)
    return float((groups[apart.argmin(1)] == groups).mean())


def silhouette(vectors: Array, groups: NDArray[Any]) -> float | None:
    """Return scikit-learn's silhouette score of rows in groups, from -1 to 1: higher means better separated.

    It is None for a single group, if no group has two rows, and if scikit-learn is not installed.
    """
    try:
        from sklearn.metrics import silhouette_score
    except ImportError:
        return None
    if not 2 <= len(np.unique(groups)) < len(vectors):
        return None
    return float(silhouette_score(vectors, groups))


def rank_correlation(first: Array, second: Array) -> float | None:
    """Return Spearman's correlation, ties sharing their mean rank; None if one side is constant."""
    one, other = _ranks(first), _ranks(second)
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def principal_components(vectors: Array) -> tuple[Array, list[float]]:
    """Return the rows on their first two principal axes [N, 2], and the share of the variance on each axis."""
    left, sizes, _ = np.linalg.svd(centred(vectors), full_matrices=False)
    points = np.zeros((len(vectors), 2))
    points[:, : len(sizes[:2])] = left[:, :2] * sizes[:2]
    # The sign of an axis is arbitrary: the farthest row goes on the positive side.
    points *= np.where(points[np.abs(points).argmax(0), [0, 1]] < 0, -1, 1)
    spread = (points**2).sum(0) / max(float((sizes**2).sum()), np.finfo(float).tiny)
    return points, rounded(spread, 3)


def plane(vectors: Array) -> dict[str, Any]:
    """Place rows in the plane, the largest coordinate being 1: by t-SNE, or on their principal components."""
    neighbours = min(30.0, (len(vectors) - 1) / 3)
    points = _tsne(vectors, neighbours) if len(vectors) >= 5 and centred(vectors).any() else None
    if points is not None:
        return {"map": "t-SNE", "perplexity": round(neighbours, 2), "points": _scaled(points)}
    points, explained = principal_components(vectors)
    return {"map": "principal components", "explained": explained, "points": _scaled(points)}


def _tsne(vectors: Array, perplexity: float) -> Array | None:
    """Return the t-SNE map, or None if scikit-learn is not installed or there is only one dimension."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        return None
    if vectors.shape[1] < 2:
        return None
    # The exact method: its sums do not depend on the number of threads, and there are few clients.
    maker = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=0, method="exact")
    points: Array = np.asarray(maker.fit_transform(vectors), np.float64)
    points -= points.mean(0)
    return points


def _scaled(points: Array) -> list[list[float]]:
    return rounded(points / (np.abs(points).max() or 1), 4)


def _ranks(values: Array) -> Array:
    """Return ranks from 1, equal values sharing their mean rank; differences below 1e-9 are rounding error."""
    _, which, many = np.unique(np.round(values, 9), return_inverse=True, return_counts=True)
    ranks: Array = (many.cumsum() - (many - 1) / 2)[which]
    return ranks


def rounded(values: Array, digits: int) -> list[Any]:
    """Return plain numbers; adding zero turns -0.0 into 0.0."""
    found: list[Any] = (np.round(values, digits) + 0.0).tolist()
    return found
