"""pFedPG: efficient model personalization via client-specific prompt generation (Yang, Wang, Wang. ICCV 2023).

The server learns a generator of prompts: from shared prompts and one descriptor per client it makes each client's
prompt tokens for a frozen transformer. A client tunes them with a head of its own and reports how far they moved.
Paper symbol -> name: P_base -> basis, d_n -> descriptor, W^Q/K/V/O -> query/key/value/out, P_n -> prompt,
ΔP_n -> delta, H_n -> head.*, K -> tokens, γ -> lr, α -> server_lr.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts.tokens import init_prompt

HIDDEN = 100  # of the MLP generator, which is pFedHN's hypernetwork: three hidden layers
MOMENTS = (0.9, 0.999)  # of Adam on the server


@dataclass(frozen=True)
class PFedPG(Method):
    """Generate every client's prompt on the server, from shared prompts and the client's descriptor."""

    name: ClassVar[str] = "pfedpg"
    backbone: ClassVar[str] = "vit"
    quick: ClassVar = {
        "rounds": 5,
        "data": {"name": "fashion-shops", "limit": 5},
        "partition": {"name": "domain"},
        "evaluate": {"every": 5},
    }
    traits = Traits(needs_rows=True, testing=("test_prompt",))
    presets: ClassVar = {
        "paper": {"optimiser": "sgd", "server_lr": 1e-3},  # as printed; the generator hardly moves in 100 rounds
        "tuned": {"optimiser": "adam", "server_lr": 1e-3},
    }

    tokens: Count = 10
    generator: Literal["cross-attention", "mlp", "adain", "none"] = "cross-attention"  # Table 4
    descriptor_tokens: Literal["one", "each"] = "one"  # each: a row per token, so tokens move apart
    descriptors: Literal["unit", "basis"] = "unit"  # what they are drawn from: ±1, or P_base's own, much smaller range
    width: Whole = 0  # of queries, keys and values; 0: the token's own
    zero_out: bool = False  # W^O starts at zero: in the first round everyone gets P_base
    lr: Positive = 0.25
    epochs: Whole = 5
    batch: Count = 64
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-3
    optimiser: Literal["sgd", "adam"] = "sgd"
    server_lr: Positive = 1e-3
    sign: Literal["descend", "printed"] = "descend"  # eq. 4 and 5 as printed push prompts away from the tuned ones
    test_prompt: Literal["own", "basis"] = "own"  # Table 4's row P_base: the basis in place of P_n, untuned, with H_n
    join_lr: Positive = 0.05
    join_steps: Count = 50

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return P_base, a descriptor per client, the generator's weights φ, and Adam's moments if it is used."""
        dim, wide = task.backbone.token_width, self.width or task.backbone.token_width
        draw = rng("generator")
        server: Tree = {} if self.generator == "mlp" else {"basis": init_prompt(dim, self.tokens, draw)}
        if self.generator != "none":
            server["descriptor"] = self._descriptors(task, task.num_clients, draw)
        if self.generator == "cross-attention":
            shapes = {"query": (dim, wide), "key": (dim, wide), "value": (dim, wide), "out": (wide, dim)}
            server |= {name: _xavier(shape, draw) for name, shape in shapes.items()}
            if self.zero_out:
                server["out"] = torch.zeros_like(server["out"])
        if self.generator == "mlp":
            widths = (dim, HIDDEN, HIDDEN, HIDDEN, self.tokens * dim)
            server |= {f"mlp{n}": _xavier((widths[n - 1], widths[n]), draw) for n in range(1, len(widths))}
        moments: Tree = {}
        if self.optimiser == "adam":
            moments = {
                f"{part}.{name}": torch.zeros_like(x) for part in ("first", "second") for name, x in server.items()
            }
            moments["count"] = torch.zeros(())
        return server | moments

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return H_n, the same on every client at first."""
        return task.backbone.head(rng)

    # -- one round, in the order it happens -------------------------------------
    def download(self, task: Task, server: Tree, clients: Tensor) -> Tree:
        """Eq. 3: P_n = G(P_base, d_n); neither the generator nor a descriptor leaves the server."""
        down = {"prompt": self.generate(server, clients)}
        if self.test_prompt == "basis" and "basis" in server:
            down["basis"] = server["basis"].expand(len(clients), -1, -1)
        return down

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Algorithm 1, lines 5 to 9: tune P_n and H_n on local data; report ΔP_n = P̃_n − P_n, keep H_n."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        tuned = local.sgd(self.loss, task, batches, start=down, params=tree.pick(down, ("prompt",)) | personal, **rates)
        return {"delta": tuned["prompt"] - down["prompt"]}, tree.pick(tuned, personal)

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Eq. 4 and 5: one step of φ, P_base and d_n that pulls every P_n towards P̃_n.

        It descends Σ_n ½‖G(P_base, d_n) − P̃_n‖², whose gradient is −JᵀΔP. The paper prints the other sign.
        """
        learned = {name: x.clone().requires_grad_() for name, x in self._learned(server).items()}
        reached = (self.generate(learned, clients) * up["delta"]).sum()
        pulls = torch.autograd.grad(reached, list(learned.values()), materialize_grads=True)
        way = 1 if self.sign == "descend" else -1
        steps = {name: way * pull for name, pull in zip(learned, pulls, strict=True)}
        if self.optimiser == "sgd":
            return tree.map(lambda x, step: x + self.server_lr * step, server, steps)
        count = server["count"] + 1
        first = tree.map(lambda step, old: torch.lerp(step, old, MOMENTS[0]), steps, _named("first", server))
        second = tree.map(lambda step, old: torch.lerp(step * step, old, MOMENTS[1]), steps, _named("second", server))
        one, two = (1 - moment**count for moment in MOMENTS)

        def moved(x: Tensor, mean: Tensor, square: Tensor) -> Tensor:
            return x + self.server_lr * (mean / one) / ((square / two).sqrt() + 1e-8)

        state = {f"first.{name}": x for name, x in first.items()} | {f"second.{name}": x for name, x in second.items()}
        return tree.map(moved, self._learned(server), first, second) | state | {"count": count}

    # -- clients that come after the last round ----------------------------------
    def admit(self, task: Task, server: Tree, newcomers: Tensor, rng: Rng) -> Tree:
        """Give every newcomer a fresh descriptor."""
        if self.generator == "none":
            return server
        rows = self._descriptors(task, len(newcomers), rng("descriptor")).to(server["descriptor"])
        moments = {name: torch.zeros_like(rows) for name in server if name.endswith(".descriptor")}
        return server | {name: torch.cat([server[name], x]) for name, x in {"descriptor": rows, **moments}.items()}

    def join(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Fit the newcomers' descriptors alone to the prompts they arrived at; the generator is frozen.

        Adam's steps are as long near the goal as far from it, so the rate falls to zero and the closest row is kept.
        """
        if self.generator == "none":
            return server
        target = self.generate(server, clients) + up["delta"]

        def gap(rows: Tensor) -> Tensor:
            made = self.generate(server | {"descriptor": rows}, torch.arange(len(rows)))
            return (made - target).square().sum((-2, -1))

        rows = server["descriptor"][clients].clone().requires_grad_()
        best, closest = rows.detach().clone(), gap(rows).detach()
        optimiser = torch.optim.Adam([rows], lr=self.join_lr)
        for step in range(self.join_steps):
            optimiser.param_groups[0]["lr"] = self.join_lr * (1 - step / self.join_steps)
            optimiser.zero_grad()
            gap(rows).sum().backward()
            optimiser.step()
            left = gap(rows).detach()
            best = torch.where((left < closest)[:, None, None], rows.detach(), best)
            closest = torch.minimum(left, closest)
        return server | {"descriptor": server["descriptor"].index_copy(0, clients.to(rows.device), best)}

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Eq. 2: the cross-entropy of H_n on the class token of [c, P_n, patches]."""
        logits = task.backbone(params, batch["x"], tokens=params["prompt"], noise=batch)
        return ops.cross_entropy(logits, batch["y"], batch["mask"])

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Eq. 6: the logits whose largest is the answer (the paper prints arg min)."""
        return task.backbone(params, batch["x"], tokens=params["prompt"])

    def trained(self, task: Task, down: Tree, personal: Tree, up: Tree) -> Tree:
        """Return P̃_n and H_n."""
        return personal | {"prompt": down["prompt"] + up["delta"]}

    def adapt(self, task: Task, down: Tree, personal: Tree, data: Data) -> Tree:
        """Return what a client deploys: the prompt it received, tuned again, and its head; or P_base as it is."""
        if "basis" in down:
            return personal | {"prompt": down["basis"]}
        up, head = self.fit(task, down, personal, data)
        return self.trained(task, down, head, up)

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return nothing: without a client there is neither prompt nor head."""
        return {}

    # -- the generator G ----------------------------------------------------------
    def generate(self, server: Tree, clients: Tensor) -> Tensor:
        """Return P_n [C, K, D] of `clients` [C]."""
        if self.generator == "none":
            return server["basis"].expand(len(clients), -1, -1)
        asked = server["descriptor"][clients.to(server["descriptor"].device)]  # [C, 1 or K, D]
        if self.generator == "mlp":
            for number in range(1, 4):
                asked = torch.relu(asked @ server[f"mlp{number}"])
            made: Tensor = (asked @ server["mlp4"]).mean(-2).unflatten(-1, (self.tokens, -1))
            return made
        if self.generator == "adain":  # the basis in the descriptor's mean and deviation
            basis = server["basis"]
            plain = (basis - basis.mean(-1, keepdim=True)) / basis.std(-1, keepdim=True)
            return asked.std(-1, keepdim=True) * plain + asked.mean(-1, keepdim=True)
        # Eq. 3: the descriptor asks, the basis answers
        value = server["basis"] @ server["value"] @ server["out"]  # [K, D]
        return server["basis"] + self._attention(server, asked) @ value

    def _attention(self, server: Tree, asked: Tensor) -> Tensor:
        """Return A_n = softmax((d_n W^Q)(P_base W^K)ᵀ / √l_k) [C, 1 or K, K]."""
        query, key = asked @ server["query"], server["basis"] @ server["key"]
        scale: float = key.shape[-1] ** -0.5
        return (query @ key.mT * scale).softmax(-1)

    def _descriptors(self, task: Task, count: int, draw: torch.Generator) -> Tensor:
        """Return fresh descriptors, uniform in ±1: large enough to tell clients apart from the start.

        AdaIN gives a prompt its descriptor's own deviation, so there the scale of P_base keeps prompts as small as it.
        """
        rows = 1 if self.descriptor_tokens == "one" else self.tokens
        if self.descriptors == "basis":
            return init_prompt(task.backbone.token_width, rows, draw, layers=count)
        return torch.empty(count, rows, task.backbone.token_width).uniform_(-1, 1, generator=draw)

    def _learned(self, server: Tree) -> Tree:
        return {name: x for name, x in server.items() if not name.startswith(("first.", "second.", "count"))}

    # -- what a person wants to see ----------------------------------------------
    def exhibits(self, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
        """Return the prompts, the descriptors, and how each client attends to the basis."""
        shown = {"prompts": self.generate(server, clients)}
        if self.generator != "none":
            asked = server["descriptor"][clients.to(server["descriptor"].device)]
            shown["descriptors"] = asked
            if self.generator == "cross-attention":
                shown["attention"] = self._attention(server, asked).mean(-2)
        return shown


def _named(part: str, server: Tree) -> Tree:
    """Return the tensors whose names start with `part.`, under what follows."""
    return {name.removeprefix(f"{part}."): x for name, x in server.items() if name.startswith(f"{part}.")}


def _xavier(shape: tuple[int, int], draw: torch.Generator) -> Tensor:
    bound = math.sqrt(6 / sum(shape))
    return torch.empty(shape).uniform_(-bound, bound, generator=draw)
