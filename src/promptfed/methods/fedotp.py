"""FedOTP: global and local prompts cooperation via optimal transport for federated learning (Li et al. CVPR 2024).

Every client has two contexts before the class names of a frozen CLIP, one that is averaged and one of its own. An image
is compared patch by patch, and unbalanced optimal transport decides which patches each context answers for.
Symbol -> name: p_g -> context, p_i -> own, G -> patches, S -> likeness, T -> plan, γ -> mass, ε -> epsilon,
s -> tokens.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Range, Whole
from promptfed.core.prompts.text import init_context

Transport = Literal["partial", "balanced", "none"]
Part = Annotated[float, Range(above=0, most=1)]


@dataclass(frozen=True)
class FedOTP(Method):
    """Share an image's patches between an averaged context and a client's own by optimal transport."""

    name: ClassVar[str] = "fedotp"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {
        "few-shot": {"epsilon": 0.01, "steps": 100, "epochs": 5, "batch": 16},
        "cifar": {"tokens": 4, "steps": 100},
    }
    traits = Traits(reads="patches", open=True)

    tokens: Count = 16
    transport: Transport = "partial"  # balanced: every patch counts alike; none: every pair of patch and context does
    mass: Part = 0.8  # of the patches is transported, if it is partial
    epsilon: Positive = 0.1  # of the entropy: less is a harder choice, and needs more steps
    steps: Count = 20  # of the transport's iterations
    lr: Positive = 0.001
    epochs: Whole = 1
    batch: Count = 32
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return p_g [s, W]."""
        return {"context": init_context(dual(task).context_width, self.tokens, rng("context"))}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return p_i [s, W]; every client draws its own."""
        return {"own": init_context(dual(task).context_width, self.tokens, rng("own"))}

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move p_g and p_i together by SGD; send p_g, keep p_i."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        tuned = local.sgd(self.loss, task, batches, start=down, params=down | personal, **rates)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy over all classes."""
        return ops.cross_entropy(self.predict(task, params, batch), batch["y"], batch["mask"])

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once: T(p_g) and T(p_i) [2, classes, D], of the server's model the first alone."""
        contexts = torch.stack([params[name] for name in ("context", "own") if name in params], -3)
        return params | {"text": dual(task).text(contexts, per_class=False)}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return Σ_mn T_mn S_mn of every class, times CLIP's scale; the plan T has no gradient."""
        known = params if "text" in params else self.prepare(task, params)
        likeness = _likeness(batch["x"][..., 1:, :], known["text"])  # the class token has no part in it
        with torch.no_grad():
            plan = self.plan(likeness)
        return dual(task).scale * (plan * likeness).sum((-2, -1))

    # -- the transport ----------------------------------------------------------
    def plan(self, likeness: Tensor) -> Tensor:
        """Return T for S [..., M, N]: contexts get γ / N each, and patches give at most 1 / M, or exactly if balanced.

        The cost is 1 − S. These are Sinkhorn's iterations, or Dykstra's where patches may keep some, with the scalings
        u and v as logarithms: exp(−1 / ε) is not a number that a computer has where ε is small.
        """
        patches, prompts = likeness.shape[-2:]
        if self.transport == "none":
            return torch.full_like(likeness, 1 / (patches * prompts))
        mass = self.mass if self.transport == "partial" else 1.0
        kernel, row, column = (likeness - 1) / self.epsilon, -math.log(patches), math.log(mass / prompts)
        v = torch.zeros_like(likeness[..., 0, :])
        u = torch.zeros_like(likeness[..., 0])
        for _ in range(self.steps):
            u = row - (kernel + v.unsqueeze(-2)).logsumexp(-1)
            u = u.clamp(max=0) if mass < 1 else u  # all of the mass leaves no patch a choice
            v = column - (kernel + u.unsqueeze(-1)).logsumexp(-2)
        return (kernel + u.unsqueeze(-1) + v.unsqueeze(-2)).exp()

    # -- what a person wants to see ----------------------------------------------
    def exhibits(self, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
        """Show the clients' own contexts."""
        return {"prompts": personal["own"]}


def _likeness(patches: Tensor, text: Tensor) -> Tensor:
    """Return the cosines S [..., B, classes, M, N] of patches [..., B, M, D] with texts [..., N, classes, D]."""
    unit = F.normalize(patches, dim=-1)
    pairs = unit.flatten(-3, -2) @ text.flatten(-3, -2).mT  # one product for all
    parted: Tensor = pairs.unflatten(-1, text.shape[-3:-1]).unflatten(-3, patches.shape[-3:-1])
    return parted.movedim(-1, -3)
