"""FedMGP: personalized federated learning with multi-group text-visual prompts (Bo et al. NeurIPS 2025).

A client has several groups of prompts for either tower of a frozen CLIP, and answers by the mean of their logits; a
further loss keeps the groups apart. In a round it sends some groups, drawn by how near they are to the averaged ones.
Symbol -> name: p_t -> text, p_v -> visual, P̃ -> slots.*, G -> groups, s -> sent, τ -> temperature, λ -> lam.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Method, PromptFedError, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts.text import init_context, match

OPENING = "a photo of a"  # its first words start every text group, if that has no more tokens than this


@dataclass(frozen=True)
class FedMGP(Method):
    """Keep several groups of prompts in both towers, and average some of them, drawn anew in every round."""

    name: ClassVar[str] = "fedmgp"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {
        "cifar": {"batch": 32},
        "domains": {"epochs": 1, "batch": 32},
        "code": {"diversity": "released", "count": "clients"},
    }
    quick: ClassVar = {"rounds": 5, "data": {"name": "fashion-shops", "limit": 20}, "evaluate": {"every": 5}}

    groups: Count = 5
    sent: Count = 2  # of either tower's groups in a round
    tokens: Count = 2  # of a text group
    visual: Whole = 2  # tokens of a visual group; 0: texts alone, so the images' features are computed once
    temperature: Positive = 1.0  # of the draw
    diversity: Literal["cosine", "released"] = "cosine"  # released: as the published code, which pulls groups together
    lam: NonNegative = 1.0  # of the diversity loss
    count: Literal["images", "clients"] = "images"  # what a client counts by in the mean
    lr: Positive = 0.001
    epochs: Whole = 2
    batch: Count = 8
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4

    @property
    def traits(self) -> Traits:
        """Ask for features where the image tower stays as it is."""
        return Traits(reads="pixels" if self.visual else "features", open=True)

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return P̃, s slots of text [s, b, W] and of visual groups [s, b', V], and the number of rounds []."""
        if self.sent > self.groups:
            raise PromptFedError(f"method.sent={self.sent} is more than method.groups={self.groups}; lower it to that.")
        slots = {f"slots.{kind}": groups[: self.sent] for kind, groups in self._groups(task, rng).items()}
        return slots | {"stamp": torch.zeros(())}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return all groups, which of them were sent last [s], and the stamp that slots made of them have []."""
        groups = self._groups(task, rng)
        return groups | {f"chosen.{kind}": torch.arange(self.sent) for kind in groups} | {"seen": -torch.ones(())}

    def _groups(self, task: Task, rng: Rng) -> Tree:
        """Return p_t [G, b, W] and p_v [G, b', V], at first the same everywhere."""
        clip = dual(task)
        text = init_context(clip.context_width, self.tokens, rng("text", shared=True), self.groups)
        words = clip.words(OPENING)[: self.tokens]
        groups = {"text": words + text / 2 if len(words) == self.tokens else text}  # N(0, 0.01²) around words
        if self.visual:
            groups["visual"] = init_context(clip.token_width, self.visual, rng("visual", shared=True), self.groups)
        return groups

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move all groups by SGD; draw which are sent, and send them."""
        groups = self.written(down | personal)
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        tuned = tree.pick(local.sgd(self.loss, task, batches, start=down, params=groups, **rates), groups)
        chosen = {kind: self.chosen(kind, tuned[kind], down, data) for kind in tuned}
        up = {f"slots.{kind}": tuned[kind].take_along_dim(chosen[kind][..., None, None], -3) for kind in tuned}
        return up, tuned | {f"chosen.{kind}": picks for kind, picks in chosen.items()} | {"seen": down["stamp"] + 1}

    def chosen(self, kind: str, groups: Tensor, down: Tree, data: Data) -> Tensor:
        """Eq. 7 and 8: draw s groups [..., s] without replacement from softmax(s_j / τ), uniformly in the first round.

        s_j is the cosine of p_j, as one vector, with the nearest slot.
        """
        own, slots = (F.normalize(each.flatten(-2), dim=-1) for each in (groups, down[f"slots.{kind}"]))
        begun = (down["stamp"] > 0).to(own.dtype).unsqueeze(-1)
        scores = begun * (own @ slots.mT).amax(-1) / self.temperature
        # the largest of scores with Gumbel's noise are such a draw, in its order
        noise = -(-data.draw(f"groups.{kind}", (self.groups,)).log()).log()
        return (scores + noise).topk(self.sent, -1).indices

    def written(self, params: Tree) -> Tree:
        """Return a client's groups with the slots in the places that they were sent from.

        Slots of a round that the client was not in change nothing. The server's model is the slots themselves.
        """
        kinds = [name.removeprefix("slots.") for name in params if name.startswith("slots.")]
        if "seen" not in params:
            return {kind: params[f"slots.{kind}"] for kind in kinds}
        mine, made = params["seen"] == params["stamp"], {}
        for kind in kinds:
            groups, slots = params[kind], params[f"slots.{kind}"]
            places = params[f"chosen.{kind}"][..., None, None].expand_as(slots)
            made[kind] = torch.where(ops.spread(mine, 0, groups), groups.scatter(-3, places, slots), groups)
        return made

    def weight(self, facts: Tree) -> Tensor:
        """Count a client by its images, or once."""
        return facts["size"] if self.count == "images" else torch.ones_like(facts["size"])

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Return the mean of what was sent, slot by slot, with a new stamp."""
        return server | tree.mean(up, weights) | {"stamp": server["stamp"] + 1}

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the mean over groups of their cross-entropies, + λ L_div, the mean of both towers'."""
        text, features = dual(task).text(params["text"], per_class=False), self._features(task, params, batch["x"])
        logits, mask = match(features, text, dual(task).scale), batch["mask"]
        labels, counts = (each.unsqueeze(-2).expand(logits.shape[:-1]) for each in (batch["y"], mask))
        value = ops.cross_entropy(logits, labels, counts).mean(-1)
        if not self.lam or self.groups == 1:
            return value
        alike = self.alike(text).mean(-1)
        if self.visual:
            each = self.alike(F.normalize(features, dim=-1)) * mask
            alike = (alike + each.sum(-1) / mask.sum(-1).clamp(min=ops.LEAST)) / 2
        return value + self.lam * alike

    def alike(self, unit: Tensor) -> Tensor:
        """Return L_div of groups' unit features [..., G, N, D], the mean over pairs of their cosine [..., N].

        The published code has the distance in its place, and minimises it too.
        """
        if self.diversity == "cosine":
            return _cosine(unit)
        apart = (unit.unsqueeze(-4) - unit.unsqueeze(-3)).abs().mean(-1)
        return apart.sum((-3, -2)) / (self.groups * (self.groups - 1))

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Write the slots into their places, and run the text tower once for every group."""
        groups = self.written(params)
        shown = {"shown": groups["visual"]} if self.visual else {}
        return params | {"said": dual(task).text(groups["text"], per_class=False)} | shown

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the mean of the groups' logits."""
        known = params if "said" in params else self.prepare(task, params)
        visual = {"visual": known["shown"]} if self.visual else {}
        return match(self._features(task, visual, batch["x"]), known["said"], dual(task).scale).mean(-3)

    def _features(self, task: Task, params: Tree, x: Tensor) -> Tensor:
        """Return the images' features under every visual group [..., G, B, D], or as they are [..., 1, B, D]."""
        if not self.visual:
            return x.unsqueeze(-3)
        tokens = params["visual"]
        tokens = tokens.expand(*x.shape[:-4], *tokens.shape[-3:])
        images = x.unsqueeze(-5).expand(*tokens.shape[:-2], *x.shape[-4:])
        return dual(task).features({}, images, tokens=tokens)

    # -- what a person wants to see ----------------------------------------------
    def measures(self, task: Task, before: Tree, after: Tree) -> Tree:
        """Return how alike a client's text groups are: the mean cosine of two groups' features of a class."""
        if self.groups == 1:
            return {}
        return {"groups_alike": _cosine(dual(task).text(after["text"], per_class=False)).mean(-1)}

    def exhibits(self, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
        """Show the clients' text groups, one after another."""
        return {"prompts": personal["text"].flatten(-3, -2)}


def _cosine(unit: Tensor) -> Tensor:
    """Return the mean cosine of two groups' unit features [..., G, N, D] -> [..., N]: from the length of their sum."""
    count = unit.shape[-3]
    return (unit.sum(-3).square().sum(-1) - count) / (count * (count - 1))
