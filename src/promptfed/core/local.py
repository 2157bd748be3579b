"""Local training: row-wise optimisers whose step is captured as a CUDA graph when a stack of clients lives on a GPU.

An objective has `Method.loss`'s signature and returns one value per client, or `(value, new_carry)`. Clients never mix,
so one backward of the sum gives every client its own gradient. A client whose data is used up is not `active`: its
parameters, optimiser state and carry stay as they are. Where a batch has a `rate`, all learning rates are multiplied by
it: it is the round's, so a recorded step reads it from its batch.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Required, TypedDict

import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.gradients import NOISE, like, of_examples
from promptfed.core.gradients import clipped as clipped
from promptfed.core.gradients import scaled as scaled
from promptfed.core.method import Task
from promptfed.core.protocols import Batch, Batches, Data, Draw
from promptfed.core.tree import Tree

Objective = Callable[[Task, Tree, Tree, Batch], Tensor | tuple[Tensor, Tree]]
Rate = float | Mapping[str, float]


class Rates(TypedDict, total=False):
    """The arguments of `sgd` that a method passes on."""

    lr: Required[Rate]
    momentum: Rate
    weight_decay: float
    clip: float
    clip_each: float
    noise: float


class AdamRates(TypedDict, total=False):
    """The arguments of `adam` that a method passes on."""

    lr: Required[Rate]
    weight_decay: float


_NO_TREE: Tree = {}


def sgd(
    objective: Objective,
    task: Task,
    batches: Batches,
    *,
    start: Tree,
    params: Tree,
    lr: Rate,
    momentum: Rate = 0.0,
    weight_decay: float = 0.0,
    clip: float = 0.0,
    clip_each: float = 0.0,
    noise: float = 0.0,
    hold: Tree = _NO_TREE,
    carry: Iterable[str] = (),
) -> Tree:
    """Minimise `objective` over `params`; return them with the carry and, under `velocity.<name>`, the momentum.

    The objective sees `hold | carry | params`. Momentum starts from `hold["velocity.<name>"]` if it is there, so it
    lives across rounds exactly when a method keeps it. `lr` and `momentum` are numbers, or one per parameter name.
    With `clip`, no client's gradient is longer than that; with `clip_each` no example's is, all parameters together,
    and `noise` times that in normal numbers, `noise.NAME` of the batch, is added to the sum over a batch (DP-SGD).
    """
    rule = _Sgd(_per_name(lr, params), _per_name(momentum, params), weight_decay, clip, clip_each, noise)
    return _descend(rule, objective, task, start, params, batches, hold, carry)


def adam(
    objective: Objective,
    task: Task,
    batches: Batches,
    *,
    start: Tree,
    params: Tree,
    lr: Rate,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    hold: Tree = _NO_TREE,
    carry: Iterable[str] = (),
) -> Tree:
    """Minimise as `sgd` does, by Adam with decoupled weight decay; its state is not returned."""
    rule = _Adam(_per_name(lr, params), betas, eps, weight_decay)
    return _descend(rule, objective, task, start, params, batches, hold, carry)


def noise_for(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Draw]:
    """Return the draws that `noise` needs for parameters of these shapes, for a method's `draws`."""
    return {f"{NOISE}{name}": Draw(shape, "normal", "batch") for name, shape in shapes.items()}


def paced(data: Data, factor: float) -> Data:
    """Return the same data with all learning rates of this round multiplied by `factor`.

    A rate that changes from round to round by other means would be recorded anew in every round.
    """
    return data.map(_paced, {"pace": torch.full_like(data.facts["size"], factor)})


def _paced(given: Tree, batch: Batch) -> Batch:
    return batch | {"rate": batch["rate"] * given["pace"] if "rate" in batch else given["pace"]}


def _per_name(rate: Rate, params: Tree) -> tuple[float, ...]:
    return tuple(rate[name] for name in params) if isinstance(rate, Mapping) else (rate,) * len(params)


@dataclass(frozen=True)
class _Sgd:
    """v <- m v + (g + decay p);  p <- p - lr v."""

    lr: tuple[float, ...]
    momentum: tuple[float, ...]
    weight_decay: float
    clip: float = 0.0
    clip_each: float = 0.0  # of an example's gradient
    noise: float = 0.0  # in units of it
    returns = True

    def state(self, params: Tree, hold: Tree) -> Tree:
        names = [f"velocity.{name}" for name, m in zip(params, self.momentum, strict=True) if m]
        return {name: hold[name] if name in hold else torch.zeros_like(params[name[9:]]) for name in names}

    def step(self, params: Tree, grads: list[Tensor], state: Tree, active: Tensor | None, rate: Tensor | None) -> None:
        alike: dict[tuple[float, float], dict[str, Tensor]] = {}
        for name, g, lr, m in zip(params, grads, self.lr, self.momentum, strict=True):
            alike.setdefault((lr, m), {})[name] = g
        for (lr, m), some in alike.items():
            moves = self._moves(tree.pick(params, some), list(some.values()), state, active, m)
            moves = moves if rate is None else scaled(moves, rate)
            torch._foreach_sub_([params[name] for name in some], moves, alpha=lr)

    def _moves(self, params: Tree, grads: list[Tensor], state: Tree, active: Tensor | None, m: float) -> list[Tensor]:
        """Return how far parameters of the same momentum move; few kernels for all need gradients laid out alike."""
        grads = [g.contiguous() for g in grads]
        if self.weight_decay:
            grads = list(torch._foreach_add(grads, torch._foreach_mul(list(params.values()), self.weight_decay)))
        if m:
            velocity = [state[f"velocity.{name}"] for name in params]
            for v, new in zip(velocity, torch._foreach_add(torch._foreach_mul(velocity, m), grads), strict=True):
                _assign(v, new, None if active is None else like(active, v))
            grads = velocity
        if active is not None and (m or self.weight_decay):
            # a client that is not active has a zero gradient, but momentum and decay would still move it
            grads = [g * like(active, g) for g in grads]
        return grads


@dataclass(frozen=True)
class _Adam:
    """Adam (Kingma, Ba 2015) with the decay outside the moments (Loshchilov, Hutter 2019)."""

    lr: tuple[float, ...]
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip: float = 0.0
    clip_each: float = 0.0
    noise: float = 0.0
    returns = False

    def state(self, params: Tree, hold: Tree) -> Tree:
        first = {f"first.{name}": torch.zeros_like(value) for name, value in params.items()}
        second = {f"second.{name}": torch.zeros_like(value) for name, value in params.items()}
        like = next(iter(params.values()))
        return first | second | {"count": like.new_zeros((), dtype=torch.promote_types(like.dtype, torch.float32))}

    def step(self, params: Tree, grads: list[Tensor], state: Tree, active: Tensor | None, rate: Tensor | None) -> None:
        # a client is inactive only after its own last step, so one count of steps serves every active client
        state["count"] += 1
        one, two = (1 - beta ** state["count"] for beta in self.betas)
        alike: dict[float, dict[str, Tensor]] = {}
        for name, g, lr in zip(params, grads, self.lr, strict=True):
            alike.setdefault(lr, {})[name] = g.contiguous()  # few kernels for all need gradients laid out alike
        for lr, some in alike.items():
            values, found = [params[name] for name in some], list(some.values())
            first, second = ([state[f"{part}.{name}"] for name in some] for part in ("first", "second"))
            on = [None if active is None else like(active, p) for p in values]
            _blend(first, found, self.betas[0], on)
            _blend(second, list(torch._foreach_mul(found, found)), self.betas[1], on)
            moves, below = torch._foreach_div(first, one), torch._foreach_div(second, two)
            torch._foreach_sqrt_(below)
            torch._foreach_add_(below, self.eps)
            torch._foreach_div_(moves, below)
            torch._foreach_add_(moves, torch._foreach_mul(values, self.weight_decay))
            moving = moves if rate is None else scaled(moves, rate)
            moving = [move if there is None else move * there for move, there in zip(moving, on, strict=True)]
            torch._foreach_sub_(values, moving, alpha=lr)


def _blend(old: list[Tensor], new: list[Tensor], beta: float, on: list[Tensor | None]) -> None:
    for target, value, there in zip(old, torch._foreach_lerp(new, old, beta), on, strict=True):
        _assign(target, value, there)


def _assign(target: Tensor, value: Tensor, on: Tensor | None) -> None:
    target.copy_(value if on is None else torch.where(on > 0, value, target))


@dataclass
class _Step:
    """One training step over tensors that keep their place in memory."""

    rule: _Sgd | _Adam
    objective: Objective
    task: Task
    ragged: bool
    start: Tree
    hold: Tree
    params: Tree
    state: Tree
    carry: Tree
    once: frozenset[str] = field(default=frozenset(), kw_only=True)  # what a batch has once, not for each example

    def __call__(self, batch: Batch) -> None:
        active = batch["active"] if self.ragged else None
        if self.rule.clip_each:
            held, noisy = self.hold | self.carry, (self.rule.clip_each, self.rule.noise)
            alone = partial(self.objective, self.task)
            carry: Tree = {}
            grads = of_examples(alone, self.start, held, self.params, batch, self.once, *noisy)
        else:
            grads, carry = self._whole(batch, active)
        with torch.no_grad():
            self.rule.step(self.params, grads, self.state, active, batch.get("rate"))
            for name, new in carry.items():
                _assign(self.carry[name], new, None if active is None else like(active, new))

    def _whole(self, batch: Batch, active: Tensor | None) -> tuple[list[Tensor], Tree]:
        """Return every client's gradient, and what it hands on."""
        leaves = [value.requires_grad_() for value in self.params.values()]
        out = self.objective(self.task, self.start, self.hold | self.carry | self.params, batch)
        value, carry = out if isinstance(out, tuple) else (out, {})
        total = value.sum() if active is None else (value * active).sum()
        grads = list(torch.autograd.grad(total, leaves, materialize_grads=True))
        with torch.no_grad():
            for leaf in leaves:
                leaf.requires_grad_(False)
            return clipped(grads, self.rule.clip, value.dim()) if self.rule.clip else grads, carry


def _descend(
    rule: _Sgd | _Adam,
    objective: Objective,
    task: Task,
    start: Tree,
    params: Tree,
    batches: Batches,
    hold: Tree,
    carry: Iterable[str],
) -> Tree:
    carried = tree.map(torch.clone, tree.pick(hold, carry))
    recorded = batches.steps > 1 and bool(params) and next(iter(params.values())).is_cuda
    # a recorded step has memory of its own, into which it copies what it is given
    fresh = tree.map(torch.Tensor.detach if recorded else _own, params)
    state = tree.map(torch.clone, rule.state(fresh, hold))
    once = batches.once if rule.clip_each else frozenset[str]()
    step = _Step(
        rule, objective, task, batches.ragged, start, tree.drop(hold, params), fresh, state, carried, once=once
    )
    if recorded:
        _replay(step, batches)
    else:
        for batch in batches:
            step(batch)
    return step.params | step.carry | (step.state if rule.returns else {})


def _own(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=torch.contiguous_format)


@dataclass
class _Captured:
    """A step recorded as a CUDA graph, with the memory it reads and writes."""

    graph: torch.cuda.CUDAGraph
    step: _Step
    tensors: Tree
    counter: Tensor
    pinned: object  # what the recorded kernels read besides these tensors must not be freed


def _replay(step: _Step, batches: Batches) -> None:
    """Run all steps by recorded ones; a stack of clients is halved whenever half of it has run out of batches."""
    segments = _segments(batches.lengths) or [(None, 0, batches.steps)]
    if segments[0][0] is not None:  # some clients have no batch at all, and keep what they were given
        step.params = tree.map(_own, step.params)
    for rows, begin, end in segments:
        if rows is None:
            step.params, step.state, step.carry = _replay_rows(step, batches, batches.tensors, begin, end)
            continue
        index = torch.tensor(rows, device=next(iter(step.params.values())).device)
        parts = (_take(part, index) for part in _trees(step))
        fewer = _Step(step.rule, step.objective, step.task, step.ragged, *parts, once=step.once)
        tensors = {
            name: value[:, index] if name.startswith("plan.") else value[index]
            for name, value in batches.tensors.items()
        }
        for whole, new in zip(_trees(step)[2:], _replay_rows(fewer, batches, tensors, begin, end), strict=True):
            for name, value in new.items():
                whole[name][index if value.dim() else ...] = value


def _segments(lengths: tuple[int, ...]) -> list[tuple[list[int] | None, int, int]]:
    """Return (clients, first step, last step): all of them, then the longer half, then its longer half, …"""
    order = sorted(range(len(lengths)), key=lambda client: -lengths[client])
    segments: list[tuple[list[int] | None, int, int]] = []
    width, begin = len(lengths), 0
    while width:
        narrower = width // 2 if width > 1 else 0
        end = lengths[order[narrower]]
        if end > begin:
            segments.append((order[:width] if width < len(lengths) else None, begin, end))
            begin = end
        width = narrower
    return segments


def _take(part: Tree, index: Tensor) -> Tree:
    return {name: value[index] if value.dim() else value.clone() for name, value in part.items()}


def _replay_rows(step: _Step, batches: Batches, tensors: Tree, begin: int, end: int) -> tuple[Tree, Tree, Tree]:
    """Run steps `begin` to `end` by a step recorded once per shape and kept with the task."""
    sources = (*_trees(step), tensors)
    key = (step.rule, step.objective, step.ragged, batches.key, *(_shapes(part) for part in sources))
    captured = step.task.captured.get(key)
    if captured is None or _room(captured.tensors) < batches.steps:
        captured = step.task.captured[key] = _capture(step, batches, tensors)
    for source, target in zip(sources, (*_trees(captured.step), captured.tensors), strict=True):
        for name, value in source.items():
            (target[name][: len(value)] if name.startswith("plan.") else target[name]).copy_(value)
    captured.counter.fill_(begin)
    for _ in range(end - begin):
        captured.graph.replay()
    params, state, carry = (tree.map(torch.clone, part) for part in _trees(captured.step)[2:])
    return params, state, carry


def _trees(step: _Step) -> tuple[Tree, Tree, Tree, Tree, Tree]:
    return step.start, step.hold, step.params, step.state, step.carry


def _shapes(part: Tree) -> Hashable:
    """Shapes that a recorded step is bound to; a plan may have any number of steps."""
    return tuple(
        (name, value.dtype, value.shape[1:] if name.startswith("plan.") else value.shape)
        for name, value in part.items()
    )


def _room(tensors: Tree) -> int:
    return min(len(value) for name, value in tensors.items() if name.startswith("plan."))


def _capture(step: _Step, batches: Batches, tensors: Tree) -> _Captured:
    def roomy(name: str, value: Tensor) -> Tensor:
        if not name.startswith("plan."):
            return value.clone()
        room = value.new_zeros(2 * len(value), *value.shape[1:])
        room[: len(value)] = value
        return room

    static = _Step(
        step.rule,
        step.objective,
        step.task,
        step.ragged,
        *(tree.map(_own, part) for part in _trees(step)),
        once=step.once,
    )
    tensors = {name: roomy(name, value) for name, value in tensors.items()}
    counter = torch.zeros((), dtype=torch.long, device=next(iter(static.params.values())).device)

    def advance() -> None:
        static(batches.at(tensors, counter))
        counter.add_(1)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # libraries choose algorithms and allocate workspaces before anything is recorded
            advance()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        advance()
    return _Captured(graph, static, tensors, counter, batches)
