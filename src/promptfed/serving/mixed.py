"""One batch for many clients: every image meets the row of its own client, all of them the same backbone.

A client's own tensors are gathered from the stacked file and lead with the batch, [N, ...]. Shared tensors have no
such dimension: the backbone runs once over all images, and no shared weight is copied.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from promptfed.backbones.cached import behind, seen
from promptfed.core import keys, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.protocols import Batch, Draw
from promptfed.core.tree import Tree
from promptfed.data.dataset import Images
from promptfed.serving.opened import ServedBundle

ROOM = 2**28  # bytes of own tensors that one batch may gather: whole models go client by client
CLOSE = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # how far probabilities may differ in another order of sums


def answer(served: ServedBundle, rows: Sequence[int], images: Images, room: int = ROOM) -> Tensor:
    """Return logits [N, classes] in float32 on the CPU; image n [N, H, W, 3] belongs to the client in row rows[n].

    Clients whose own tensors together take more than `room` bytes are answered one after another.
    """
    with torch.inference_mode():
        pixels = torch.from_numpy(np.ascontiguousarray(images)).to(served.device)
        if len(set(rows)) > 1 and served.row_bytes * len(rows) <= room:
            return _chunk(served, rows, pixels.unsqueeze(1))[:, 0]
        found: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            found.setdefault(row, []).append(place)
        parts = [_chunk(served, [row], pixels[places].unsqueeze(0))[0] for row, places in found.items()]
        back = torch.tensor([place for places in found.values() for place in places]).argsort()
        return torch.cat(parts)[back]


def _chunk(served: ServedBundle, rows: Sequence[int], pixels: Tensor) -> Tensor:
    """Return logits [C, B, classes] on the CPU for the images [C, B, H, W, 3] of C clients."""
    index = torch.tensor(rows, device=served.device)
    facts, salts = (tree.rows(part, index) for part in (served.facts, served.salts))
    return forward(served, served.gather(rows), facts, salts, pixels).float().cpu()


def forward(served: ServedBundle, own: Tree, facts: Tree, salts: Tree, pixels: Tensor) -> Tensor:
    """Return logits [C, B, classes]; all that changes from batch to batch is an argument, so it can be recorded."""
    scale, shift = served.pixels
    x = torch.addcmul(shift, pixels.float(), scale).movedim(-1, -3)  # [C, B, 3, H, W]
    backbone, reads = served.task.backbone, served.method.traits.reads
    x, task = seen(backbone, reads, x), replace(served.task, backbone=behind(backbone, reads))
    params = tree.pick(own | served.shared, served.about.order)
    return served.method.predict(task, params, _batch(served, x, pixels.shape[:2], facts, salts))


def _batch(served: ServedBundle, x: Tensor, lead: Sequence[int], facts: Tree, salts: Tree) -> Batch:
    """Return what `predict` is given; every image has the draws of an image that is tested alone."""
    ones = x.new_ones(*lead)
    batch = {"x": x, "index": ones.long() - 1, "mask": ones, "active": ones[:, 0]} | facts
    for name, draw in served.draws.items():
        batch[name] = _drawn(draw, salts[name], lead[1])
    return batch


def _drawn(draw: Draw, salts: Tensor, count: int) -> Tensor:
    made = keys.uniform if draw.kind == "uniform" else keys.normal
    if draw.per == "batch":
        return made(salts, draw.shape)
    return made(salts, (1, *draw.shape)).expand(-1, count, *(-1 for _ in draw.shape))


def rehearse(served: ServedBundle) -> None:
    """Answer for two clients together and one by one; refuse a method that does not say the same."""
    rows = [0, len(served.order) - 1]
    images = np.random.default_rng(0).integers(0, 256, (2, *served.about.shape, 3), np.uint8)
    try:
        together = answer(served, rows, images).softmax(-1)
        alone = torch.cat([answer(served, rows[n : n + 1], images[n : n + 1]) for n in (0, 1)]).softmax(-1)
    except (RuntimeError, ValueError, IndexError) as error:
        name = served.about.method["name"]
        raise PromptFedError(f"The method {name} cannot answer for several clients in one batch: {error}.") from error
    frozen = getattr(served.task.backbone, "frozen", {})
    low = any(value.dtype == torch.bfloat16 for value in frozen.values())
    if not torch.allclose(together, alone, rtol=0, atol=CLOSE[torch.bfloat16 if low else torch.float32]):
        raise PromptFedError(f"The method {served.about.method['name']} mixes up the clients of a batch.")
