"""pFedVPT: a prompt, a shared head and own class shares on a frozen backbone; a method of this project, after pFedPT.

pFedPT's idea where the backbone is frozen: a client keeps to itself what makes the shared model its own. What is
averaged is a linear head and prompt tokens, a few kilobytes. A client keeps the logarithm of its class shares, which
is added to the logits in training and in use: head and prompt learn what a photograph shows, as if classes were equally
frequent everywhere, and each client weighs that by how often it sees each class (logit adjustment, Menon et al.
ICLR 2021). The prompt may also be the client's own, as in pFedPT, or be generated for it, as in pFedPG.
Symbol -> name: P_i -> prompt or own.prompt, H -> head.*, log π_i -> own.prior, N_ic -> facts["counts"], a -> smoothing,
η -> lr, E -> epochs. Client i answers softmax(H(f(x; P_i)) + log π_i).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import (
    Batch,
    Count,
    Data,
    Method,
    NonNegative,
    Positive,
    Rng,
    Task,
    Traits,
    Tree,
    Whole,
    local,
    ops,
    tree,
)
from promptfed.core.prompts.tokens import init_prompt
from promptfed.methods.pfedpg import PFedPG


@dataclass(frozen=True)
class PFedVPT(Method):
    """Average a prompt and a head of a frozen transformer, keep class shares, or a prompt too, per client."""

    name: ClassVar[str] = "pfedvpt"
    backbone: ClassVar[str] = "vit"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}, "evaluate": {"every": 5}}

    prompt: Literal["shared", "own", "low-rank", "generated", "both"] = "shared"
    tokens: Whole = 4  # 0: no prompt, a head and class shares only
    rank: Count = 1  # of low-rank and both
    prior: bool = True
    smoothing: Positive = 0.1  # added to each class count, so that no class is impossible
    lr: Positive = 0.1
    epochs: Whole = 1
    batch: Count = 10
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-3
    server_lr: Positive = 1e-3  # of the generator: generated and both

    @property
    def traits(self) -> Traits:
        """Without tokens the features of an image never change; a generator must tell clients apart."""
        reads: Literal["pixels", "features"] = "pixels" if self.tokens else "features"
        return Traits(reads=reads, needs_rows=self._generates, averages=not self._generates)

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return H, and the prompt that clients share or the generator of their prompts."""
        server = task.backbone.head(rng)
        if self._generates:
            return server | _whole(self._generator.init_server(task, rng))
        if self.tokens and self.prompt != "own":
            server["prompt"] = init_prompt(task.backbone.token_width, self.tokens, rng("prompt", shared=True))
        return server

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return P_i, the same on every client at first, or its low-rank part, zero at first; and log π_i."""
        personal: Tree = {}
        if self.prior:  # π_ic = (N_ic + a) / Σ_c (N_ic + a)
            counts = data.facts["counts"].float() + self.smoothing
            personal["own.prior"] = (counts / counts.sum(-1, keepdim=True)).log()
        if self.tokens and self.prompt == "own":
            personal["own.prompt"] = init_prompt(task.backbone.token_width, self.tokens, rng("prompt", shared=True))
        if self.tokens and self.prompt in ("low-rank", "both"):
            draw = rng("rank", shared=True)
            personal["own.left"] = torch.randn(self.tokens, self.rank, generator=draw) / self.rank**0.5
            personal["own.right"] = torch.zeros(self.rank, task.backbone.token_width)
        return personal

    # -- one round, in the order it happens -------------------------------------
    def download(self, task: Task, server: Tree, clients: Tensor) -> Tree:
        """Send H, and the shared prompt or each client's generated one."""
        if not self._generates:
            return tree.repeat(server, len(clients))
        made = self._generator.download(task, _part(server), clients)
        return tree.repeat(tree.pick(server, HEAD), len(clients)) | made

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move H and the prompt together; log π_i stays. Send H and what is shared, keep what is own."""
        learned = tree.drop(down | personal, ["own.prior"])
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        tuned = local.sgd(self.loss, task, batches, start=down, params=learned, hold=personal, **rates)
        up = tree.pick(tuned, down)
        if self._generates:
            up = tree.pick(up, HEAD) | {"delta": tuned["prompt"] - down["prompt"]}
        return up, personal | tree.pick(tuned, tree.drop(personal, ["own.prior"]))

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Average H and the shared prompt by |D_i|; a generator follows the prompts as in pFedPG."""
        if not self._generates:
            return server | tree.mean(up, weights)
        moved = self._generator.aggregate(task, _part(server), clients, tree.pick(up, ["delta"]), weights)
        return tree.mean(tree.pick(up, HEAD), weights) | _whole(moved)

    # -- clients that come after the last round ----------------------------------
    def admit(self, task: Task, server: Tree, newcomers: Tensor, rng: Rng) -> Tree:
        """Give every newcomer a fresh descriptor, if prompts are generated."""
        if not self._generates:
            return server
        return server | _whole(self._generator.admit(task, _part(server), newcomers, rng))

    def join(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Fit the newcomers' descriptors alone, as in pFedPG; H and what is shared stay."""
        if not self._generates:
            return server
        return server | _whole(self._generator.join(task, _part(server), clients, tree.pick(up, ["delta"]), weights))

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy of H(f(x; P_i)) + log π_i."""
        return ops.cross_entropy(self._logits(task, params, batch, noise=batch), batch["y"], batch["mask"])

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return H(f(x; P_i)) + log π_i."""
        return self._logits(task, params, batch, noise=None)

    def trained(self, task: Task, down: Tree, personal: Tree, up: Tree) -> Tree:
        """Return the model right after local training."""
        made = {"prompt": down["prompt"] + up["delta"]} if "delta" in up else {}
        return down | personal | tree.drop(up, ["delta"]) | made

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return H with the shared prompt, if it needs no client's own."""
        return server if not self.tokens or self.prompt == "shared" else {}

    # -- the prompt --------------------------------------------------------------
    def _logits(self, task: Task, params: Tree, batch: Batch, noise: Tree | None) -> Tensor:
        if self.tokens:
            logits = task.backbone(params, batch["x"], tokens=self._tokens(params), noise=noise)
        else:
            logits = task.backbone(params, batch["x"], noise=noise)
        return logits + params["own.prior"].unsqueeze(-2) if "own.prior" in params else logits

    def _tokens(self, params: Tree) -> Tensor:
        """Return P_i [K, D]: own, or what was received plus the low-rank part."""
        if self.prompt == "own":
            return params["own.prompt"]
        if "own.left" not in params:
            return params["prompt"]
        return params["prompt"] + params["own.left"] @ params["own.right"]

    @property
    def _generates(self) -> bool:
        return bool(self.tokens) and self.prompt in ("generated", "both")

    @property
    def _generator(self) -> PFedPG:
        return PFedPG(tokens=self.tokens, optimiser="adam", server_lr=self.server_lr)


HEAD = ("head.weight", "head.bias")


def _part(server: Tree) -> Tree:
    """Return the generator's tensors under their own names."""
    return {name.removeprefix("generator."): x for name, x in server.items() if name.startswith("generator.")}


def _whole(generator: Tree) -> Tree:
    """Return the generator's tensors under the server's names."""
    return {f"generator.{name}": x for name, x in generator.items()}
