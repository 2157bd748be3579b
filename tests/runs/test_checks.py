"""Methods that break one promise each are caught, by that promise."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from promptfed.backbones.painter import Painter
from promptfed.core import local, ops, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task, Traits, dense, dual
from promptfed.core.prompts.text import match
from promptfed.core.protocols import Batch, Data, Rng
from promptfed.core.tree import Tree
from promptfed.runs.checks import CLASSES, PROMISES, SIZES, BrokenPromiseError, check_method, toy_dataset, toy_loop

CALLS = itertools.count()


@dataclass(frozen=True)
class Sound(Method):
    """A shared body and a head of one's own: the broken methods below change one thing about it."""

    name: ClassVar[str] = "sound"
    lr: float = 0.05

    def init_server(self, task: Task, rng: Rng) -> Tree:
        return tree.drop(task.backbone.init(rng), ["head.weight", "head.bias"])

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        return tree.pick(task.backbone.init(rng), ["head.weight", "head.bias"])

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        tuned = local.sgd(self.loss, task, data.batches(size=8), start=down, params=down | personal, lr=self.lr)
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    def deploy(self, task: Task, server: Tree) -> Tree:
        return {}


@dataclass(frozen=True)
class Draws(Sound):
    """Draws wherever a method can: in the server's download and aggregation, and in a client's training."""

    name: ClassVar[str] = "draws"

    def init_server(self, task: Task, rng: Rng) -> Tree:
        return super().init_server(task, rng) | {"round": torch.zeros((), dtype=torch.long)}

    def download(self, task: Task, server: Tree, clients: Tensor) -> Tree:
        draw = task.rng("down", int(server["round"]))
        noise = 1e-3 * torch.randn(task.num_clients, generator=draw).to(clients.device)
        down = tree.repeat(tree.drop(server, ["round"]), len(clients))
        return down | {"norm.bias": down["norm.bias"] + noise[clients].unsqueeze(-1)}

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        up, after = super().fit(task, down, personal, data)
        noise = 1e-3 * data.draw("up", tuple(down["norm.bias"].shape[-1:]), "normal")
        return up | {"norm.bias": up["norm.bias"] + noise}, after

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        found = super().aggregate(task, server, clients, up, weights)
        noise = 1e-3 * torch.randn(found["norm.bias"].shape, generator=task.rng("mean", int(server["round"])))
        return found | {"norm.bias": found["norm.bias"] + noise, "round": server["round"] + 1}


@dataclass(frozen=True)
class Averages(Method):
    """A head over the mean of all patches, which a frozen network has computed once."""

    name: ClassVar[str] = "averages"
    backbone: ClassVar[str] = "vit"
    traits = Traits(reads="patches")

    def init_server(self, task: Task, rng: Rng) -> Tree:
        return task.backbone.head(rng)

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        return local.sgd(self.loss, task, data.batches(size=8), start=down, params=down, lr=0.1), personal

    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        return ops.cross_entropy(self.predict(task, params, batch), batch["y"], batch["mask"])

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        seen = dense(task).patches({}, batch["x"])
        assert seen.shape[-2] == 5  # the class token and 2 × 2 patches
        return ops.linear(seen.mean(-2), params["head.weight"], params["head.bias"])


@dataclass
class Thawed(Method):
    """Not frozen."""

    name: ClassVar[str] = "thawed"


class Bare(Method):
    """No dataclass at all."""

    name: ClassVar[str] = "bare"


@dataclass(frozen=True)
class Unpicklable(Sound):
    """Holds a function that has no name."""

    act: Callable[[float], float] = field(default=lambda x: x)


@dataclass(frozen=True)
class ChangesDown(Sound):
    """Writes into what it received."""

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        down["norm.bias"].add_(1)
        return super().fit(task, down, personal, data)


@dataclass(frozen=True)
class ChangesPersonal(Sound):
    """Writes into its own tree instead of returning a new one."""

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        personal["head.bias"].add_(1)
        return super().fit(task, down, personal, data)


@dataclass(frozen=True)
class ChangesServer(Sound):
    """Averages into the old server tree."""

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        for name, value in tree.mean(up, weights).items():
            server[name].copy_(value)
        return server


@dataclass(frozen=True)
class Leaks(Sound):
    """Sends its head along."""

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        up, after = super().fit(task, down, personal, data)
        return up | after, after


@dataclass(frozen=True)
class Doubles(Sound):
    """Has the head in two places."""

    def init_server(self, task: Task, rng: Rng) -> Tree:
        return task.backbone.init(rng)


@dataclass(frozen=True)
class Grows(Sound):
    """Returns a longer personal tree every round."""

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        return super().init_client(task, data, rng) | {"memory": torch.zeros(1)}

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        up, after = super().fit(task, down, tree.drop(personal, ["memory"]), data)
        memory = personal["memory"]
        return up, after | {"memory": torch.cat([memory, memory], -1)}


@dataclass(frozen=True)
class Renames(Sound):
    """Loses a name."""

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        up, after = super().fit(task, down, personal, data)
        return up, tree.drop(after, ["head.bias"])


@dataclass(frozen=True)
class LeaksLater(Sound):
    """Sends its head along once it is trained, under its own name."""

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        return super().init_client(task, data, rng) | {"rounds": torch.zeros(())}

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        rounds = personal["rounds"]
        up, after = super().fit(task, down, tree.drop(personal, ["rounds"]), data)
        return up | (after if float(rounds.max()) > 0 else {}), after | {"rounds": rounds + 1}


@dataclass(frozen=True)
class Rounds(Sound):
    """Keeps its head in double precision after the first round."""

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        up, after = super().fit(task, down, personal, data)
        return up, tree.map(torch.Tensor.double, after)


@dataclass(frozen=True)
class Hoards(Sound):
    """Keeps every client's answer on the server."""

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        return super().aggregate(task, server, clients, up, weights) | {"answers": up["norm.bias"]}


@dataclass(frozen=True)
class Pads(Sound):
    """Takes the places that hold no image for images."""

    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        return ops.cross_entropy(task.backbone(params, batch["x"]), batch["y"], torch.ones_like(batch["mask"]))


@dataclass(frozen=True)
class Attached(Sound):
    """Sends tensors that still want gradients."""

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        up, after = super().fit(task, down, personal, data)
        return tree.map(lambda value: value.clone().requires_grad_(), up), after


@dataclass(frozen=True)
class Mixes(Sound):
    """Averages its loss over all clients of a stack."""

    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        each = ops.cross_entropy(task.backbone(params, batch["x"]), batch["y"], batch["mask"])
        return each / max(1, each.numel())


@dataclass(frozen=True)
class Peeks(Sound):
    """Centres the weights over the stack."""

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        up, after = super().fit(task, down, personal, data)
        return up, tree.map(lambda value: value - value.mean(), after)


@dataclass(frozen=True)
class FirstWins(Sound):
    """Takes the model of whoever comes first."""

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        return tree.row(up, 0)


@dataclass(frozen=True)
class Remembers(Sound):
    """Counts its calls outside of every tree."""

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        return replace(self, lr=self.lr / (1 + next(CALLS))).train(task, down, personal, data)

    def train(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        return super().fit(task, down, personal, data)


@dataclass(frozen=True)
class Rolls(Sound):
    """Draws from torch's own generator, whose state nobody saves."""

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        up, after = super().fit(task, down, personal, data)
        return tree.map(lambda value: value + 1e-3 * torch.randn_like(value), up), after


@dataclass(frozen=True)
class Ascends(Sound):
    """Learns the wrong way round."""

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        up, after = super().fit(task, down, personal, data)
        return tree.map(lambda old, new: 2 * old - new, down, up), tree.map(lambda a, b: 2 * a - b, personal, after)


@dataclass(frozen=True)
class Idle(Sound):
    """Learns nothing at all."""

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        return down, personal


@dataclass(frozen=True)
class Restless(Sound):
    """Claims to learn nothing, and learns."""

    traits = Traits(learns=False)


@dataclass(frozen=True)
class Resends(Sound):
    """Changes what it says it sends only once."""

    traits = Traits(once=("norm.bias",))


@dataclass(frozen=True)
class Forgets(Sound):
    """Never sends what it says it sends once."""

    traits = Traits(once=("keys",))


@dataclass(frozen=True)
class Closed(Method):
    """Says that it knows classes by name, and has a classifier for those it was trained on."""

    name: ClassVar[str] = "closed"
    backbone: ClassVar[str] = "clip"
    traits = Traits(reads="features", open=True)

    def init_server(self, task: Task, rng: Rng) -> Tree:
        return task.backbone.head(rng)

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        return local.sgd(self.loss, task, data.batches(size=8), start=down, params=down, lr=1.0), personal


@dataclass(frozen=True)
class Prefers(Closed):
    """Counts the first class of a list twice."""

    name: ClassVar[str] = "prefers"

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        logits = match(batch["x"], dual(task).zero_shot, dual(task).scale)
        return torch.cat([2 * logits[..., :1], logits[..., 1:]], -1)


BROKEN: list[tuple[Method, str, str]] = [
    (Thawed(), "frozen", "frozen dataclass"),
    (Bare(), "frozen", "frozen dataclass"),
    (Unpicklable(), "frozen", "pickl"),
    (ChangesDown(), "inputs", "`down`"),
    (ChangesPersonal(), "inputs", "`personal`"),
    (ChangesServer(), "inputs", "`server`"),
    (Leaks(), "names", "would leave in `up`"),
    (Doubles(), "names", "share"),
    (Grows(), "names", "names, shapes and types"),
    (Renames(), "names", "names, shapes and types"),
    (LeaksLater(), "names", "would leave in `up`"),
    (Rounds(), "names", "shapes and types"),
    (Hoards(), "names", "`aggregate` must return"),
    (Pads(), "padding", "hold no image"),
    (Resends(), "names", "sent `once`"),
    (Forgets(), "names", "sent `once`"),
    (Attached(), "wire", "gradients"),
    (Mixes(), "stacked", "one by one"),
    (Peeks(), "stacked", "one by one"),
    (FirstWins(), "order", "order of clients"),
    (Remembers(), "resume", "resumed run"),
    (Rolls(), "resume", "resumed run"),
    (Ascends(), "learns", "loss must fall"),
    (Idle(), "learns", "loss must fall"),
    (Restless(), "learns", "must stay as it is"),
    (Closed(), "open", "so many logits"),
    (Prefers(), "open", "swapping two class names"),
]


@pytest.mark.parametrize("method", [Sound(), Draws(), Averages()], ids=lambda value: type(value).__name__)
def test_sound_ones_keep_every_promise(method: Method) -> None:
    check_method(method)


def test_the_server_draws_by_its_seed_and_its_count() -> None:
    task = Task(Painter((3, 8, 8), 2), ("a", "b"), 4, seed=7)
    first = torch.rand(3, generator=task.rng("experts", 1))
    assert first.equal(torch.rand(3, generator=task.rng("experts", 1)))
    others = [task.rng("experts", 2), task.rng("noise", 1), replace(task, seed=8).rng("experts", 1)]
    assert not any(first.equal(torch.rand(3, generator=one)) for one in others)


@pytest.mark.parametrize(("method", "promise", "words"), BROKEN, ids=lambda value: type(value).__name__)
def test_broken(method: Method, promise: str, words: str) -> None:
    with pytest.raises(BrokenPromiseError, match=words) as caught:
        check_method(method, only=promise)
    assert str(caught.value).startswith(f"{type(method).__name__} breaks a promise: ")


@pytest.mark.parametrize(("method", "promise", "words"), BROKEN, ids=lambda value: type(value).__name__)
def test_the_whole_suite_catches_it_too(method: Method, promise: str, words: str) -> None:
    with pytest.raises(BrokenPromiseError):
        check_method(method)


def test_every_promise_is_broken_by_somebody() -> None:
    assert {promise for _, promise, _ in BROKEN} == set(PROMISES)


def test_an_unknown_promise_is_refused() -> None:
    with pytest.raises(PromptFedError):
        check_method(Sound(), only="fozen")


def test_the_toy_task_is_as_hard_as_it_says(tmp_path: Path) -> None:
    data, loop = toy_dataset(), toy_loop(Sound(), tmp_path / "run")
    train: list[Any] = list(loop.shards.rows["train"])
    assert [len(rows) for rows in train] == list(SIZES)
    assert len(set(data.labels[train[2]])) == 1
    assert len(set(data.labels.tolist())) == CLASSES
    assert not data.test[train[1]].any()
