"""An answer to an older model as one to the present model: what it changes is added there, and counts less.

With n_i images and staleness s_i the mean of what becomes of the answers is w + Σ n_i (1 + s_i)^-a Δ_i / Σ n_i, as in
FedBuff (Nguyen et al. AISTATS 2022) with a = 1/2; where all answers are to the present model it is the plain mean.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree


def rebase(down: Tree, now: Tree, up: Tree, fresh: Sequence[bool], weights: Sequence[float]) -> Tree:
    """Return `up` [C, ...] with every change since `down` added to `now` times the client's weight.

    Answers that are `fresh`, to the present model, stay as they are, bit for bit.
    """
    strange = sorted(up.keys() - down.keys())
    if strange:
        raise PromptFedError(f"The method sends {strange[0]}, which clients do not receive, so it cannot come late.")

    def moved(name: str) -> Tensor:
        value = up[name]
        shape = (-1,) + (1,) * (value.ndim - 1)
        counts = torch.tensor(weights, dtype=value.dtype, device=value.device).reshape(shape)
        kept = torch.tensor(fresh, device=value.device).reshape(shape)
        return value.where(kept, now[name] + counts * (value - down[name]))

    return {name: moved(name) for name in up}
