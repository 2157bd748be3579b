"""FedPGP: harmonizing generalization and personalization in federated prompt learning (Cui et al. ICML 2024).

A client's context before the class names of a frozen CLIP is the averaged one plus a low-rank part of its own. A
contrastive term pulls the averaged context towards CLIP's own sentence and pushes the client's away from the average.
Symbol -> name: p_G -> context, U -> u, V -> v, b -> rank, T_0 -> anchor, μ -> contrast, τ -> temperature, s -> tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts.text import init_context, match, said


@dataclass(frozen=True)
class FedPGP(Method):
    """Average a context, add a low-rank one of each client's own, and hold the average near CLIP's own sentence."""

    name: ClassVar[str] = "fedpgp"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {"code": {"rank": 8, "contrast": 0.5, "epochs": 2, "batch": 8}}
    traits = Traits(reads="features", open=True)

    tokens: Count = 16
    rank: Count = 4
    contrast: NonNegative = 1.0  # of the contrastive term; 0: a low-rank context of one's own alone
    temperature: Positive = 0.5
    anchor: str = "a photo of a {}."  # the sentence whose features the averaged context is pulled to
    lr: Positive = 0.001
    epochs: Whole = 2
    batch: Count = 32
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return p_G [s, W]."""
        said(task, self.anchor)  # a sentence without a place for the class is refused before a run begins
        return {"context": init_context(dual(task).context_width, self.tokens, rng("context"))}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return U [s, b] and V [b, W]; their product starts twenty times smaller than p_G."""
        width = dual(task).context_width
        return {"u": init_context(self.rank, self.tokens, rng("u")), "v": init_context(width, self.rank, rng("v"))}

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move p_G, U and V together by SGD; send p_G, keep U and V."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        tuned = local.sgd(self.loss, task, batches, start=down, params=down | personal, **rates)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy under p_G + UV, + μ L_con."""
        contexts = [self._own(params), *([params["context"]] if self.contrast else [])]
        own, *average = dual(task).text(torch.stack(contexts, -3), per_class=False).unbind(-3)
        value = ops.cross_entropy(match(batch["x"], own, dual(task).scale), batch["y"], batch["mask"])
        if not average:
            return value
        return value + self.contrast * self.contrastive(said(task, self.anchor), average[0], own)

    def contrastive(self, anchor: Tensor, average: Tensor, own: Tensor) -> Tensor:
        """Return L_con: the mean over classes of −log softmax([cos(T_0, T_σ), cos(T_σ, T)] / τ) at its first place.

        All three are unit text features [..., classes, D]: of CLIP's sentence, of p_G, and of the client's context.
        """
        likeness = torch.stack([(anchor * average).sum(-1), (average * own).sum(-1)], -1) / self.temperature
        return -F.log_softmax(likeness, -1)[..., 0].mean(-1)

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once: T(p_G + UV), or T(p_G) of the server's model."""
        return params | {"text": dual(task).text(self._own(params), per_class=False)}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of images and the client's text features."""
        known = params if "text" in params else self.prepare(task, params)
        return match(batch["x"], known["text"], dual(task).scale)

    def _own(self, params: Tree) -> Tensor:
        """Return p_G + UV [..., s, W]."""
        return params["context"] + params["u"] @ params["v"] if "u" in params else params["context"]

    # -- what a person wants to see ----------------------------------------------
    def exhibits(self, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
        """Show the clients' own contexts."""
        return {"prompts": self._own(server | personal)}
