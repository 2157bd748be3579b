"""Where a model looks, with its prompt and without: pFedPT's Figures 4 and 12."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptfed.analysis.figures import plotting
from promptfed.analysis.figures.drawing import Drawing
from promptfed.analysis.figures.inspection import (
    Inspection,
    class_attention,
    enlarged,
    grad_cam,
    pixel_saliency,
    share_on,
)
from promptfed.analysis.figures.opened import chosen, inspect, reopen
from promptfed.core.errors import PromptFedError, choice
from promptfed.data.dataset import Dataset, Indices
from promptfed.runs.finished import FinishedRun

# Clients shown unless some are named, and test images of each.
CLIENTS, IMAGES = 2, 4

Map = Callable[[Inspection, Tensor], Tensor]


@dataclass(frozen=True)
class _Explained:
    """What a client's model makes of some images; `decided`, `maps` and `shares` are by "without" and "with"."""

    panels: Mapping[str, NDArray[Any]]  # rows of pictures [B, H, W, 3] by name
    decided: Mapping[str, Tensor]  # classes [B]
    maps: Mapping[str, Tensor]  # where it looks, as coarse as the layer that is looked at [B, h, w]
    shares: Mapping[str, Tensor]  # the part of each map, or of the attention, that lies on the prompt [B]
    blind: Tensor  # the part that would if all places, or tokens, got the same [B]


def attention(folders: Sequence[Path], clients: Sequence[int], label: str | None = None) -> Drawing:
    """Draw the class token's attention in the last block of a vision transformer."""
    return _drawn(folders[0], clients, label, lambda seen, _: class_attention(seen)[0], "The class token's attention")


def cam(folders: Sequence[Path], clients: Sequence[int], label: str | None = None) -> Drawing:
    """Draw the Grad-CAM of the class each client's model decides for."""
    return _drawn(folders[0], clients, label, grad_cam, "Grad-CAM")


def pixels(folders: Sequence[Path], clients: Sequence[int], label: str | None = None) -> Drawing:
    """Draw how much every pixel moves the class each client's model decides for."""
    return _drawn(folders[0], clients, label, pixel_saliency, "Saliency")


def _drawn(folder: Path, clients: Sequence[int], label: str | None, make: Map, title: str) -> Drawing:
    run = reopen(folder, "cpu")  # a GPU may fuse the attention, and then there is nothing to see
    names, truth = run.dataset.classes, run.dataset.labels
    wanted = None if label is None else class_number(run.dataset, label)
    columns: list[str] = []
    rows: dict[str, list[NDArray[Any]]] = {}
    shares: dict[str, list[float]] = {}
    blind: list[float] = []
    shown: list[dict[str, Any]] = []
    picks = _picked(run, clients, wanted)
    for client, picked in picks.items():
        explained = _explain(run, client, picked, make)
        for name, values in explained.panels.items():
            rows.setdefault(name, []).extend(values)
        for name, part in explained.shares.items():
            shares.setdefault(name, []).extend(part.tolist())
        blind += explained.blind.tolist()
        for place, number in enumerate(picked.tolist()):
            decided = {name: names[int(found[place])] for name, found in explained.decided.items()}
            taken = decided.get("with", decided["without"])
            real = names[truth[number]]
            columns.append(f"client {client}\n{real}" + ("" if real == taken else f"\ntaken for {taken}"))
            maps = {name: scaled(found[place]) for name, found in explained.maps.items()}
            shown.append({"client": client, "image": number, "class": real, "decided": decided, "maps": maps})
    # with tokens there is no place in the image that is the prompt's, so there is no share without it
    of = "map" if "without" in shares else "attention"
    means = {f"of the {of} {name}": sum(values) / len(values) for name, values in shares.items()}
    told = " and ".join(f"{100 * value:.1f} % {name}" for name, value in means.items())
    even = sum(blind) / len(blind) if blind else None
    which = "test images" if wanted is None else f"test images of class {names[wanted]}"
    caption = f"{title}: {run.title}, {which} of clients."
    caption += _told(told, even, "place" if of == "map" else "token")
    numbers = {
        "clients": list(picks),
        "class": None if wanted is None else names[wanted],
        "share_on_prompt": {name: round(value, 6) for name, value in means.items()},
        "blind": None if even is None else round(even, 6),
        "images": shown,
    }
    return Drawing(title, caption, numbers, plotting.pictures(rows, columns))


def _told(shares: str, even: float | None, place: str) -> str:
    """Say how much the prompt gets, and how much it would get blindly."""
    if even is None:
        return " The method adds no prompt to its images."
    return f" On average, the prompt gets {shares} it; if every {place} got the same it would get {100 * even:.1f} %."


def _picked(run: FinishedRun, clients: Sequence[int], wanted: int | None) -> dict[int, Indices]:
    """Return which test images are shown of which clients: of those named, or else of the first ones.

    Of one class, the first ones are those that have any: with few classes each, the very first may well have none.
    """
    members = chosen(run, clients, CLIENTS)
    held, what, hint = run.loop.shards.rows["test"], "test images to look at", ""
    if wanted is not None:
        what = f'test images of class "{run.dataset.classes[wanted]}"'
        held = [of_class(rows, run.dataset.labels, wanted) for rows in held]
        having = [client for client, rows in enumerate(held) if len(rows)]
        if not having:
            raise PromptFedError(f'No client in "{run.folder}" has {what}; name another class.')
        members, hint = members if clients else having[:CLIENTS], f", such as {having[0]}"
    for client in members:
        if not len(held[client]):
            raise PromptFedError(f"Client {client} has no {what}; name another with --client{hint}.")
    return {client: spaced(held[client], IMAGES) for client in members}


def _explain(run: FinishedRun, client: int, picked: Indices, make: Map) -> _Explained:
    """Return what the client's model makes of images: without its prompt and, if it has one, with it."""
    params, batch = run.model(client), run.batch(client, picked)
    seen = inspect(run, params, batch)
    taken = seen.logits.argmax(-1).detach()
    height, width = batch["x"].shape[-2:]
    plain = _picture(run, batch["x"])
    own = make(seen, taken)
    large = enlarged(own, height, width)
    if not seen.prompted:
        panels = {"image": plain, "where it looks": overlaid(plain, large.numpy())}
        return _Explained(panels, {"without": taken}, {"without": own}, {}, torch.empty(0))
    bare = inspect(run, params, batch, bare=True)
    decided = {"without": bare.logits.argmax(-1).detach(), "with": taken}
    maps = {"without": make(bare, taken), "with": own}
    without = enlarged(maps["without"], height, width)
    panels = {"image": plain, "without the prompt": overlaid(plain, without.numpy())}
    if seen.prompts:
        panels |= {"with the prompt": overlaid(plain, large.numpy())}
        patches, prompts = class_attention(seen)
        even = torch.full_like(prompts, seen.prompts / (1 + seen.prompts + patches[0].numel()))
        return _Explained(panels, decided, maps, {"with": prompts}, even)
    prompted = _picture(run, seen.images)
    panels |= {"prompted image": prompted, "with the prompt": overlaid(prompted, large.numpy())}
    where = (seen.images != batch["x"]).any(-3).float()
    shares = {"without": share_on(without, where), "with": share_on(large, where)}
    return _Explained(panels, decided, maps, shares, where.mean((-2, -1)))


def class_number(dataset: Dataset, given: str) -> int:
    """Return the number of the class that is given by its name or, where no name is like that, by its number."""
    if given in dataset.classes:
        return dataset.classes.index(given)
    if not given.isdecimal():
        raise choice("class", given, dataset.classes, dataset.name)
    if int(given) >= len(dataset.classes):
        last = len(dataset.classes) - 1
        raise PromptFedError(f"There is no class {given} in {dataset.name}; it has classes 0 to {last}.")
    return int(given)


def of_class(rows: Indices, labels: Indices, wanted: int) -> Indices:
    """Return those of the `rows` whose label is the `wanted` one."""
    found: Indices = rows[labels[rows] == wanted]
    return found


def scaled(found: Tensor) -> list[list[float]]:
    """Return a map [h, w] with its largest value 1, to three decimals (a map of zeros stays)."""
    values: NDArray[np.float64] = found.double().numpy()
    rounded: list[list[float]] = np.round(values / (values.max() or 1.0), 3).tolist()
    return rounded


def spaced(rows: Indices, count: int) -> Indices:
    """Return up to `count` rows, evenly spaced from the first."""
    return rows[:: max(1, -(-len(rows) // count))][:count] if len(rows) else rows


def overlaid(images: NDArray[Any], maps: NDArray[Any]) -> NDArray[Any]:
    """Return images [B, H, W, 3] in 0 … 1, half of each pixel the colour of its map's value [B, H, W] in 0 … 1.

    The colours go from blue over white to red.
    """
    value = np.clip(maps, 0, 1)[..., None]
    cold, hot = np.array([0.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0])
    colour = np.where(value < 0.5, cold + (1 - cold) * 2 * value, hot + (1 - hot) * 2 * (1 - value))
    mixed: NDArray[Any] = (images + colour) / 2
    return mixed


def _picture(run: FinishedRun, images: Tensor) -> NDArray[Any]:
    """Return normalised images [B, 3, H, W] as pixels [B, H, W, 3] in 0 … 1; a prompt may go beyond, and is cut."""
    mean, std = (torch.tensor(part) for part in (run.dataset.mean, run.dataset.std))
    found: NDArray[Any] = (images.detach().movedim(-3, -1) * std + mean).clamp(0, 1).numpy()
    return found
