"""FedMTL: federated multi-task learning, MOCHA (Smith et al. NeurIPS 2017), for networks and by SGD.

Every client has a model of its own; the server knows how the models are related and draws related ones together.
Paper symbol -> name: w_t -> a client's row, W -> all rows, Ω -> relation, λ -> strength.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, local, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole


@dataclass(frozen=True)
class FedMTL(Method):
    """Keep a model per client on the server, pull each towards its relatives.

    `compat="pfllib"` is what PFLlib runs under this name: its regulariser has no gradient, so it equals Local.
    """

    name: ClassVar[str] = "fedmtl"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}
    traits = Traits(needs_rows=True)

    strength: NonNegative = 0.01
    relation: Literal["learned", "mean"] = "learned"
    compat: Literal["real", "pfllib"] = "real"
    lr: Positive = 0.005
    epochs: Whole = 5
    batch: Count = 16
    momentum: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    clip: NonNegative = 0.0  # of a client's gradient; 0: none
    drop_last: bool = False

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return W⁰, the same row for every client, and Ω⁰ = I − 11ᵀ/N: everyone is related alike."""
        rows = tree.map(torch.clone, tree.repeat(task.backbone.init(rng), task.num_clients))
        return rows | {"relation": torch.eye(task.num_clients) - 1 / task.num_clients}

    # -- one round, in the order it happens -------------------------------------
    def download(self, task: Task, server: Tree, clients: Tensor) -> Tree:
        """Return each client's own row, Ω_ii, and where the others pull it: m_i = −Σ_{j≠i} Ω_ij w_j / Ω_ii."""
        rows, own = tree.drop(server, ["relation"]), clients.to(server["relation"].device)
        if self.compat == "pfllib":
            return tree.rows(rows, clients)
        relation = server["relation"][own]
        itself = relation.gather(-1, own[:, None])  # [C, 1]
        pull = -relation.scatter(-1, own[:, None], 0.0) / itself.clamp(min=torch.finfo(itself.dtype).tiny)
        toward = {f"toward.{name}": torch.tensordot(pull, value, dims=1) for name, value in rows.items()}
        return tree.rows(rows, clients) | toward | {"itself": itself[:, 0]}

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """w_i ← w_i − η ∇_{w_i} (ℓ_i(w_i) + λ tr(W Ω Wᵀ)) with the other rows as they are."""
        row = {name: value for name, value in down.items() if name != "itself" and not name.startswith("toward.")}
        batches = data.batches(size=self.batch, epochs=self.epochs, drop_last=self.drop_last)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        objective = self.loss if self.compat == "pfllib" else self.related
        return tree.pick(local.sgd(objective, task, batches, start=down, params=row, **rates), row), personal

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Put the rows in their places, then Ω for these rows."""
        rows = self.join(task, server, clients, up, weights)
        learned = self.relation == "learned" and self.compat == "real"
        return rows | ({"relation": _relation(tree.drop(rows, ["relation"]))} if learned else {})

    # -- clients that come after the last round ---------------------------------
    def admit(self, task: Task, server: Tree, newcomers: Tensor, rng: Rng) -> Tree:
        """Give every newcomer the mean row, related to everyone alike."""
        rows, count = tree.drop(server, ["relation"]), len(server["relation"]) + len(newcomers)
        mean = tree.map(lambda value: value.mean(0).expand(len(newcomers), *value.shape[1:]), rows)
        return tree.cat([rows, mean]) | {"relation": torch.eye(count).to(server["relation"]) - 1 / count}

    def join(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Put the rows in their places."""
        return server | {name: server[name].index_copy(0, clients.to(row.device), row) for name, row in up.items()}

    # -- what is minimised, and what is used ------------------------------------
    def related(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """ℓ_i(w_i) + λ Ω_ii ‖w_i − m_i‖², the part of λ tr(W Ω Wᵀ) with w_i in it, up to a constant."""
        value = self.loss(task, start, params, batch)
        for name in (name for name in params if f"toward.{name}" in start):
            apart = (params[name] - start[f"toward.{name}"]).square().flatten(value.dim()).sum(-1)
            value = value + self.strength * start["itself"] * apart
        return value

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return nothing: every model is some client's own."""
        return {}


def _relation(rows: Tree) -> Tensor:
    """Return the Ω [N, N] that is best for these rows, (WᵀW)^½ normalised and inverted; its trace is N − 1.

    A multiple of the identity, as large as the mean eigenvalue, makes the inverse exist.
    """
    flat = torch.cat([value.flatten(1) for value in rows.values()], 1).double()
    values, vectors = torch.linalg.eigh(flat @ flat.mT)
    roots = values.clamp(min=0).sqrt()
    inverse = 1 / (roots / roots.sum() + 1 / len(flat))
    scaled = inverse * (len(flat) - 1) / inverse.sum()
    relation: Tensor = (vectors * scaled) @ vectors.mT
    return relation.to(next(iter(rows.values())).dtype)
