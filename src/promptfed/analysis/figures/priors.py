"""What a model expects before it sees anything, what its upload gives away, and how it tells clients apart.

pFedPT's Figures 5, 6 and 11. Images of one colour have no content, so an answer to them is the model's own prior; its
prompt, and nothing else, can make it differ between clients of one backbone.
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
from promptfed.analysis.figures.opened import COLOURS, blank_batch, chosen, inspect, pure_colours, reopen
from promptfed.analysis.figures.records import named
from promptfed.core import statistics
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.data.dataset import Indices
from promptfed.federation.guards.secure import SecureSum
from promptfed.runs.finished import FinishedRun, train_again

# Images of each class, at most, on which an upload is tested.
PER_CLASS = 50


def class_prior(logits: Tensor) -> NDArray[np.float64]:
    """Return the mean probability of every class [classes] over images [N, classes]."""
    found: NDArray[np.float64] = logits.double().softmax(-1).mean(0).cpu().numpy()
    return found


def class_histogram(logits: Tensor) -> NDArray[np.float64]:
    """Return the share of images [N, classes] that is taken for each class [classes]."""
    found = torch.bincount(logits.argmax(-1), minlength=logits.shape[-1]).double() / len(logits)
    return found.cpu().numpy()


def beyond_common(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how every client's row [clients, classes] differs from the mean over the clients."""
    found: NDArray[np.float64] = values - values.mean(0)
    return found


def correlated(one: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[list[float | None], float | None]:
    """Return the correlation of every client's rows, None where a row is constant, and the mean of those there are."""
    each = statistics.row_correlations(one, other)
    known = [value for value in each if value is not None]
    return each, sum(known) / len(known) if known else None


def balanced(labels: Indices, rows: Indices, most: int) -> Indices:
    """Return the first `rows` of every class, as many of each as the rarest has, `most` at most."""
    kinds = [rows[labels[rows] == kind] for kind in np.unique(labels[rows])]
    least = min((len(kind) for kind in kinds), default=0)
    return np.sort(np.concatenate([kind[: min(least, most)] for kind in kinds])) if kinds else rows


def prior(folders: Sequence[Path], clients: Sequence[int]) -> Drawing:
    """Figure 6: what each client's model expects, beside what the client holds."""
    run = reopen(folders[0])
    members = chosen(run, clients)
    images = _colours(run)
    expected = np.stack(
        [class_prior(run.logits(run.model(client), blank_batch(run, client, images))) for client in members]
    )
    held = statistics.shares(run.counts(members))
    each, mean = correlated(expected, held)
    apart, own = correlated(beyond_common(expected), beyond_common(held))
    told = "they have no correlation" if mean is None else f"their correlation is {mean:.2f} on average over clients"
    caption = (
        f"{run.title}. Above: the share of each class among a client's training images. In the middle: the mean "
        f"probability its own model gives each class on {len(images)} images of one colour; {told}."
    )
    if own is not None:
        caption += f" Without what all these clients have in common, the mean of each panel, it is {own:.2f}."
    numbers = {
        "clients": members,
        "held": _plain(held),
        "expected": _plain(expected),
        "correlation": each,
        "mean_correlation": mean,
        "correlation_beyond_common": apart,
        "mean_correlation_beyond_common": own,
    }
    more = "what it expects more of than these clients' models on average"
    panels = {
        "the client's labels": held.T,
        "what its model expects": expected.T,
        more: beyond_common(expected).T.clip(min=0),
    }
    picture = plotting.heat_maps(panels, list(run.dataset.classes), [str(client) for client in members], "client")
    return Drawing("Expected and true classes", caption, numbers, picture)


def tsne(folders: Sequence[Path], clients: Sequence[int]) -> Drawing:
    """Figure 5: images of one colour as every client's model represents them."""
    run = reopen(folders[0])
    members = chosen(run, clients)
    images = _colours(run)
    parts, prompted = [], False
    for client in members:
        seen = inspect(run, run.model(client), blank_batch(run, client, images))
        prompted |= seen.prompted
        with torch.no_grad():
            parts.append(seen.features().double().cpu().numpy())
    vectors = np.concatenate(parts)
    groups = np.repeat(members, len(images))
    same = statistics.same_neighbours(vectors, groups)
    found = statistics.plane(vectors)
    how = f"by {found['map']}" if found["map"] == "t-SNE" else f"on their first two {found['map']}"
    what = "with each client's prompt" if prompted else "by each client's model"
    caption = (
        f"{run.title}. The features of {len(images)} images of one colour {what}, {how}. In the space of features "
        f"the nearest neighbour of {100 * same:.0f} % of them belongs to the same client "
        f"({100 * (len(images) - 1) / (len(vectors) - 1):.0f} % by chance)."
    )
    numbers = {"clients": members, "images": len(images), "same_neighbours": same} | found
    picture = plotting.scatter(np.array(found["points"]), groups, "client")
    return Drawing("Images of one colour, by client", caption, numbers, picture)


def leakage(folders: Sequence[Path], clients: Sequence[int]) -> Drawing:
    """Figure 11: how well the labels of a client can be told from the model it uploads."""
    found: dict[str, Any] = {}
    for label, one in named(folders).items():
        run = reopen(one.path)
        found[label] = _leaked(run, chosen(run, clients))
    each = {label: one["similarity"] for label, one in found.items()}
    means = {label: float(np.mean(values)) for label, values in each.items()}
    blind = {label: float(np.mean(one["blind"])) for label, one in found.items()}
    told = "; ".join(f"{label} {means[label]:.2f} (a blind guess {blind[label]:.2f})" for label in means)
    caption = (
        "How alike a client's true labels are to the classes that its uploaded model, without what the client keeps, "
        f"sees in a balanced set of test images: the cosine of the two histograms. Means over clients: {told}. A blind "
        "guess names every class equally often."
    )
    members = next(iter(found.values()))["clients"]
    if any(one["clients"] != members for one in found.values()):
        raise PromptFedError("These runs do not have the same clients; name those to compare with --client.")
    picture = plotting.bars(each, [str(client) for client in members], "client", "cosine with the true labels", blind)
    return Drawing("What an upload gives away", caption, {"runs": found}, picture)


def _leaked(run: FinishedRun, members: list[int]) -> dict[str, Any]:
    """Train the clients again from the final state, and infer their labels from what they send."""
    loop = run.loop
    if any(isinstance(guard, SecureSum) for guard in loop.guards.guards):
        raise PromptFedError("With guards.secure the server sees no single upload, so no upload gives anything away.")
    rows = np.unique(loop.shards.tested())
    rows = balanced(run.dataset.labels, rows, PER_CLASS)
    guessed = []
    for client, own, up, weight in train_again(loop, members):
        _, up, _ = loop.guards.protect(loop.finished, torch.tensor(client), own, up, weight)
        guessed.append(class_histogram(_server_logits(run, own, up, run.batch(client, rows)["x"])))
    held, inferred = statistics.shares(run.counts(members)), np.stack(guessed)
    blind = statistics.row_cosines(np.ones_like(held), held)
    return {
        "clients": members,
        "images": len(rows),
        "held": _plain(held),
        "inferred": _plain(inferred),
        "similarity": _plain(statistics.row_cosines(inferred, held)),
        "blind": _plain(blind),
    }


def _server_logits(run: FinishedRun, down: Tree, up: Tree, images: Tensor) -> Tensor:
    """Return the answers of the model a server can build from an upload alone: what was sent, and what came back."""
    task, method = run.loop.task, run.method
    if not up:
        raise PromptFedError(f"Method {run.name} uploads nothing, so nothing can be read off an upload.")
    whole = run.loop.server | up if up.keys() <= run.loop.server.keys() else {}
    model = method.deploy(task, whole) if whole else {}
    with torch.no_grad():
        if model:
            return method.predict(task, method.prepare(task, model), {"x": images})
        if "head.weight" in down | up and whole:
            return task.backbone(down | up, images)
    raise PromptFedError(f"What a client of {run.name} uploads is not a model by itself, so it gives no labels away.")


def _colours(run: FinishedRun) -> Any:
    height, width = run.dataset.sides
    return pure_colours(COLOURS, height, width)


def _plain(values: NDArray[np.float64]) -> list[Any]:
    found: list[Any] = np.round(values, 6).tolist()
    return found
