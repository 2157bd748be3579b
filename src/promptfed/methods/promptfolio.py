"""PromptFolio: federated learning from vision-language foundation models (Pan et al. NeurIPS 2024).

Every client has two contexts before the class names of a frozen CLIP, one that is averaged and one of its own. Their
text features are mixed, so a client's answer is a portfolio of two: a global and a local one.
Symbol -> name: p_g -> context, p_i -> own, θ -> theta, s -> tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Share, Whole
from promptfed.core.prompts.text import init_context, match


@dataclass(frozen=True)
class PromptFolio(Method):
    """Mix the text features of an averaged context with those of a client's own."""

    name: ClassVar[str] = "promptfolio"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {"code": {"theta": 0.4, "tokens": 8, "epochs": 5}}
    traits = Traits(reads="features", open=True)

    theta: Share = 0.2  # of the client's own context; 0 is PromptFL, 1 a local CoOp
    tokens: Count = 16
    renorm: bool = False  # make the mixed text features unit vectors again
    lr: Positive = 0.002
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
        both = down | personal
        # a context without a share has no gradient, but decay alone would move it
        params = tree.pick(both, [name for name, share in self._shares() if share])
        tuned = both | local.sgd(self.loss, task, batches, start=down, params=params, hold=both, **rates)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy over all classes."""
        return ops.cross_entropy(self.predict(task, params, batch), batch["y"], batch["mask"])

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once: (1 − θ) T(p_g) + θ T(p_i), or T(p_g) of the server's model."""
        parts = self._shares() if "own" in params else [("context", 1.0)]
        parts = [(name, share) for name, share in parts if share]  # without a share nothing is computed
        texts = dual(task).text(torch.stack([params[name] for name, _ in parts], -3), per_class=False).unbind(-3)
        first, *others = (share * text for (_, share), text in zip(parts, texts, strict=True))
        mixed = sum(others, first)
        return params | {"text": F.normalize(mixed, dim=-1) if self.renorm else mixed}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of images and mixed text features: the mixture of both contexts' logits."""
        known = params if "text" in params else self.prepare(task, params)
        return match(batch["x"], known["text"], dual(task).scale)

    def _shares(self) -> list[tuple[str, float]]:
        return [("context", 1 - self.theta), ("own", self.theta)]

    # -- what a person wants to see ----------------------------------------------
    def exhibits(self, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
        """Show the clients' own contexts."""
        return {"prompts": personal["own"]}
