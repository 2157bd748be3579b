"""FedTPG: federated text-driven prompt generation for vision-language models (Qiu et al. ICLR 2024).

A small network on the server makes the context before the class names of a frozen CLIP out of these names: queries look
at the names' text features and become the context. Clients train the network on the classes they have, and it answers
for names that nobody trained on.
Symbol -> name: Q -> query, T_0 -> names, MHA -> attention.*, FF -> ff.*, P -> the result of `context`, n -> tokens.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Method, PromptFedError, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts.text import init_context, init_map, match, said

HIDDEN = 4  # the hidden layer of FF is so many times as wide as the context
ABSENT = -1e4  # in place of the logit of a class that is not named: its share is exactly 0
EPS = 1e-5


@dataclass(frozen=True)
class FedTPG(Method):
    """Average a network that makes the context of a frozen CLIP from the names of the classes."""

    name: ClassVar[str] = "fedtpg"
    backbone: ClassVar[str] = "clip"
    recipe: ClassVar = {"schedule": {"name": "cosine"}}
    traits = Traits(reads="features", open=True)

    tokens: Count = 4
    heads: Count = 4
    over: Literal["own", "all"] = "own"  # the classes that are named in training: those a client has, or all
    count: Literal["clients", "images"] = "clients"  # what a client counts by in the mean
    lr: Positive = 0.003
    epochs: Whole = 1
    batch: Count = 200
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-5

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return Q [n, W] and the network's maps; class features are D wide, the context W."""
        width, seen = dual(task).context_width, said(task, "{}").shape[-1]
        if width % self.heads:
            raise PromptFedError(f"method.heads={self.heads} must divide the width of a context token, {width}.")
        network = {"query": init_context(width, self.tokens, rng("query"))}
        for name, size in (("norm_query", width), ("norm_names", seen), ("norm_ff", width)):
            network |= {f"{name}.weight": torch.ones(size), f"{name}.bias": torch.zeros(size)}
        for name, inputs in (("query", width), ("key", seen), ("value", seen)):
            bound = math.sqrt(6 / (inputs + 3 * width))  # Xavier's, of all three as one matrix
            weight = torch.empty(width, inputs).uniform_(-bound, bound, generator=rng(name))
            network |= {f"attention.{name}.weight": weight, f"attention.{name}.bias": torch.zeros(width)}
        network |= init_map("attention.out", (width, width), rng("out")) | {"attention.out.bias": torch.zeros(width)}
        network |= init_map("ff.up", (2 * HIDDEN * width, width), rng("up"))
        return network | init_map("ff.down", (width, HIDDEN * width), rng("down"))

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move the network by SGD and send it."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return tree.pick(local.sgd(self.loss, task, batches, start=down, params=down, **rates), down), personal

    def weight(self, facts: Tree) -> Tensor:
        """Count a client once, or by its images."""
        return facts["size"] if self.count == "images" else torch.ones_like(facts["size"])

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy over the classes that are named; of a single one it is 0."""
        if self.over == "all":
            return ops.cross_entropy(self.predict(task, params, batch), batch["y"], batch["mask"])
        named = batch["counts"] > 0
        logits = self.predict(task, params, batch | {"named": named})
        return ops.cross_entropy(logits.masked_fill(~named.unsqueeze(-2), ABSENT), batch["y"], batch["mask"])

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Make the context of all names, and run the text tower once."""
        return params | {"text": dual(task).text(self.context(task, params), per_class=False)}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of images and names; if only some are named, they alone make the context."""
        if "named" in batch:
            context = self.context(task, params, batch["named"])
            return match(batch["x"], dual(task).text(context, per_class=False), dual(task).scale)
        known = params if "text" in params else self.prepare(task, params)
        return match(batch["x"], known["text"], dual(task).scale)

    # -- the network ------------------------------------------------------------
    def context(self, task: Task, params: Tree, named: Tensor | None = None) -> Tensor:
        """Return P = A + FF(A) [..., n, W] with A = MHA(LN(Q), LN(T_0), LN(T_0)), of all names or of `named` [classes].

        The names are a set: their order changes nothing.
        """
        query = params["query"]
        names = said(task, "{}").expand(*query.shape[:-2], -1, -1)
        asked = _split(_mapped(params, "query", _normed(params, "norm_query", query)), self.heads)
        keys, values = (
            _split(_mapped(params, part, _normed(params, "norm_names", names)), self.heads) for part in ("key", "value")
        )
        scores = asked @ keys.mT / math.sqrt(asked.shape[-1])
        if named is not None:
            scores = scores.masked_fill(named[..., None, None, :] == 0, ABSENT)
        mixed = (scores.softmax(-1) @ values).movedim(-3, -2).flatten(-2)
        found = _mapped(params, "out", mixed)  # there is no way around the attention, as in the published code
        half, gate = _linear(params, "ff.up", _normed(params, "norm_ff", found)).chunk(2, -1)
        return found + _linear(params, "ff.down", half * F.gelu(gate))


def _linear(params: Tree, name: str, x: Tensor) -> Tensor:
    return ops.linear(x, params[f"{name}.weight"], params[f"{name}.bias"])


def _mapped(params: Tree, part: str, x: Tensor) -> Tensor:
    return _linear(params, f"attention.{part}", x)


def _normed(params: Tree, name: str, x: Tensor) -> Tensor:
    return ops.layer_norm(x, params[f"{name}.weight"], params[f"{name}.bias"], EPS)


def _split(x: Tensor, heads: int) -> Tensor:
    """Part the last dimension among heads: [..., T, W] -> [..., heads, T, W / heads]."""
    parted: Tensor = x.unflatten(-1, (heads, -1))
    return parted.movedim(-2, -3)
