"""Where a model looks, with its prompt and without: pFedPT's Figures 4 and 12."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptfed.data.dataset import Indices
from promptfed.errors import PromptFedError
from promptfed.gallery import drawings
from promptfed.gallery.drawings import Drawing
from promptfed.probes.opened import Opened, chosen, reopen
from promptfed.probes.seen import Seen, class_attention, enlarged, grad_cam, share_on
from promptfed.tree import Tree

# Clients shown unless some are named, and test images of each.
CLIENTS, IMAGES = 2, 4

Map = Callable[[Seen, Tensor], Tensor]


def attention(folders: Sequence[Path], clients: Sequence[int]) -> Drawing:
    """Draw the class token's attention in the last block of a vision transformer."""
    return _drawn(folders[0], clients, lambda seen, _: class_attention(seen)[0], "The class token's attention")


def cam(folders: Sequence[Path], clients: Sequence[int]) -> Drawing:
    """Draw the Grad-CAM of the class each client's model decides for."""
    return _drawn(folders[0], clients, grad_cam, "Grad-CAM")


def _drawn(folder: Path, clients: Sequence[int], make: Map, title: str) -> Drawing:
    run = reopen(folder, "cpu")  # a GPU may fuse the attention, and then there is nothing to see
    members = chosen(run, clients, CLIENTS)
    columns: list[str] = []
    rows: dict[str, list[NDArray[Any]]] = {}
    shares: dict[str, list[float]] = {}
    for client in members:
        picked = spaced(run.loop.shards.rows["test"][client], IMAGES)
        if not len(picked):
            raise PromptFedError(f"Client {client} has no test images to look at; name another with --client.")
        panels, decided = _panels(run, run.model(client), client, picked, make, shares)
        names = run.dataset.classes
        truth = run.dataset.labels[picked].tolist()
        columns += [
            f"client {client}\n{names[real]}" + ("" if real == found else f"\ntaken for {names[found]}")
            for real, found in zip(truth, decided, strict=True)
        ]
        for name, values in panels.items():
            rows.setdefault(name, []).extend(values)
    means = {name: sum(values) / len(values) for name, values in shares.items()}
    told = " and ".join(f"{100 * value:.0f} % {name}" for name, value in means.items())
    caption = f"{title}: {run.titled}, test images of clients."
    caption += f" On the prompt lies, in the mean, {told} it." if told else " The method adds no prompt to its images."
    numbers = {"clients": members, "share_on_prompt": {name: round(value, 6) for name, value in means.items()}}
    return Drawing(title, caption, numbers, drawings.pictures(rows, columns))


def _panels(
    run: Opened, params: Tree, client: int, picked: Indices, make: Map, shares: dict[str, list[float]]
) -> tuple[dict[str, NDArray[Any]], list[int]]:
    """Return rows of pictures [B, H, W, 3] by name, and the classes the client's model decides for."""
    batch = run.batch(client, picked)
    seen = run.look(params, batch)
    decided = seen.logits.argmax(-1).detach()
    height, width = batch["x"].shape[-2:]
    plain = _picture(run, batch["x"])
    with_prompt = enlarged(make(seen, decided), height, width)
    if not seen.prompted:
        return {"image": plain, "where it looks": overlaid(plain, with_prompt.numpy())}, decided.tolist()
    without = enlarged(make(run.look(params, batch, bare=True), decided), height, width)
    panels = {"image": plain, "without the prompt": overlaid(plain, without.numpy())}
    if seen.prompts:
        shares.setdefault("of the attention with", []).extend(class_attention(seen)[1].tolist())
        return panels | {"with the prompt": overlaid(plain, with_prompt.numpy())}, decided.tolist()
    prompted = _picture(run, seen.images)
    where = (seen.images != batch["x"]).any(-3).float()
    shares.setdefault("of the map without", []).extend(share_on(without, where).tolist())
    shares.setdefault("of the map with", []).extend(share_on(with_prompt, where).tolist())
    panels |= {"prompted image": prompted, "with the prompt": overlaid(prompted, with_prompt.numpy())}
    return panels, decided.tolist()


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


def _picture(run: Opened, images: Tensor) -> NDArray[Any]:
    """Return normalised images [B, 3, H, W] as pixels [B, H, W, 3] in 0 … 1; a prompt may go beyond, and is cut."""
    mean, std = (torch.tensor(part) for part in (run.dataset.mean, run.dataset.std))
    found: NDArray[Any] = (images.detach().movedim(-3, -1) * std + mean).clamp(0, 1).numpy()
    return found
