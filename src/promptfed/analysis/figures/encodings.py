"""What the text tower makes of a learned word, template by template: RELIC's Figure 1(c).

The paper sees the clients' encodings in clusters, one for each template, and aligns prototypes to keep them so.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptfed.analysis.figures import plotting
from promptfed.analysis.figures.drawing import Drawing
from promptfed.analysis.figures.opened import chosen
from promptfed.analysis.figures.records import named
from promptfed.core import statistics, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.prompts.templates import templates
from promptfed.runs.finished import FinishedRun, inverted, open_run, train_again

# Clients shown unless some are named: the paper has 50.
CLIENTS = 64


def pool_of(run: FinishedRun) -> tuple[str, ...]:
    """Return the templates that a run's method draws from, in the order of their numbers."""
    keys = run.plan.recipe.method
    return templates(keys.get("templates", "object"), keys.get("first", 0))


def encoded(run: FinishedRun, clients: Sequence[int]) -> Tensor:
    """Return F_t of every client's û in every template [C, T, W], after one more local training; nothing changes.

    Without that training there would be little to see: clients without branches start a round with the same word.
    """
    method, model = inverted(run)
    loop, pool = run.loop, pool_of(run)
    every = torch.arange(len(pool), device=loop.device)
    rows = []
    try:
        for client, own, up, _ in train_again(loop, clients, keep=True):
            params = loop.method.trained(run.task, own, tree.to(loop.store.get(client), loop.device), up)
            with torch.no_grad():
                words = method.spoken(run.task, params, every, templates=pool)
                rows.append(model.encode(pool, every, words)[1])
    finally:
        loop.store.discard()
    return torch.stack(rows)


def encodings(folders: Sequence[Path], clients: Sequence[int]) -> Drawing:
    """Figure 1(c): the encodings of clients' words in the plane, coloured by template."""
    found = {label: _laid_out(one.path, clients) for label, one in named(folders).items()}
    pool = next(iter(found.values()))["templates"]
    if any(one["templates"] != pool for one in found.values()):
        raise PromptFedError("These runs do not have the same templates, so their colours would not mean the same.")
    scores = {label: _score(one["silhouette"]) for label, one in found.items()}
    maps = " or ".join(dict.fromkeys(str(one["map"]) for one in found.values()))
    caption = (
        "What the text tower's last layer holds at the place of the word: a point for each client and template, of the "
        "word as the client trained it again from the final state, and a cross for the mean of each template; in "
        f"the plane by {maps}. How well templates part is their silhouette score, which is taken on the encodings "
        f"themselves, not on the plane: {'; '.join(f'{label} {score}' for label, score in scores.items())}. It is 1 at "
        "best, and there is none of one client, of one template, or without scikit-learn."
    )
    panels = {
        f"{label}: silhouette {scores[label]}": (np.array(one["points"]), np.array(one["centroids"]))
        for label, one in found.items()
    }
    each = [f"{label} {score}" if len(scores) > 1 else score for label, score in scores.items()]
    title = f"Encodings by template, silhouette {', '.join(each)}"
    return Drawing(title, caption, {"runs": found}, plotting.scatters(panels, "template"))


def _laid_out(folder: Path, clients: Sequence[int]) -> dict[str, Any]:
    """Return one run's encodings in the plane, and how well templates part in the space of encodings."""
    run = open_run(folder, "auto")
    inverted(run)  # it says best what is wrong with a run that has no word
    members = chosen(run, clients, CLIENTS)
    vectors = encoded(run, members).double().cpu().numpy()
    count, kinds = vectors.shape[:2]
    flat = vectors.reshape(count * kinds, -1)
    score = statistics.silhouette(flat, np.tile(np.arange(kinds), count))
    # the means are laid out with the rest: in the plane of a t-SNE a mean of points means nothing
    plane = statistics.plane(np.concatenate((flat, vectors.mean(0))))
    points: NDArray[np.float64] = np.array(plane.pop("points"))
    return {
        "clients": members,
        "templates": list(pool_of(run)),
        "silhouette": None if score is None else round(score, 6),
        **plane,
        "points": points[: count * kinds].reshape(count, kinds, 2).tolist(),
        "centroids": points[count * kinds :].tolist(),
    }


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
