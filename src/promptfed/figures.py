"""What the clients' prompts, descriptors, attention and answers say about the clients, as small numbers.

`make` takes what a method shows of itself at the end of a run and sets it beside who holds which images; the report
draws what it returns. The rest compares rows, one per client, for the figures one asks for. No tensors here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptfed.errors import PromptFedError, choice

MOST_CLIENTS = 64
# What a method may show, and the shape of each over all N clients.
EXHIBITS = {"prompts": "[N, K, D]", "descriptors": "[N, D]", "attention": "[N, K]"}

Array = NDArray[np.float64]


def make(
    exhibits: Mapping[str, NDArray[Any]],
    counts: NDArray[Any],
    domains: NDArray[Any],
    domain_names: Sequence[str],
) -> dict[str, object] | None:
    """Return the content of figures.json for the first clients, or None where there is nothing to show.

    `counts` [N, classes] are the clients' training images per class, `domains` [N] the domain of each.
    """
    shown = {name: _checked(name, exhibit, len(counts)) for name, exhibit in exhibits.items()}
    counts, domains = np.asarray(counts[:MOST_CLIENTS], np.float64), np.asarray(domains[:MOST_CLIENTS])
    parts: dict[str, object] = {}
    if "prompts" in shown and len(counts) > 1:
        parts["prompts"] = _prompts(_flat(shown["prompts"]), counts, domains)
    if "descriptors" in shown and len(counts) > 1:
        parts["descriptors"] = plane(_flat(shown["descriptors"]))
    if "attention" in shown:
        parts["attention"] = _rounded(shown["attention"], 6)
    if not parts:
        return None
    about = {"domain_names": list(domain_names), "domains": domains.tolist(), "classes": counts.argmax(1).tolist()}
    return {"clients": len(counts), **about, **parts}


def cosines(vectors: Array) -> Array:
    """Return the cosine of every two rows [N, N]; a row of zeros has no direction and is 0 with all."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(norms > 0, norms, 1)
    return np.clip(units @ units.T, -1, 1)


def centred(vectors: Array) -> Array:
    """Return the rows without their mean; what is left of equal rows is rounding, and becomes zero."""
    rest = vectors - vectors.mean(0)
    noise = 1e-9 * np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(np.linalg.norm(rest, axis=1, keepdims=True) > noise, rest, 0)


def label_distances(counts: Array) -> Array:
    """Return the total variation between every two clients' label distributions [N, N]: 0 equal, 1 disjoint."""
    held = shares(counts)
    distances: Array = np.abs(held[:, None] - held[None]).sum(-1) / 2
    return distances


def shares(counts: NDArray[Any]) -> Array:
    """Return each row as shares of its sum; a row of zeros stays."""
    found: Array = np.asarray(counts, np.float64) / np.maximum(counts.sum(1, keepdims=True), 1)
    return found


def row_cosines(first: Array, second: Array) -> Array:
    """Return the cosine of each row of one with the same row of the other [N]; with a row of zeros it is 0."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    found: Array = (first * second).sum(1) / np.where(lengths > 0, lengths, 1)
    return found


def row_correlations(first: Array, second: Array) -> list[float | None]:
    """Return Pearson's correlation of each row with the same row of the other; None where one is all the same."""
    one, other = first - first.mean(1, keepdims=True), second - second.mean(1, keepdims=True)
    flat = (np.abs(one).max(1) < 1e-9) | (np.abs(other).max(1) < 1e-9)
    return [None if none else float(value) for none, value in zip(flat, row_cosines(one, other), strict=True)]


def same_neighbours(vectors: Array, groups: NDArray[Any]) -> float:
    """Return the share of rows whose nearest other row is of the same group; of several as near, the first counts."""
    lengths = (vectors**2).sum(1)
    apart = lengths[:, None] + lengths[None] - 2 * vectors @ vectors.T
    np.fill_diagonal(apart, np.inf)
    return float((groups[apart.argmin(1)] == groups).mean())


def silhouette(vectors: Array, groups: NDArray[Any]) -> float | None:
    """Return scikit-learn's silhouette score of rows in groups, from -1 to 1, the nearer to 1 the better they part.

    It is None of one group, where no group has two rows, and where scikit-learn is not installed.
    """
    try:
        from sklearn.metrics import silhouette_score
    except ImportError:
        return None
    if not 2 <= len(np.unique(groups)) < len(vectors):
        return None
    return float(silhouette_score(vectors, groups))


def rank_correlation(first: Array, second: Array) -> float | None:
    """Return Spearman's correlation, ties sharing their mean rank; None where one side is all the same."""
    one, other = _ranks(first), _ranks(second)
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return round(float(np.corrcoef(one, other)[0, 1]), 3) + 0.0


def principal_components(vectors: Array) -> tuple[Array, list[float]]:
    """Return the rows on their first two principal axes [N, 2], and the share of the variance on each axis."""
    left, sizes, _ = np.linalg.svd(centred(vectors), full_matrices=False)
    points = np.zeros((len(vectors), 2))
    points[:, : len(sizes[:2])] = left[:, :2] * sizes[:2]
    # The sign of an axis is arbitrary: the farthest client is put on the positive side.
    points *= np.where(points[np.abs(points).argmax(0), [0, 1]] < 0, -1, 1)
    spread = (points**2).sum(0) / max(float((sizes**2).sum()), np.finfo(float).tiny)
    return points, _rounded(spread, 3)


def _checked(name: str, exhibit: NDArray[Any], clients: int) -> Array:
    """Return the first clients' part of an exhibit, or refuse what is none."""
    if name not in EXHIBITS:
        raise choice("exhibit", name, EXHIBITS)
    values = np.asarray(exhibit)
    fits = values.ndim == 2 if name == "attention" else values.ndim > 1
    if not fits or len(values) != clients or not values.size:
        raise PromptFedError(
            f'The exhibit "{name}" must be {EXHIBITS[name]} with N={clients} clients, not {list(values.shape)}.'
        )
    values = values[:MOST_CLIENTS].astype(np.float64)
    if not np.isfinite(values).all():
        raise PromptFedError(f'The exhibit "{name}" holds a number that is not finite.')
    return values


def _flat(exhibit: Array) -> Array:
    return exhibit.reshape(len(exhibit), -1)


def _prompts(vectors: Array, counts: Array, domains: NDArray[Any]) -> dict[str, object]:
    """Compare the clients' prompts with each other, and with how unlike the clients' images are."""
    alike, distances = cosines(centred(vectors)), label_distances(counts)
    others = (domains[:, None] != domains[None]).astype(np.float64)
    pairs = np.triu_indices(len(vectors), 1)
    shared = max(float(np.linalg.norm(vectors.mean(0))), np.finfo(float).tiny)
    return {
        "cosine": _rounded(cosines(vectors), 4),
        "centred": _rounded(alike, 3),
        "spread": float(f"{np.linalg.norm(centred(vectors), axis=1).mean() / shared:.3g}"),
        "label_distance": _rounded(distances, 3),
        "rank_correlation": {
            "label": rank_correlation(alike[pairs], distances[pairs]),
            "domain": rank_correlation(alike[pairs], others[pairs]),
        },
    }


def plane(vectors: Array) -> dict[str, Any]:
    """Lay rows out in the plane, the largest coordinate being 1: by t-SNE, or on their principal components."""
    neighbours = min(30.0, (len(vectors) - 1) / 3)
    points = _tsne(vectors, neighbours) if len(vectors) >= 5 and centred(vectors).any() else None
    if points is not None:
        return {"map": "t-SNE", "perplexity": round(neighbours, 2), "points": _scaled(points)}
    points, explained = principal_components(vectors)
    return {"map": "principal components", "explained": explained, "points": _scaled(points)}


def _tsne(vectors: Array, perplexity: float) -> Array | None:
    """Return the t-SNE map, or None where scikit-learn is not installed or there is but one dimension."""
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
    return _rounded(points / (np.abs(points).max() or 1), 4)


def _ranks(values: Array) -> Array:
    """Return ranks from 1, equal values sharing their mean rank; differences below 1e-9 are rounding."""
    _, which, many = np.unique(np.round(values, 9), return_inverse=True, return_counts=True)
    ranks: Array = (many.cumsum() - (many - 1) / 2)[which]
    return ranks


def _rounded(values: Array, digits: int) -> list[Any]:
    """Return plain numbers; adding zero turns -0.0 into 0.0."""
    found: list[Any] = (np.round(values, digits) + 0.0).tolist()
    return found
