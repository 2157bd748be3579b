"""Compare the clients' prompts, descriptors and attention with the images they hold: the content of figures.json.

`make` takes what a method shows of itself at the end of a run; the report draws what it returns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptfed.core.errors import PromptFedError, choice
from promptfed.core.statistics import Array, centred, cosines, label_distances, plane, rank_correlation, rounded

MOST_CLIENTS = 64
# What a method may show, and the shape of each over all N clients.
EXHIBITS = {"prompts": "[N, K, D]", "descriptors": "[N, D]", "attention": "[N, K]"}


def make(
    exhibits: Mapping[str, NDArray[Any]],
    counts: NDArray[Any],
    domains: NDArray[Any],
    domain_names: Sequence[str],
) -> dict[str, object] | None:
    """Return the content of figures.json for the first clients, or None if there is nothing to show.

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
        parts["attention"] = rounded(shown["attention"], 6)
    if not parts:
        return None
    about = {"domain_names": list(domain_names), "domains": domains.tolist(), "classes": counts.argmax(1).tolist()}
    return {"clients": len(counts), **about, **parts}


def _checked(name: str, exhibit: NDArray[Any], clients: int) -> Array:
    """Return an exhibit's rows of the first clients, or refuse an exhibit of the wrong name or shape."""
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
    """Compare the clients' prompts with each other, and with how much the clients' images differ."""
    alike, distances = cosines(centred(vectors)), label_distances(counts)
    others = (domains[:, None] != domains[None]).astype(np.float64)
    pairs = np.triu_indices(len(vectors), 1)
    shared = max(float(np.linalg.norm(vectors.mean(0))), np.finfo(float).tiny)
    return {
        "cosine": rounded(cosines(vectors), 4),
        "centred": rounded(alike, 3),
        "spread": float(f"{np.linalg.norm(centred(vectors), axis=1).mean() / shared:.3g}"),
        "label_distance": rounded(distances, 3),
        "rank_correlation": {
            "label": _three(rank_correlation(alike[pairs], distances[pairs])),
            "domain": _three(rank_correlation(alike[pairs], others[pairs])),
        },
    }


def _three(value: float | None) -> float | None:
    """Return a number with three decimals; adding zero turns -0.0 into 0.0."""
    return None if value is None else round(value, 3) + 0.0
