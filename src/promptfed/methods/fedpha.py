"""FedPHA: federated prompt learning for heterogeneous client adaptation (Fang et al. ICML 2025).

Every client has two contexts before the class names of a frozen CLIP, an averaged one and one of its own, whose length
may be its own too. The own one should survive a projection to weak directions of the average, and its text features
stay at a distance from the average's. It alone answers.
Symbol -> name: p_g -> context, p_i -> own, L_i -> length, B -> basis, α -> margin, s -> tokens.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Method, PromptFedError, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Share, Whole
from promptfed.core.prompts.text import init_context, match


@dataclass(frozen=True)
class FedPHA(Method):
    """Average a context, and hold a client's own one to the average's weak directions and away from its features."""

    name: ClassVar[str] = "fedpha"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {
        "mixed": {"shortest": 4, "longest": 32},
        "cifar": {"shortest": 4, "longest": 32, "lr": 0.002},
    }
    traits = Traits(reads="features", open=True)

    tokens: Count = 16  # of the averaged context
    shortest: Count = 16  # of the clients' own contexts; everyone draws a length
    longest: Count = 16
    ratio: Share = 0.8  # of the average's directions are weak
    space: Literal["weak", "null"] = "weak"  # null: all but the strong directions, those that the average lacks too
    pull: NonNegative = 1.0  # of the mean squared change by the projection
    push: NonNegative = 1.0  # of the distance that is missing
    margin: NonNegative = 1.0  # the least distance of text features from the average's
    lr: Positive = 0.001
    epochs: Whole = 1
    batch: Count = 32
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return p_g [s, W]."""
        if self.shortest > self.longest:
            raise PromptFedError(
                f"method.shortest={self.shortest} is more than method.longest={self.longest}; lower it to that."
            )
        return {"context": init_context(dual(task).context_width, self.tokens, rng("context"))}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return p_i, zeros behind its L_i tokens [longest, W], and L_i [] unless all contexts are of one length."""
        own = init_context(dual(task).context_width, self.longest, rng("own"))
        if self.shortest == self.longest == self.tokens:
            return {"own": own}
        length = torch.randint(self.shortest, self.longest + 1, (), generator=rng("length"))
        return {"own": own * (torch.arange(self.longest) < length).unsqueeze(-1), "length": length}

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move p_g and p_i together by SGD, with B of the p_g that came; send p_g, keep p_i."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        hold = personal | ({"basis": self.basis(down["context"])} if self.pull else {})
        params = down | tree.pick(personal, ["own"])
        tuned = local.sgd(self.loss, task, batches, start=down, params=params, hold=hold, **rates)
        return tree.pick(tuned, down), personal | tree.pick(tuned, ["own"])

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropies under p_i and under p_g, + pull and push."""
        own, average, *projected = self._texts(task, params).unbind(-3)
        logits = (match(batch["x"], text, dual(task).scale) for text in (own, average))
        mine, common = (ops.cross_entropy(each, batch["y"], batch["mask"]) for each in logits)
        value = mine + common
        if self.pull:
            value = value + self.pull * (own - projected[0]).square().mean((-2, -1))
        if self.push:
            value = value + self.push * F.relu(self.margin - (own - average).norm(dim=-1)).mean(-1)
        return value

    def _texts(self, task: Task, params: Tree) -> Tensor:
        """Return T(p_i), T(p_g) and, to pull, T(p_i^⊥) [..., 2 or 3, classes, D] by one pass of the text tower."""
        contexts = [params["own"], params["context"]]
        if self.pull:
            contexts.append(self.projected(params["own"], params["basis"]))
        if "length" not in params:
            return dual(task).text(torch.stack(contexts, -3), per_class=False)
        own = params["length"]
        lengths = torch.stack([own, torch.full_like(own, self.tokens), own][: len(contexts)], -1)
        room = max(self.tokens, self.longest)
        padded = [F.pad(each, (0, 0, 0, room - each.shape[-2])) for each in contexts]
        return dual(task).text(torch.stack(padded, -3), per_class=False, length=lengths)

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once: T(p_i), or T(p_g) of the server's model."""
        if "own" not in params:
            return params | {"text": dual(task).text(params["context"], per_class=False)}
        return params | {"text": dual(task).text(params["own"], per_class=False, length=params.get("length"))}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of images and the text features of the client's own context."""
        known = params if "text" in params else self.prepare(task, params)
        return match(batch["x"], known["text"], dual(task).scale)

    # -- the projection ----------------------------------------------------------
    def basis(self, context: Tensor) -> Tensor:
        """Return B of p_g = U S Vᵀ: the columns of V with the least singular values [W, m − cut].

        The cut = m (1 − ratio) strong ones in front of them [W, cut] are what the null space leaves out.
        """
        directions: Tensor = torch.linalg.svd(context, full_matrices=False).Vh.mT
        cut = int(directions.shape[-1] * (1 - self.ratio))
        return directions[..., cut:] if self.space == "weak" else directions[..., :cut]

    def projected(self, own: Tensor, basis: Tensor) -> Tensor:
        """Return p_i^⊥ = p_i B Bᵀ, or what p_i has outside of the strong directions."""
        within = own @ basis @ basis.mT
        return within if self.space == "weak" else own - within

    # -- what a person wants to see ----------------------------------------------
    def exhibits(self, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
        """Show the clients' own contexts."""
        return {"prompts": personal["own"]}
