"""DP-FPL: privacy-preserving personalized federated prompt learning (Tran et al. ICLR 2025).

A client's context before the class names of a frozen CLIP is the averaged one plus one of its own. In every step the
own one is written as a product of low rank and a rest, and clipped and noisy gradients of the two factors move it.
Symbol -> name: p_G -> context, p_L -> own, u, v, r -> u, v, rest, k -> rank, C_th -> clip, η -> lr, σ -> noise.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import Batch, Data, Draw, Method, Rng, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import Count, NonNegative, Positive
from promptfed.core.prompts.text import init_context, match


@dataclass(frozen=True)
class DPFPL(Method):
    """Average a context and add one's own, both moved by clipped, noisy gradients; the own one's are of low rank."""

    name: ClassVar[str] = "dp-fpl"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {
        "code": {"clipping": "batch", "noise": 0.0},
        "code-0.4": {"clipping": "batch", "noise": 84.8},
        "code-0.1": {"clipping": "batch", "noise": 339.3},
        "code-0.01": {"clipping": "batch", "noise": 3393.1},
    }
    quick: ClassVar = {"rounds": 30, "evaluate": {"every": 10}}

    clipping: Literal["example", "batch"] = "example"  # whose gradient; only the first hides an example
    clip: Positive = 10.0  # the longest gradient, all parts together
    noise: NonNegative = 1.0  # in units of the clip, on the sum over a batch
    delta: Positive = 1e-5
    rank: Count = 8
    tokens: Count = 16
    steps: Count = 1  # of a round
    lr: Positive = 0.001
    batch: Count = 32
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4

    @property
    def traits(self) -> Traits:
        """Take no weights of classes: they would tell one example of the others' labels, and are lost by clipping."""
        return Traits(reads="features", open=True, weighs=self.clipping == "batch")

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return p_G [s, W] and how far it moved last."""
        if self.rank > self.tokens:
            raise PromptFedError(f"method.rank={self.rank} is more than method.tokens={self.tokens}; lower it to that.")
        context = init_context(dual(task).context_width, self.tokens, rng("context"))
        return {"context": context, "velocity": torch.zeros_like(context)}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return p_L [s, W] and how far it moved last; every client draws its own."""
        own = init_context(dual(task).context_width, self.tokens, rng("own"))
        return {"own": own, "own_velocity": torch.zeros_like(own)}

    def draws(self, task: Task) -> dict[str, Draw]:
        """Return the noise on the sum of a batch's clipped gradients."""
        noisy = self.clipping == "example" and self.noise
        return task.backbone.draws() | (local.noise_for(self._shapes(task)) if noisy else {})

    def spends(self) -> tuple[float, float, int]:
        """Return the noise, δ, and that every step may use an example; noise on a clipped batch hides no example."""
        return (self.noise, self.delta, self.steps) if self.clipping == "example" else (0.0, self.delta, 0)

    def _shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        width = dual(task).context_width
        return {"context": (self.tokens, width), "u": (self.tokens, self.rank), "v": (self.rank, width)}

    # -- one round, in the order it happens -------------------------------------
    def download(self, task: Task, server: Tree, clients: Tensor) -> Tree:
        """Send p_G alone."""
        return tree.repeat(tree.pick(server, ["context"]), len(clients))

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move p_G and p_L by a batch, or some; send p_G."""
        context, own, velocity = down["context"], personal["own"], personal["own_velocity"]
        for number in range(self.steps):
            sketch = data.draw(f"sketch{number}", (own.shape[-1], self.rank), "normal")
            parts = factors(own, sketch)
            grads = self._gradients(task, {"context": context, **parts}, data, number)
            pull = through(parts["u"], parts["v"], grads["u"], grads["v"])
            decay = local.scaled([context, own], self.weight_decay * data.rate)
            context = context - self.lr * (grads["context"] + decay[0])
            velocity = self.momentum * velocity + self.lr * (pull + decay[1])
            own = own - velocity
        return {"context": context}, {"own": own, "own_velocity": velocity}

    def _gradients(self, task: Task, start: Tree, data: Data, number: int) -> Tree:
        """Return clipped and noisy ∇_G, ∇_u and ∇_v at `start`, times the round's rate."""
        batches = data.batches(f"step{number}", size=self.batch, steps=1)
        still = {name: torch.zeros_like(start[name]) for name in ("context", "u", "v")}
        if self.clipping == "example":
            rates = local.Rates(lr=1.0, clip_each=self.clip, noise=self.noise)
            return tree.map(torch.neg, local.sgd(self.loss, task, batches, start=start, params=still, **rates))
        moved = local.sgd(self.loss, task, batches, start=start, params=still, lr=1.0, clip=self.clip)
        deviation = self.noise * self.clip / self.batch
        # the server's noise on the mean of ∇_G, as if every client drew a part of it
        each = {"context": deviation / math.sqrt(task.num_clients), "u": deviation, "v": deviation}
        for name, shape in self._shapes(task).items():
            drawn = each[name] * data.draw(f"noise.{name}{number}", shape, "normal")
            moved[name] = moved[name] - local.scaled([drawn], data.rate)[0]
        return tree.map(torch.neg, moved)

    def weight(self, facts: Tree) -> Tensor:
        """Let every client count once: how many examples it has is not hidden."""
        return torch.ones_like(facts["size"])

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Move p_G as the clients did in the mean, with momentum."""
        moved = server["context"] - tree.mean(up, weights)["context"]
        velocity = self.momentum * server["velocity"] + moved
        return {"context": server["context"] - velocity, "velocity": velocity}

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy under p_G + u v + r; `params` are what is added to p_G, u and v of `start`."""
        context, u, v = (start[name] + params[name] for name in ("context", "u", "v"))
        text = dual(task).text(context + u @ v + start["rest"], per_class=False)
        return ops.cross_entropy(match(batch["x"], text, dual(task).scale), batch["y"], batch["mask"])

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once: T(p_G + p_L), or T(p_G) of the server's model."""
        whole = params["context"] + params["own"] if "own" in params else params["context"]
        return params | {"text": dual(task).text(whole, per_class=False)}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of images and the client's text features."""
        known = params if "text" in params else self.prepare(task, params)
        return match(batch["x"], known["text"], dual(task).scale)

    # -- what a person wants to see ----------------------------------------------
    def exhibits(self, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
        """Show the clients' own contexts."""
        return {"prompts": personal["own"]}


def factors(own: Tensor, sketch: Tensor) -> Tree:
    """Return u [s, k] with orthonormal columns, v [k, W] with orthonormal rows, and the rest of p_L = u v + r.

    One power iteration from a `sketch` [W, k]: u spans p_L Ω, and v spans p_Lᵀ u.
    """
    u = torch.linalg.qr(own @ sketch).Q
    v = torch.linalg.qr(own.mT @ u).Q.mT
    return {"u": u, "v": v, "rest": own - u @ v}


def through(u: Tensor, v: Tensor, to_u: Tensor, to_v: Tensor) -> Tensor:
    """Eq. 4: return ∇_u v + u ∇_v − u uᵀ ∇_u v, the part of p_L's gradient that the factors see."""
    pulled = to_u @ v
    return pulled + u @ to_v - u @ (u.mT @ pulled)
