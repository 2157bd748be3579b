"""FLoRA and FedEx-LoRA: pairs of low rank whose products are averaged exactly; what no pair can hold moves W itself.

FLoRA (Wang et al. NeurIPS 2024) stacks the clients' pairs, which is the mean of their products, adds it to W, and
starts new pairs in every round. FedEx-LoRA (Singhal et al. ACL 2025) goes on with the means of A and B, as FedIT does,
and adds to W what they lack of the mean of the products.
Symbol -> name: A -> NAME.lora_a, B -> NAME.lora_b, ΔW, what has been added to W -> NAME.rest, p_k -> weights.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from promptfed.core import Data, Rng, Task, Traits, Tree, tree
from promptfed.methods.fed_lora import A, B, FedITLoRA

REST = ".rest"
ROUND = "round"


@dataclass(frozen=True)
class FLoRA(FedITLoRA):
    """Add the mean of the clients' products to the frozen matrices; every round begins with new pairs."""

    name: ClassVar[str] = "flora"

    @property
    def traits(self) -> Traits:
        """Say that the mean is over products of what each client sends."""
        plain = super().traits
        return Traits(reads=plain.reads, open=plain.open, needs_rows=True)

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return A, nothing added to W [out, in], and the number of the round."""
        plain = super().init_server(task, rng)
        return tree.drop(plain, [name for name in plain if name.endswith(B)]) | _rests(plain) | {ROUND: torch.zeros(())}

    # -- one round, in the order it happens -------------------------------------
    def download(self, task: Task, server: Tree, clients: Tensor) -> Tree:
        """Return A and what has been added to W, or a client that missed a round could not follow."""
        return super().download(task, tree.drop(server, [ROUND]), clients)

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move A and B beside W as it is now; B starts from zero where none has come."""
        rests = {name: value for name, value in down.items() if name.endswith(REST)}
        fresh = {
            name.removesuffix(REST) + B: value.new_zeros(*value.shape[:-1], self.rank) for name, value in rests.items()
        }
        moving = fresh | tree.drop(down | personal, rests)
        tuned = tree.pick(self.tuned(task, moving, rests, data), moving)  # without the momentum of SGD
        return tree.drop(tuned, personal), tree.pick(tuned, personal)

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """ΔW ← ΔW + s Σ p_k B_k A_k, the product of the stacked pairs; draw the next A."""
        number = server[ROUND] + 1
        drawn = self.pairs(task, task.rng("pairs", int(number)))
        next_a = {name: drawn[name].to(server[name]) for name in server if name.endswith(A)}
        heads = tree.mean({name: value for name, value in up.items() if not name.endswith((A, B))}, weights)
        return server | heads | next_a | _sums(server, self._products(_stacked(up, weights))) | {ROUND: number}

    def _products(self, pairs: Tree) -> Tree:
        """Return s B A [out, in] of every pair, under the name of what is added to W."""
        names = [name.removesuffix(A) for name in pairs if name.endswith(A)]
        return {f"{name}{REST}": self.scale * pairs[f"{name}{B}"] @ pairs[f"{name}{A}"] for name in names}

    # -- what is used -----------------------------------------------------------
    def beside(self, params: Tree) -> Tree:
        """Return the pairs with s, and what has been added to W; A alone, in a model without a client, is no pair."""
        lone = [name for name in params if name.endswith(A) and name.removesuffix(A) + B not in params]
        return super().beside(tree.drop(params, lone))


@dataclass(frozen=True)
class FedExLoRA(FLoRA):
    """Average A and B, and add to the frozen matrices what the product of the means lacks."""

    name: ClassVar[str] = "fedex-lora"

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return A, B, and nothing added to W [out, in]."""
        plain = FedITLoRA.init_server(self, task, rng)
        return plain | _rests(plain)

    # -- one round, in the order it happens -------------------------------------
    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """ΔW ← ΔW + s (mean(B A) − mean(B) mean(A))."""
        mean = tree.mean(up, weights)
        exact, product = self._products(_stacked(up, weights)), self._products(mean)
        return server | mean | _sums(server, tree.map(torch.sub, exact, product))


def _stacked(up: Tree, weights: Tensor) -> Tree:
    """Return pairs [C r, in] and [out, C r], whose product is the mean of the clients' products, Σ p_k B_k A_k."""
    share = weights / weights.sum()
    a = {n: (share.to(x)[:, None, None] * x).flatten(0, 1) for n, x in up.items() if n.endswith(A)}
    return a | {n: x.movedim(0, 1).flatten(1) for n, x in up.items() if n.endswith(B)}


def _rests(pairs: Tree) -> Tree:
    """Return zeros [out, in] of every pair's matrix."""
    names = [name.removesuffix(A) for name in pairs if name.endswith(A)]
    return {f"{name}{REST}": torch.zeros(len(pairs[f"{name}{B}"]), pairs[f"{name}{A}"].shape[1]) for name in names}


def _sums(server: Tree, more: Tree) -> Tree:
    return tree.map(torch.add, more, server)
