"""The conformance suite: what every method promises, proved on a toy task. Outside authors run it on theirs too.

promptfed check pkg.mine:MyMethod        or        promptfed.check_method(MyMethod(lr=0.1))
"""

import dataclasses
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from promptfed.backbones.clip import CLIP
from promptfed.backbones.clip_checkpoint import ClipArch
from promptfed.backbones.painter import Painter
from promptfed.backbones.pretrained import ViT
from promptfed.backbones.residual import ResNetArch
from promptfed.backbones.resnet import ResNet
from promptfed.backbones.text import TextArch
from promptfed.backbones.transformer import Arch
from promptfed.core import tree
from promptfed.core.errors import PromptFedError, choice
from promptfed.core.method import Method, Task, renamed
from promptfed.core.protocols import Backbone, Batch
from promptfed.core.ranks import ALONE, Ranks
from promptfed.core.tree import Tree
from promptfed.data.dataset import Dataset
from promptfed.data.partition import Partition
from promptfed.federation.loop import Loop
from promptfed.results.folder.record import Follower, Record
from promptfed.runs.config import Recipe
from promptfed.runs.planning import Plan, make_loop

SIZES = (9, 40, 3, 24)  # unequal clients, one of them with fewer images than a batch and a single class
CLASSES = 3
TOLERANCE = 1e-5
OTHERS = ("bird", "old car", "door", "red fox", "sea")  # classes that training never names


class BrokenPromiseError(PromptFedError):
    """A method does not do what every method promises."""


def check_method(method: Method, only: str | None = None) -> None:
    """Raise BrokenPromiseError, with a sentence, at the first promise `method` does not keep."""
    if only is not None and only not in _CHECKS:
        raise choice("promise", only, _CHECKS)
    for name, check in _CHECKS.items():
        if only in (None, name):
            check(method)


def toy_dataset() -> Dataset:
    """Return 8×8 images of three classes that a linear model can tell apart; a quarter is for testing."""
    rng = np.random.default_rng(0)
    count = 4 * sum(SIZES) // 3 + 8
    labels = np.arange(count) % CLASSES
    pattern = rng.integers(60, 196, (CLASSES, 8, 8, 3))
    images = np.clip(pattern[labels] + rng.integers(-40, 41, (count, 8, 8, 3)), 0, 255).astype(np.uint8)
    test = np.arange(count) >= sum(SIZES)
    names = tuple(f"class {number}" for number in range(CLASSES))
    return Dataset("toy", images, labels, test, names, np.zeros(count, np.int64), ("toy",))


def _partition(data: Dataset) -> Partition:
    """Return four unequal clients; the third holds one class only."""
    single = np.flatnonzero((data.labels == 0) & ~data.test)[: SIZES[2]]
    rest = np.setdiff1d(np.flatnonzero(~data.test), single)
    first, second, fourth = np.split(rest, np.cumsum([SIZES[0], SIZES[1]]))
    test = np.array_split(np.flatnonzero(data.test), len(SIZES))
    return Partition("toy", (first, second, single, fourth), tuple(test))


def _toy_backbone(method: Method, data: Dataset) -> Backbone:
    """Return a small network with random weights, of the kind that the method is made for."""
    if method.backbone == "diffusion":
        return Painter((3, 8, 8), CLASSES)
    if method.backbone == "resnet":
        return ResNet.random((3, 8, 8), CLASSES, ResNetArch(8, (16,), (1,)), precision="fp32")
    if method.backbone != "clip":
        return ViT.random((3, 8, 8), CLASSES, width=16, depth=2, heads=2, patch=4, precision="fp32")
    image = Arch(16, 2, 2, 4, 64, (0, 0), projection=16)
    text = TextArch(16, 1, 2, 64, vocabulary=32, positions=32, projection=16)
    return CLIP.random((3, 8, 8), data.classes, ClipArch(image, text), precision="fp32")


def toy_loop(
    method: Method,
    folder: Path,
    fleet: str = "one-by-one",
    *,
    rounds: int = 4,
    per_round: int = 2,
    width: int = 0,
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> Loop:
    """Return the round loop of `method` on the toy task of four clients; `folder` may hold its first rounds."""
    data = toy_dataset()
    recipe = Recipe(
        rounds=rounds,
        clients=len(SIZES),
        per_round=per_round,
        fleet={"name": fleet, "width": width, "precision": "fp32"},
    )
    where = torch.device(device)
    backbone = _toy_backbone(method, data).to(where)
    plan = Plan(recipe, method, data, _partition(data), Task(backbone, data.classes, len(SIZES), rounds), where, ranks)
    if not ranks.leads:
        return make_loop(plan, Follower(folder))
    return make_loop(plan, Record.reopen(folder) if folder.exists() else Record.create(folder, "", {}))


def _with_loop(use: Callable[[Method, Path], None]) -> Callable[[Method], None]:
    def check(method: Method) -> None:
        with tempfile.TemporaryDirectory() as folder:
            use(method, Path(folder))

    return check


def _expect(kept: bool, sentence: str, method: Method) -> None:
    if not kept:
        raise BrokenPromiseError(f"{type(method).__name__} breaks a promise: {sentence}.")


def _same(first: Tree, second: Tree, tolerance: float = 0.0) -> bool:
    return first.keys() == second.keys() and all(
        first[name].shape == second[name].shape
        and first[name].dtype == second[name].dtype
        and torch.allclose(first[name], second[name], rtol=tolerance, atol=tolerance, equal_nan=True)
        for name in first
    )


def _frozen(method: Method) -> None:
    params = getattr(type(method), "__dataclass_params__", None)
    _expect(params is not None and params.frozen, "it must be a frozen dataclass (@dataclass(frozen=True))", method)
    try:
        same = pickle.loads(pickle.dumps(method)) == method
    except (pickle.PicklingError, AttributeError, TypeError):
        same = False
    _expect(same, "it must survive pickling", method)
    _expect(dataclasses.replace(method) == method, "its fields must be its hyper-parameters and nothing else", method)  # type: ignore[type-var]


def _fit_all(loop: Loop, clients: Tensor) -> tuple[Tree, Tree]:
    down = loop.method.download(loop.task, loop.server, clients)
    fitted = loop.fleet.fit(0, clients, down)
    server = loop.method.aggregate(loop.task, loop.server, clients, fitted.up, fitted.weights)
    return fitted.up, server


def _inputs(method: Method, folder: Path) -> None:
    loop = toy_loop(method, folder / "run")
    down = tree.map(torch.clone, tree.row(method.download(loop.task, loop.server, torch.tensor([1])), 0))
    personal = tree.map(torch.clone, loop.store.get(1))
    before = tree.map(torch.clone, down), tree.map(torch.clone, personal), tree.map(torch.clone, loop.server)
    method.fit(loop.task, down, personal, loop.shards.data([1], 0, stacked=False))
    _expect(_same(down, before[0]), "`fit` must not change `down` in place", method)
    _expect(_same(personal, before[1]), "`fit` must not change `personal` in place", method)
    _fit_all(loop, torch.tensor([0, 1]))
    _expect(_same(loop.server, before[2]), "`aggregate` must not change `server` in place", method)


def _names(method: Method, folder: Path) -> None:
    loop = toy_loop(method, folder / "run")
    personal = loop.store.get(1)
    first = tree.row(method.download(loop.task, loop.server, torch.tensor([1])), 0)
    for t in range(2):  # what is not so in the first round may be in the next
        down = tree.row(method.download(loop.task, loop.server, torch.tensor([1])), 0)
        up, after = method.fit(loop.task, down, personal, loop.shards.data([1], t, stacked=False))
        both = sorted(down.keys() & personal.keys())
        _expect(not both, f"`down` and `personal` share {both}", method)
        leaving = sorted(up.keys() & personal.keys())
        _expect(not leaving, f"{leaving} of `personal` would leave in `up`", method)
        kept = _kinds(after) == _kinds(personal)
        _expect(kept, "`fit` must return `personal` with init_client's names, shapes and types", method)
        _, next_server = _fit_all(loop, torch.tensor([0, 1]))
        kept = _kinds(next_server) == _kinds(loop.server)
        _expect(kept, "`aggregate` must return the server's tree with its names, shapes and types", method)
        loop.server, personal = next_server, after
        later = tree.row(method.download(loop.task, loop.server, torch.tensor([1])), 0)
        fixed = [name in first and _same({name: first[name]}, {name: later[name]}) for name in method.traits.once]
        _expect(all(fixed), f"{list(method.traits.once)}, sent `once`, must be in `down` and never change", method)


def _kinds(some: Tree) -> dict[str, object]:
    return {name: (value.shape, value.dtype) for name, value in some.items()}


def _spoil(_: Tree, batch: Batch) -> Batch:
    """Put another image and another class in the places of a batch that hold none."""
    empty = batch["mask"] == 0
    x, y = batch["x"], batch["y"]
    noise = torch.where(empty.view(-1, *[1] * (x.dim() - 1)), x.flip(-1) + 1, x)
    return batch | {"x": noise, "y": torch.where(empty, (y + 1) % CLASSES, y)}


def _padding(method: Method, folder: Path) -> None:
    loop = toy_loop(method, folder / "run")
    for client in (0, 2):  # neither fills its last batch
        down = tree.row(method.download(loop.task, loop.server, torch.tensor([client])), 0)
        data = loop.shards.data([client], 0, stacked=False)
        plain, spoilt = (
            method.fit(loop.task, down, loop.store.get(client), one) for one in (data, data.map(_spoil, {}))
        )
        same = all(_same(one, other, TOLERANCE) for one, other in zip(plain, spoilt, strict=True))
        _expect(same, 'places of a batch where `batch["mask"]` is 0 hold no image and must not count', method)


def _wire(method: Method, folder: Path) -> None:
    loop = toy_loop(method, folder / "run")
    clients = torch.tensor([0, 3])
    up, _ = _fit_all(loop, clients)
    for name, sent in (("down", method.download(loop.task, loop.server, clients)), ("up", up)):
        plain = {key: value.contiguous() for key, value in sent.items()}
        _expect(all(not value.requires_grad for value in sent.values()), f"`{name}` must not carry gradients", method)
        _expect(_same(load(save(plain)), plain), f"`{name}` must survive the wire", method)


def _stacked(method: Method, folder: Path) -> None:
    one, many = toy_loop(method, folder / "one"), toy_loop(method, folder / "many", "stacked")
    for t in range(2):
        lines = []
        for loop in (one, many):
            loop.server, line = loop.round(t)
            loop.store.seal()
            lines.append(line)
        _expect(
            _same(one.server, many.server, TOLERANCE),
            "a stack of clients must give what one by one gives (server)",
            method,
        )
        _expect(
            lines[0]["received"] == lines[1]["received"], "a stack of clients must score what one by one scores", method
        )
    for client in range(len(SIZES)):
        same = _same(one.store.get(client), many.store.get(client), TOLERANCE)
        _expect(same, f"a stack of clients must give what one by one gives (client {client}'s personal tree)", method)


def _order(method: Method, folder: Path) -> None:
    forward, backward = toy_loop(method, folder / "a", "stacked"), toy_loop(method, folder / "b", "stacked")
    up, server = _fit_all(forward, torch.tensor([0, 1]))
    swapped, again = _fit_all(backward, torch.tensor([1, 0]))
    flipped = tree.map(lambda value: value.flip(0), swapped)
    _expect(_same(up, flipped, TOLERANCE), "swapping two clients must swap what they send and nothing else", method)
    _expect(_same(server, again, TOLERANCE), "the order of clients must not matter to the server", method)


def _resume(method: Method, folder: Path) -> None:
    def run(loop: Loop) -> None:
        loop.run(lambda: loop.save("recipe", "partition"), lambda line: None)

    straight = toy_loop(method, folder / "straight")
    run(straight)
    run(toy_loop(method, folder / "stopped", rounds=2))
    again = toy_loop(method, folder / "stopped")
    again.restore(again.record.state("recipe", "partition") or {})
    run(again)
    _expect(_same(straight.server, again.server), "a resumed run must give the same server tree, bit for bit", method)
    for client in range(len(SIZES)):
        same = _same(straight.store.get(client), again.store.get(client))
        _expect(same, f"a resumed run must give client {client} the same personal tree, bit for bit", method)
    scores = [[line["received"] for line in loop.record.rounds[-2:]] for loop in (straight, again)]
    _expect(scores[0] == scores[1], "a resumed run must score the same", method)


def _learns(method: Method, folder: Path) -> None:
    loop = toy_loop(method, folder / "run", rounds=12)
    losses = []
    for t in range(12):
        loop.server, line = loop.round(t)
        loop.store.seal()
        losses.append(line["loss"])
    if not method.traits.learns:
        _expect(losses == losses[:1] * 12, "a method that learns nothing must stay as it is", method)
        return
    _expect(
        min(losses[-3:]) < 0.99 * losses[0],
        f"the loss must fall on the toy task; it went {losses[0]:.3f} to {losses[-1]:.3f}",
        method,
    )


def _open(method: Method, folder: Path) -> None:
    if not method.traits.open:
        return
    loop = toy_loop(method, folder / "run")
    loop.server, _ = loop.round(0)
    loop.store.seal()
    down = tree.row(method.download(loop.task, loop.server, torch.tensor([1])), 0)
    (batch,) = loop.shards.data([1], 0, "test", stacked=False).batches("test", size=16, steps=1, ordered=True)

    def answers(names: tuple[str, ...]) -> Tensor:
        other = renamed(loop.task, names)
        with torch.no_grad():
            params = method.prepare(other, down | loop.store.get(1))
            return method.predict(other, params, tree.drop(batch, ["y"]))

    found = answers(OTHERS)
    fits = found.shape == (16, len(OTHERS))
    _expect(fits, f"an open model must give {len(OTHERS)} other classes so many logits", method)
    same = torch.allclose(found.flip(-1), answers(OTHERS[::-1]), TOLERANCE, TOLERANCE)
    _expect(same, "swapping two class names must swap an open model's logits and nothing else", method)


PROMISES = {
    "frozen": "a frozen, picklable value without state",
    "names": "what is private stays private, under fixed names, shapes and types",
    "inputs": "no input is changed in place",
    "padding": "a batch that is not full counts as what it holds",
    "wire": "what travels survives the wire",
    "stacked": "a stack of clients equals one by one, also with unequal clients",
    "order": "the order of clients does not matter",
    "resume": "stop and resume equals a straight run, bit for bit",
    "learns": "the loss falls on a toy task",
    "open": "an open model answers for classes that training never named",
}
_CHECKS: dict[str, Callable[[Method], None]] = {
    "frozen": _frozen,
    **{name: _with_loop(check) for name, check in (("names", _names), ("inputs", _inputs))},
    **{name: _with_loop(check) for name, check in (("padding", _padding), ("wire", _wire))},
    **{name: _with_loop(check) for name, check in (("stacked", _stacked), ("order", _order))},
    **{name: _with_loop(check) for name, check in (("resume", _resume), ("learns", _learns), ("open", _open))},
}
