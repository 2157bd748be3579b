"""Gradients shortened to a length, of a client or of every single example, and scaled client by client."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree

NOISE = "noise."  # before a parameter's name: draws that are added to its gradient


def clipped(grads: Sequence[Tensor], longest: float, lead: int) -> list[Tensor]:
    """Shorten every client's gradient, all parameters together, to `longest`; the client dimension leads if `lead`."""
    squares = torch.stack([g.square().flatten(lead).sum(-1) if g.dim() > lead else g.square() for g in grads]).sum(0)
    share = (longest / (squares.sqrt() + 1e-6)).clamp(max=1)
    return [g * like(share, g) for g in grads]


def scaled(values: Sequence[Tensor], by: Tensor) -> list[Tensor]:
    """Multiply every client's tensors by its own number, `by` [] or [C]."""
    return [value * like(by, value).to(value.dtype) for value in values]


def like(active: Tensor, p: Tensor) -> Tensor:
    """Shape a client's number so that it multiplies the client's tensor."""
    return active.reshape((*active.shape, *(1,) * (p.dim() - active.dim())))


def of_examples(
    objective: Callable[[Tree, Tree, Batch], Any],
    start: Tree,
    hold: Tree,
    params: Tree,
    batch: Batch,
    once: frozenset[str],
    longest: float,
    noise: float,
) -> list[Tensor]:
    """Return the sum of gradients no longer than `longest`, and of normal numbers, over the number of a batch's places.

    Every example is a client of its own to the objective: clients never mix, so neither do examples. What is `once` in
    a batch every one of them gets. Clients without a batch of their own get zero.
    """
    mask = batch["mask"]
    lead, count = mask.dim() - 1, mask.shape[-1]

    def alike(value: Tensor) -> Tensor:
        """Give every example what its client has."""
        return value.unsqueeze(lead).expand(*value.shape[:lead], count, *value.shape[lead:]).flatten(0, lead)

    own = {name: alike(value).detach() for name, value in params.items()}
    leaves = [value.requires_grad_() for value in own.values()]
    alone = {
        name: alike(value) if name in once else value.flatten(0, lead).unsqueeze(1)
        for name, value in batch.items()
        if not name.startswith(NOISE)
    }
    value = objective(tree.map(alike, start), tree.map(alike, hold) | own, alone)
    if isinstance(value, tuple):
        raise PromptFedError("With clip_each an objective hands nothing on: what it returns is of one example.")
    each = torch.autograd.grad(value.sum(), leaves, materialize_grads=True)
    with torch.no_grad():
        grads = clipped(each, longest, 1)
        summed = []
        for name, grad in zip(own, grads, strict=True):
            # an example that is not there has no part, whatever else the objective counts
            there = grad * like((mask > 0).flatten().to(grad), grad)
            total = there.unflatten(0, mask.shape).sum(lead)
            total = total + noise * longest * batch[f"{NOISE}{name}"] if noise else total
            summed.append(total * like((batch["active"] > 0).to(total), total) / count)
    return summed
