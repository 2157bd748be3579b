"""SGPT: unlocking prompt-tuning in bridging generalized and personalized federated learning (Deng et al. CVPR 2024).

Tokens enter a frozen transformer block by block and stay: first shared ones, then those of a group that every image
chooses by what the bare transformer says of it. One model serves all clients; images, not clients, are personal.
Symbol -> name: P_s -> shared, P_g -> groups, κ -> keys, n_g -> uses, G -> groups, q -> query.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Tree, dense, local, ops, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import Count, NonNegative, Positive, Share, Whole
from promptfed.core.prompts.tokens import init_prompt

HEAD = ("head.weight", "head.bias")
RARE = 5e-4  # what a group that was never chosen counts in the choice
LEAST = 1e-6  # a share of images below it is none


@dataclass(frozen=True)
class SGPT(Method):
    """Average shared prompts, prompts of groups, the groups' keys and a head; every image chooses its group."""

    name: ClassVar[str] = "sgpt"
    backbone: ClassVar[str] = "vit"
    presets: ClassVar = {
        "cifar": {"shared": 4, "grouped": 3, "groups": 20},
        "cifar-50": {"shared": 5, "grouped": 2, "groups": 20},
        "office": {"shared": 5, "grouped": 2, "batch": 50, "query": 6, "vote": True, "key_momentum": 0.0},
    }
    quick: ClassVar = {
        "rounds": 5,
        "method": {"epochs": 2, "lr": 0.03},
        "data": {"name": "fashion-shops", "limit": 5},
        "partition": {"name": "domain"},
        "evaluate": {"every": 5, "after": False},
    }

    shared: Count = 3  # the first blocks, each with a shared token
    grouped: Whole = 2  # the next blocks, each with a token of the image's group; 0: no groups
    groups: Count = 4
    query: Whole = 0  # the blocks after which the bare class token is an image's query; 0: all of them
    vote: bool = False  # a training batch takes the group that most of its images choose
    lr: Positive = 0.01
    epochs: Count = 5  # of each stage
    batch: Count = 40
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-5
    group_momentum: Share = 0.5  # of the server's group prompts
    key_momentum: Share = 0.5

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return P_s [shared, D], P_g [grouped, G, D], κ [G, D], n_g [G] and the head."""
        width, layers = dense(task).token_width, task.backbone.layers
        if self.shared + self.grouped > layers:
            raise PromptFedError(
                f"method.shared={self.shared} and method.grouped={self.grouped} are more than the backbone's {layers} "
                "blocks; lower one of them."
            )
        if self.groups > width:
            raise PromptFedError(f"method.groups={self.groups} is more than the backbone's width; set at most {width}.")
        head = task.backbone.head(rng)
        if head["head.weight"].shape[-1] != width:
            raise PromptFedError(
                "sgpt reads a transformer's own features, without a projection; set backbone.name=vit."
            )
        server = {"shared": torch.zeros(self.shared, width)} | head
        if not self.grouped:
            return server
        prompts = init_prompt(width, self.groups, rng("groups"), self.grouped)
        keys = torch.linalg.qr(torch.randn(width, self.groups, generator=rng("keys"))).Q.T
        return server | {"groups": prompts, "keys": keys.contiguous(), "uses": torch.zeros(self.groups)}

    def constants(self, task: Task, batch: Batch) -> Tree:
        """Return q [B, D], the frozen transformer's class token without prompts, no number below 0, of unit length."""
        token = dense(task).grown({}, batch["x"], tokens={}, upto=self.query)
        return {"query": F.normalize(token.relu(), dim=-1)}

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move the head with P_s, then with P_g and κ; send them, κ in sums over images."""
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        first = tree.pick(down, ["shared", *HEAD])
        batches = data.batches("shared", size=self.batch, epochs=self.epochs)
        up = tree.pick(local.sgd(self.loss, task, batches, start=down, params=first, **rates), first)
        if not self.grouped:
            return up, personal
        second = tree.pick(up, HEAD) | tree.pick(down, ["groups", "keys"])
        hold = {"shared": up["shared"], "count": torch.zeros_like(down["uses"])}
        batches = data.batches("groups", size=self.batch, epochs=self.epochs)
        tuned = local.sgd(self.in_groups, task, batches, start=down, params=second, hold=hold, carry=["count"], **rates)
        used = tuned["count"] / tuned["count"].sum(-1, keepdim=True).clamp(min=1)
        sums = {"used": used, "weighted": used.unsqueeze(-1) * tuned["keys"]}
        return up | tree.pick(tuned, [*HEAD, "groups"]) | sums, personal

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Average by images, κ by the images that chose it; P_g and κ keep a part of what they were."""
        mean = tree.mean(up, weights)
        after = server | tree.pick(mean, ["shared", *HEAD])
        if not self.grouped:
            return after
        keys = _keys(server, mean)
        return after | {
            "groups": torch.lerp(mean["groups"], server["groups"], self.group_momentum),
            "keys": torch.lerp(keys, server["keys"], self.key_momentum),
            "uses": server["uses"] + mean["used"],
        }

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy with the shared prompts alone."""
        return ops.cross_entropy(self._logits(task, params, batch, None), batch["y"], batch["mask"])

    def in_groups(self, task: Task, start: Tree, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """Return the cross-entropy with groups, less the mean likeness of images and their keys; count the choices.

        The counts that steer the choice are those of finished rounds.
        """
        alike = self._alike(task, params, batch)
        share = start["uses"] / start["uses"].sum(-1, keepdim=True).clamp(min=LEAST)
        chosen = _one((1 - alike) * (share + RARE).unsqueeze(-2))
        there = (batch["mask"] > 0).to(chosen).unsqueeze(-1)
        if self.vote:
            chosen = _one(-(chosen * there).sum(-2, keepdim=True)).expand_as(chosen)
        value = ops.cross_entropy(self._logits(task, params, batch, chosen), batch["y"], batch["mask"])
        near = ((chosen * alike).sum(-1) * batch["mask"]).sum(-1) / batch["mask"].sum(-1).clamp(min=ops.LEAST)
        return value - near, {"count": params["count"] + (chosen * there).sum(-2)}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the logits with each image's nearest group."""
        chosen = _one(-self._alike(task, params, batch)) if self.grouped else None
        return self._logits(task, params, batch, chosen)

    def trained(self, task: Task, down: Tree, personal: Tree, up: Tree) -> Tree:
        """Return the client's model, with the keys that it has moved."""
        return down | up | ({"keys": _keys(down, up)} if self.grouped else {})

    def _alike(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the cosines [..., B, G] of queries and keys."""
        query = batch["constant.query"] if "constant.query" in batch else self.constants(task, batch)["query"]
        return query @ F.normalize(params["keys"], dim=-1).mT

    def _logits(self, task: Task, params: Tree, batch: Batch, chosen: Tensor | None) -> Tensor:
        """Return the head's logits on the class token, and with groups on its mean with the group's tokens."""
        tokens = {number: params["shared"][..., number : number + 1, :] for number in range(self.shared)}
        nearest = 0
        if chosen is not None:
            nearest = self.grouped
            for number in range(self.grouped):
                tokens[self.shared + number] = (chosen @ params["groups"][..., number, :, :]).unsqueeze(-2)
        features = dense(task).grown(params, batch["x"], tokens=tokens, nearest=nearest)
        return ops.linear(features, params["head.weight"], params["head.bias"])


def _one(cost: Tensor) -> Tensor:
    """Return 1 at the first of the least costs [..., G], 0 elsewhere; no gradient passes."""
    return (torch.arange(cost.shape[-1], device=cost.device) == cost.argmin(-1, keepdim=True)).to(cost)


def _keys(before: Tree, sums: Tree) -> Tensor:
    """Return the keys [..., G, D] that sums over images stand for; those that no image chose stay."""
    used = sums["used"].unsqueeze(-1)
    return torch.where(used > LEAST, sums["weighted"] / used.clamp(min=LEAST), before["keys"])
