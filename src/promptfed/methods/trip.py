"""TRIP: token-level prompt mixture with parameter-free routing for federated domain generalization (Gong et al. 2025).

Contexts before the class names of a frozen CLIP are experts. Every image has a mixture of its own: its patches are put
into clusters of bounded size, every cluster goes to one expert by fixed keys, and an expert counts by the patches that
it has got. Nothing of this is learned, so only the experts travel.
Symbol -> name: E_e -> experts, κ_e -> keys, w_e -> constant.train, constant.test, c -> room, test_room, α -> teach.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, dense, dual, keys, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Range, Whole
from promptfed.core.prompts.text import init_context, match, match_each, said

BETAS, EPS = (0.9, 0.98), 1e-7  # of AdamW
STEPS, STILL, PRICE = 100, 1e-4, 1e-4  # of the clustering: at most, the shift that ends it, and λ's rate
Few = Annotated[int, Range(least=1, most=12)]  # the best matching looks at all subsets of the experts


@dataclass(frozen=True)
class TRIP(Method):
    """Average several contexts, which every image mixes by what its patches are like."""

    name: ClassVar[str] = "trip"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {"script": {"tokens": 32}, "lite": {"experts": 2, "tokens": 1}}
    quick: ClassVar = {
        "rounds": 5,
        "method": {"span": 5, "lr": 0.001},
        "data": {"name": "fashion-shops", "limit": 20},
        "partition": {"name": "domain", "unseen": "street"},
        "evaluate": {"every": 5, "after": False},
    }
    traits = Traits(reads="features", open=True, testing=("test_room",))

    experts: Few = 8
    tokens: Count = 16  # of each expert
    room: Count = 1  # a cluster holds so many times its equal share of the patches; in training
    test_room: Count = 2  # and in testing
    keys: Literal["orthogonal", "uniform"] = "orthogonal"
    mix: Literal["contexts", "logits"] = "contexts"  # logits: the text tower runs for experts, not for images
    teach: NonNegative = 1.0  # how much it counts what CLIP says by itself
    templates: tuple[str, ...] = ("a photo of a {}.",)  # the teacher's sentences
    span: Whole = 15  # rounds that the moving average is laid out for; later ones count as the last; 0: no average
    beta: Positive = 0.2  # of the Beta distribution whose density weighs the rounds
    optimiser: Literal["adam", "sgd"] = "adam"
    lr: Positive = 5e-4
    epochs: Whole = 1
    batch: Count = 16
    momentum: NonNegative = 0.0  # of SGD
    weight_decay: NonNegative = 0.01

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return E [n, s, W] and, for the moving average, itself, its total weight [] and the number of rounds []."""
        experts = init_context(dual(task).context_width, self.tokens, rng("experts"), self.experts)
        averaged = {"average": experts.clone(), "total": self._weight(torch.zeros(())), "round": torch.zeros(())}
        return {"experts": experts, **(averaged if self.span else {})}

    def constants(self, task: Task, batch: Batch) -> Tree:
        """Return w [B, n] for training and for testing."""
        patches = dense(task).patches({}, batch["x"], project=False)[..., 1:, :]
        fixed, draw = self._keys(task, patches.shape[-1]).to(patches), keys.normal(batch["key"], patches.shape[-1:])
        rooms = {"train": self.room, "test": self.test_room}
        return {name: routed(patches, fixed, draw, room) for name, room in rooms.items()}

    def _keys(self, task: Task, width: int) -> Tensor:
        """Return κ [n, width], the same for everyone."""
        if self.keys == "uniform":
            return torch.rand(self.experts, width, generator=task.rng("keys"))
        basis: Tensor = torch.linalg.qr(torch.randn(width, self.experts, generator=task.rng("keys"))).Q
        return basis.T

    # -- one round, in the order it happens -------------------------------------
    def download(self, task: Task, server: Tree, clients: Tensor) -> Tree:
        """Return E for every client."""
        return tree.repeat(tree.pick(server, ["experts"]), len(clients))

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move E by AdamW, fresh in every round, or by SGD; send it."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        decay = local.AdamRates(lr=self.lr, weight_decay=self.weight_decay)
        if self.optimiser == "adam":
            moved = local.adam(self.loss, task, batches, start=down, params=down, betas=BETAS, eps=EPS, **decay)
        else:
            moved = local.sgd(self.loss, task, batches, start=down, params=down, momentum=self.momentum, **decay)
        return tree.pick(moved, down), personal

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Return the mean by training images, and the average of all rounds so far with it."""
        after = server | tree.mean(up, weights)
        if not self.span:
            return after
        weight = self._weight(server["round"] + 1)
        total = server["total"] + weight
        average = torch.lerp(server["average"], after["experts"], weight / total)
        return after | {"average": average, "total": total, "round": server["round"] + 1}

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return the moving average: the model without a client."""
        return {"experts": server["average" if self.span else "experts"]}

    def _weight(self, count: Tensor) -> Tensor:
        """Return how much the experts after `count` rounds weigh: Beta's density at (t + ½) / (T + 1), not normalised.

        It is largest at both ends.
        """
        place = (count.clamp(max=self.span) + 0.5) / (self.span + 1)
        return (place * (1 - place)) ** (self.beta - 1)

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy + α times that with what CLIP says by itself in place of the labels."""
        logits = self._logits(task, self.prepare(task, params), batch["x"], batch["constant.train"])
        taught = match(batch["x"], said(task, *self.templates), dual(task).scale).softmax(-1)
        each = -(taught * logits.log_softmax(-1)).sum(-1)
        apart = (each * batch["mask"]).sum(-1) / batch["mask"].sum(-1).clamp(min=ops.LEAST)
        return ops.cross_entropy(logits, batch["y"], batch["mask"]) + self.teach * apart

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once for every expert [n, classes, D], if their logits are mixed."""
        return params | ({"text": dual(task).text(params["experts"], per_class=False)} if self.mix == "logits" else {})

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the logits under each image's own mixture."""
        known = params if "text" in params else self.prepare(task, params)
        return self._logits(task, known, batch["x"], batch["constant.test"])

    def _logits(self, task: Task, params: Tree, features: Tensor, share: Tensor) -> Tensor:
        """Return the scaled cosines with T(Σ_e w_e E_e), or Σ_e w_e times those with T(E_e)."""
        if self.mix == "contexts":
            contexts = torch.einsum("...bn,...nsw->...bsw", share, params["experts"])
            return match_each(features, dual(task).text(contexts, per_class=False), dual(task).scale)
        text = params["text"]
        logits = match(features, text.flatten(-3, -2), dual(task).scale)
        return (share.unsqueeze(-1) * logits.reshape(*share.shape, -1)).sum(-2)


# -- the routing, once for every image and without parameters ---------------


def routed(patches: Tensor, fixed: Tensor, draw: Tensor, room: int) -> Tensor:
    """Return the share [B, n] of an image's patches [B, M, D] that each of the keys [n, D] gets."""
    sizes, centres = clustered(patches, draw, len(fixed), room)
    expert = matched(F.normalize(centres, dim=-1) @ F.normalize(fixed, dim=-1).mT)
    return torch.zeros_like(sizes).scatter(-1, expert, sizes) / sizes.sum(-1, keepdim=True)


def clustered(patches: Tensor, draw: Tensor, count: int, room: int) -> tuple[Tensor, Tensor]:
    """Return the sizes [B, n] and centres [B, n, D] of `count` clusters, none with more than its room of patches.

    A patch whose nearest cluster is full of nearer ones is in none. Prices make clusters with room left seem nearer.
    The start is spread along a random direction `draw` [B, D], so the order of the patches has no say.
    """
    rows, total = patches.shape[:2]
    most = total // count * room + (torch.arange(count, device=patches.device) < total % count)
    along = (patches @ draw.unsqueeze(-1)).squeeze(-1).argsort(-1)
    centres = _taken(patches, along[:, torch.arange(count) * total // count])
    price = patches.new_zeros(rows, count)
    for _ in range(STEPS):
        apart = torch.cdist(patches, centres)
        cost, liked = (apart + price.unsqueeze(-2)).min(-1)
        order = cost.argsort(stable=True)
        wants = F.one_hot(liked.gather(-1, order), count)
        got = (wants * (wants.cumsum(-2) <= most)).to(patches)  # the nearest first
        held = torch.zeros_like(got).scatter(-2, order.unsqueeze(-1).expand_as(got), got)
        sizes, empty = held.sum(-2), held.sum(-2) == 0
        # an empty cluster starts again at a patch far from all centres, each at another one
        far = apart.amin(-1).argsort(-1, descending=True)
        number = (empty.cumsum(-1) - 1).clamp(0, total - 1)
        means = held.mT @ patches / sizes.clamp(min=1).unsqueeze(-1)
        fresh = torch.where(empty.unsqueeze(-1), _taken(patches, far.gather(-1, number)), means)
        going = (fresh - centres).norm(dim=-1).mean(-1, keepdim=True) >= STILL  # who stands still stays so
        if not going.any():
            break
        price = torch.where(going, (price + PRICE * (sizes - most)).masked_fill(empty, 0), price)
        centres = torch.where(going.unsqueeze(-1), fresh, centres)
    return sizes, centres


def matched(score: Tensor) -> Tensor:
    """Return a column for each row of score [B, n, n], every one once, so that their sum is the greatest [B, n]."""
    count = score.shape[-1]
    best, picks = [score.new_zeros(len(score))], [score.new_zeros(len(score), dtype=torch.long)]
    for taken in range(1, 2**count):  # of the first rows and as many columns, a bit for each that is taken
        columns = [column for column in range(count) if taken >> column & 1]
        values = [best[taken ^ 1 << column] + score[:, len(columns) - 1, column] for column in columns]
        value, pick = torch.stack(values).max(0)
        best.append(value)
        picks.append(torch.tensor(columns, device=score.device)[pick])
    choice, left, found = torch.stack(picks, -1), torch.full_like(picks[0], 2**count - 1), []
    for _ in range(count):
        found.append(choice.gather(-1, left.unsqueeze(-1)).squeeze(-1))
        left = left - (1 << found[-1])
    return torch.stack(found[::-1], -1)


def _taken(patches: Tensor, where: Tensor) -> Tensor:
    """Return the patches [B, n, D] at places `where` [B, n]."""
    return patches.take_along_dim(where.unsqueeze(-1), -2)
