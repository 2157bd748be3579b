"""pFedMoAP: mixture of experts made personalized for federated prompt learning (Luo et al. ICLR 2025).

The server keeps every client's context and sends each client the ones nearest to its own. These experts stay as they
are. The client trains its own context, and a small attention that mixes the text features of all of them per image.
Paper symbol -> name: P_g -> context, P_i -> own, P_NL -> experts, 𝒫 -> pool, θ_i -> gate.*, λ -> lam, s -> tokens.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Method, PromptFedError, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts.text import init_context, init_map, match

PARTS = ("query", "key", "value", "out")  # of the gate


@dataclass(frozen=True)
class PFedMoAP(Method):
    """Mix a client's own context with other clients' by an attention that never leaves it."""

    name: ClassVar[str] = "pfedmoap"
    backbone: ClassVar[str] = "clip"
    traits = Traits(reads="features", needs_rows=True, open=True)

    tokens: Count = 16
    experts: Count = 10  # contexts that are mixed, the client's own among them
    select: Literal["nearest", "random"] = "nearest"  # the others' contexts that a client gets
    lam: NonNegative = 0.5  # of the client's own context by itself, beside the mixture
    width: Count = 128  # features are thinned out to about so many before they are mixed
    heads: Count = 8  # of the attention
    sharpness: Positive = 10.0  # what the attention's products are multiplied by
    lr: Positive = 0.002
    gate_lr: Positive = 0.01
    epochs: Whole = 5
    batch: Count = 32
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return P_g [s, W], the pool [N, s, W], still empty, which of it is held [N], and the number of rounds []."""
        thinned = self._thin(dual(task).zero_shot).shape[-1]
        if thinned % self.heads:
            raise PromptFedError(f"method.heads={self.heads} must divide the thinned features' width, {thinned}.")
        context = init_context(dual(task).context_width, self.tokens, rng("context"))
        return {"context": context, "round": torch.zeros(()), **self._empty(context, task.num_clients)}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return P_i, not there yet, the rounds it was in [], and θ_i: four maps of the thinned features [d, d]."""
        thinned = self._thin(dual(task).zero_shot).shape[-1]
        own = torch.zeros(self.tokens, dual(task).context_width)
        gate = {k: v for part in PARTS for k, v in init_map(f"gate.{part}", (thinned, thinned), rng(part)).items()}
        return {"own": own, "rounds": torch.zeros(()), **gate}

    # -- one round, in the order it happens -------------------------------------
    def download(self, task: Task, server: Tree, clients: Tensor) -> Tree:
        """Return P_g and K of the others' contexts [C, K, s, W]: zeros in place of those that are not there.

        A client that has sent nothing yet is near to nobody. Contexts of newcomers are for themselves alone.
        """
        down, count = {"context": server["context"].expand(len(clients), -1, -1)}, task.num_clients
        wanted = min(self.experts, count) - 1
        if not wanted:
            return down
        clients, pool, held = clients.to(server["pool"].device), server["pool"], server["held"]
        far = self._far(task, server, clients)
        other = clients.unsqueeze(-1) != torch.arange(count, device=clients.device)
        there = other & (held[:count] > 0) & (held[clients] > 0).unsqueeze(-1)
        nearest = far.masked_fill(~there, math.inf).topk(wanted, largest=False)
        on = nearest.values.isfinite().to(pool.dtype)
        return down | {"experts": pool[nearest.indices] * on[..., None, None]}

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move P_i, from P_g, and θ_i by SGD; in a client's first round P_i alone, as in PromptFL. Send P_i."""
        seen = personal["rounds"] >= 1
        gate = {name: value for name, value in personal.items() if name.startswith("gate.")}
        params = {"context": down["context"], **gate}
        hold = self._others(task, down) | {"gated": seen.to(down["context"].dtype)}
        rates = {name: self.gate_lr if name in gate else self.lr for name in params}
        tuned = local.sgd(
            self.loss,
            task,
            data.batches(size=self.batch, epochs=self.epochs),
            start=down,
            params=params,
            hold=hold,
            lr=rates,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        # in the first round there is no gate: decay alone must not move it
        moved = {name: torch.where(ops.spread(seen, 0, old), tuned[name], old) for name, old in gate.items()}
        kept = {"own": tuned["context"], "rounds": personal["rounds"] + 1, **moved}
        return {"context": tuned["context"]}, kept

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Return P_g, the mean by training images, and the pool with what has come."""
        stored = self._stored(server, clients, up)
        return stored | tree.mean(up, weights) | {"round": server["round"] + 1}

    # -- clients that come after the last round ----------------------------------
    def admit(self, task: Task, server: Tree, newcomers: Tensor, rng: Rng) -> Tree:
        """Make room for the newcomers' contexts."""
        room = self._empty(server["context"], len(newcomers))
        return server | {name: torch.cat([server[name], more]) for name, more in room.items()}

    def join(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Keep the newcomers' contexts, to know what is near them; P_g stays."""
        return self._stored(server, clients, up)

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy over all classes."""
        text = dual(task).text(params["context"], per_class=False)
        return ops.cross_entropy(self._logits(task, params | {"text": text}, batch["x"]), batch["y"], batch["mask"])

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once: for P_i, or P_g before there is one, and for experts; θ_i counts once trained."""
        if "own" not in params:
            return params | {"text": dual(task).text(params["context"], per_class=False)}
        rounds = params["rounds"]
        own = torch.where(ops.spread(rounds >= 1, 0, params["own"]), params["own"], params["context"])
        gated = {"gated": (rounds >= 2).to(own.dtype)}
        return params | {"text": dual(task).text(own, per_class=False)} | self._others(task, params) | gated

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return eq. 10 for P_i and θ_i; the server's model is P_g by itself."""
        return self._logits(task, params if "text" in params else self.prepare(task, params), batch["x"])

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return P_g."""
        return tree.pick(server, ["context"])

    # -- the mixture --------------------------------------------------------------
    def _logits(self, task: Task, known: Tree, x: Tensor) -> Tensor:
        """Eq. 10: the scaled ⟨pool(f), T_MoE⟩ + λ ⟨f, T_L⟩; where nothing is gated, ⟨f, T_L⟩ alone."""
        scale = dual(task).scale
        plain = match(x, known["text"], scale)
        if "gated" not in known:
            return plain
        gated = ops.spread(known["gated"], 0, plain)
        return (1 - gated + self.lam * gated) * plain + gated * scale * self.mixture(known, F.normalize(x, dim=-1))

    def mixture(self, known: Tree, features: Tensor) -> Tensor:
        """Return ⟨pool(f), T_MoE⟩ [..., B, classes]: per class, the image attends to all contexts' text features."""
        seen, own = self._thin(features), self._thin(known["text"]).unsqueeze(-2)  # [..., B, d], [..., classes, 1, d]
        texts = torch.cat([own, known["others"].movedim(-3, -2)], -2) if "others" in known else own
        query, key, value = (
            self._linear(known, part, x).unflatten(-1, (self.heads, -1))
            for part, x in (("query", seen), ("key", texts), ("value", texts))
        )
        scores = self.sharpness * torch.einsum("...bhd,...kehd->...bkhe", query, key)
        if "others" in known:
            there = F.pad(known["on"], (1, 0), value=1.0)
            scores = scores.masked_fill(there[..., None, None, None, :] == 0, -math.inf)
        mixed = torch.einsum("...bkhe,...kehd->...bkhd", scores.softmax(-1), value).flatten(-2)
        return (self._linear(known, "out", mixed) * seen.unsqueeze(-2)).sum(-1)

    def _linear(self, known: Tree, part: str, x: Tensor) -> Tensor:
        return ops.linear(x, known[f"gate.{part}.weight"], known[f"gate.{part}.bias"])

    def _others(self, task: Task, down: Tree) -> Tree:
        """Return the experts' thinned text features [..., K, classes, d], and which of them are there [..., K]."""
        if "experts" not in down:
            return {}
        on = (down["experts"] != 0).flatten(-2).any(-1).to(down["experts"].dtype)
        return {"others": self._thin(dual(task).text(down["experts"], per_class=False)), "on": on}

    def _thin(self, features: Tensor) -> Tensor:
        """Take every n-th feature: [..., D] -> [..., d]."""
        return features[..., :: max(1, features.shape[-1] // self.width)]

    # -- the pool -------------------------------------------------------------------
    def _far(self, task: Task, server: Tree, clients: Tensor) -> Tensor:
        """Return how far the first clients' contexts are from those of `clients` [C, N], or numbers drawn for this."""
        rows = server["pool"].flatten(1)
        if self.select == "nearest":
            return torch.cdist(rows[clients], rows[: task.num_clients], compute_mode="donot_use_mm_for_euclid_dist")
        now = int(server["round"])
        draws = [torch.rand(task.num_clients, generator=task.rng("experts", now, one)) for one in clients.tolist()]
        return torch.stack(draws).to(rows)

    def _empty(self, context: Tensor, count: int) -> Tree:
        return {"pool": context.new_zeros(count, *context.shape), "held": context.new_zeros(count)}

    def _stored(self, server: Tree, clients: Tensor, up: Tree) -> Tree:
        """Return the server's tree with the clients' contexts in the pool."""
        clients = clients.to(server["pool"].device)
        held = server["held"].index_fill(0, clients, 1.0)
        return server | {"pool": server["pool"].index_copy(0, clients, up["context"]), "held": held}

    # -- what a person wants to see ----------------------------------------------
    def exhibits(self, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
        """Show the clients' own contexts."""
        return {"prompts": personal["own"]}
