"""Learning without labels as FedAPT's clients do, in two stages; FedAPT, PromptFL and FedCLIP share it.

First the pretrained model's own confident answers serve as labels (eq. 8). Then images are compared with their nearest
neighbours, with the rest of the batch (eq. 9), and with augmented views of themselves (eq. 10).
Paper symbol -> name: x̂ -> view, ŷ -> labels, z_i -> scores, C_i -> near, λ -> dispersion.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Draw, Task, Tree, dual, ops
from promptfed.core.prompts.text import match

Mode = Literal["supervised", "unsupervised"]
Intra = Literal["kl", "printed", "double-softmax"]
Rest = Literal["sum", "mean"]

VIEWS = 4  # augmented views of every image; the authors make a new one every time
DRAWS = {"view": Draw()}


def view(batch: Batch) -> Tensor:
    """Return the features [..., B, D] of one augmented view of each image, chosen by a draw."""
    views = batch["views"]
    number = (batch["view"] * views.shape[-2]).long()
    return views.take_along_dim(number[..., None, None], -2).squeeze(-2)


def pseudo_loss(task: Task, logits: Tensor, batch: Batch, threshold: float) -> Tensor:
    """Eq. 8: the cross-entropy of a view's logits with what the pretrained model says of the image itself.

    Only images of which it is surer than `threshold` count.
    """
    clip = dual(task)
    sure, labels = match(batch["x"], clip.zero_shot, clip.scale).softmax(-1).max(-1)
    return ops.cross_entropy(logits, labels, batch["mask"] * (sure > threshold))


def compared(
    answer: Callable[[Tensor], Tensor],
    params: Tree,
    batch: Batch,
    neighbours: int,
    dispersion: float,
    rest: Rest,
    intra: Intra,
) -> tuple[Tensor, Tree]:
    """Return L_inter + L_intra, and the score bank with the batch's new scores; `answer` gives logits of features."""
    scores = answer(batch["x"]).softmax(-1)
    stale = params["bank.scores"].take_along_dim(batch["index"].unsqueeze(-1), -2)
    bank = {"bank.scores": written(params["bank.scores"], batch, scores.detach())}
    value = inter_loss(scores, params | bank, batch, neighbours, dispersion, rest)
    return value + intra_loss(answer(view(batch)), stale, batch, intra), bank


def inter_loss(
    scores: Tensor, bank: Tree, batch: Batch, neighbours: int, dispersion: float, rest: Rest = "sum"
) -> Tensor:
    """Eq. 9: −Σ_j z_i·z_j over the nearest neighbours in the bank, + λ Σ_m z_i·z_m over the rest of the batch.

    The printed sum grows with the batch, while the neighbours stay five. `mean` divides it by the size of the rest.
    """
    mask = batch["mask"]
    count = mask.sum(-1).clamp(min=1)
    near = _neighbours(bank, batch, neighbours)
    attraction = ((scores * near).sum(-1) * mask).sum(-1) / count
    # Σ_i Σ_{m≠i} z_i·z_m = |Σ_i z_i|² − Σ_i |z_i|²
    kept = scores * mask.unsqueeze(-1)
    pairs = kept.sum(-2).square().sum(-1) - kept.square().sum((-2, -1))
    others = count if rest == "sum" else count * (count - 1).clamp(min=1)
    return dispersion * pairs / others - attraction


def _neighbours(bank: Tree, batch: Batch, count: int) -> Tensor:
    """Return Σ_j z_j [..., B, classes] over the bank's `count` images most like each, itself left out."""
    features, scores = bank["bank.features"], bank["bank.scores"]
    room = features.shape[-2]
    likeness = F.normalize(batch["x"], dim=-1) @ features.mT  # [..., B, room]
    beyond = torch.arange(room, device=features.device) >= batch["size"].unsqueeze(-1)
    likeness = likeness.masked_fill(beyond.unsqueeze(-2), -torch.inf)
    likeness = likeness.scatter(-1, batch["index"].unsqueeze(-1), -torch.inf)
    found, place = likeness.topk(min(count, room), -1)  # [..., B, count]
    rows = scores.take_along_dim(place.flatten(-2).unsqueeze(-1), -2).reshape(*place.shape, -1)
    return (rows * (found > -torch.inf).unsqueeze(-1)).sum(-2)


def intra_loss(logits: Tensor, scores: Tensor, batch: Batch, form: Intra) -> Tensor:
    """Eq. 10: how far a view's answer ẑ (from `logits`) is from the bank's answer z (`scores`) for the image itself.

    `kl` is KL(z ‖ ẑ), `printed` KL(ẑ ‖ z); `double-softmax` the authors' −Σ z·log softmax(softmax(logits)).
    """
    mask = batch["mask"]
    if form == "kl":
        each = F.kl_div(logits.log_softmax(-1), scores, reduction="none").sum(-1)
    elif form == "printed":
        known = scores.clamp(min=torch.finfo(scores.dtype).tiny).log()
        each = F.kl_div(known, logits.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    else:
        each = -(scores * logits.softmax(-1).log_softmax(-1)).sum(-1)
    return (each * mask).sum(-1) / mask.sum(-1).clamp(min=1)


# -- the banks ----------------------------------------------------------------------------------------------------


def written(bank: Tensor, batch: Batch, rows: Tensor) -> Tensor:
    """Return a bank [..., room, N] with `rows` [..., B, N] at the places of the batch's images."""
    room = bank.shape[-2]
    # the padding of a batch goes to a row beyond the last, which is cut off again
    place = batch["index"].masked_fill(batch["mask"] == 0, room).unsqueeze(-1)
    return F.pad(bank, (0, 0, 0, 1)).scatter(-2, place.expand_as(rows), rows)[..., :room, :]


@torch.no_grad()
def filled(scores: Tensor, data: Data, size: int, answer: Callable[[Tensor], Tensor]) -> Tree:
    """Return the banks of a client: unit features, and scores, fresh from `answer` where there are none yet.

    The features are those of a frozen tower, so they need not be kept from round to round.
    """
    banks: Tree = {}
    for batch in data.batches("bank", size=size, ordered=True):
        rows = {"bank.features": F.normalize(batch["x"], dim=-1), "bank.scores": answer(batch["x"]).softmax(-1)}
        for name, new in rows.items():
            empty = new.new_zeros(*scores.shape[:-1], new.shape[-1])
            banks[name] = written(banks.get(name, empty), batch, new)
    known = scores.sum(-1, keepdim=True) > 0
    return banks | {"bank.scores": torch.where(known, scores, banks["bank.scores"])}
