"""What a run will cost, before it: bytes and parameters are counted, memory and time measured on a few real steps.

The first group of clients that trains together (on a CPU, one client) makes one step of each of its local trainings,
then again one, then two more. The difference is what steps take; the rest is what a training takes besides. Both are
multiplied by the trainings and steps of all rounds, whose participants and batches are known in advance.
"""

import sys
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

from promptfed.backbones.digest import count_frozen
from promptfed.core import tree
from promptfed.core.method import adapts
from promptfed.core.tree import Tree
from promptfed.data.batches import ClientData, PlannedBatches
from promptfed.federation.fleet import Stacked
from promptfed.federation.loop import Loop
from promptfed.federation.traffic import count_traffic
from promptfed.results.folder.record import Record
from promptfed.runs.environment import precision
from promptfed.runs.memory import enough
from promptfed.runs.planning import Plan, make_loop, prepare
from promptfed.runs.recipe import Recipe

STEPS = 2  # timed, beside the first one
IMAGES = 32  # tested at most of each client
clock = time.perf_counter


@dataclass(frozen=True)
class Costs:
    """What a run will cost; bytes and numbers are counted, the rest is an estimate."""

    device: str
    rounds: int  # those of newcomers included
    clients: int  # in the first round
    down_bytes: int
    up_bytes: int
    round_down_bytes: int  # of the first round, all its clients together
    round_up_bytes: int
    trainings: int  # of one client in one round each: down_bytes / trainings is what one receives for it
    trained: int  # numbers that a client trains
    frozen: int  # weights of the backbone that nobody trains
    memory_bytes: int | None
    checkpoint_bytes: int
    steps: int  # of all clients in all rounds
    step_seconds: float
    training_seconds: float
    testing_seconds: float
    server_seconds: float
    loading_seconds: float

    @property
    def seconds(self) -> float:
        """Return how long the run will take."""
        return self.training_seconds + self.testing_seconds + self.server_seconds + self.loading_seconds


@dataclass(frozen=True)
class MeteredData(ClientData):
    """A client's data that notes which batches are asked for, and hands out the first few steps of each."""

    most: int = 1
    asked: list[dict[str, Any]] = field(default_factory=list)

    def batches(self, purpose: str = "train", **how: Any) -> PlannedBatches:
        """Return the first `most` steps of what is asked for."""
        self.asked.append({"purpose": purpose, **how})
        whole = ClientData.batches(self, purpose, **how).steps
        return ClientData.batches(self, purpose, **(how | {"steps": min(self.most, whole)}))


@dataclass(frozen=True)
class _Trial:
    """What one group of clients sent, kept and asked for, and how long it took."""

    clients: list[int]
    up: Tree  # [C, ...]
    moved: Tree  # of the personal trees, what training changed
    personal: Tree
    asked: list[dict[str, Any]]
    adapting: list[dict[str, Any]]  # asked for by the method's own adaptation before the last test
    step: float  # seconds of one step of every local training together
    besides: float  # seconds of a training beside its steps
    test: float  # seconds of a test of the group


def estimate(recipe: Recipe) -> Costs:
    """Return what a run of the recipe will cost; nothing is written but cached features of its images."""
    with enough(recipe):
        return _estimated(recipe)


def _estimated(recipe: Recipe) -> Costs:
    began = clock()
    plan = prepare(recipe, None, None)
    with TemporaryDirectory() as folder, precision(str(recipe.fleet["precision"])):
        loop = make_loop(plan, Record(Path(folder)))
        loading = clock() - began
        trial = _try(loop)
        server = _server_seconds(loop, trial)
        memory = _memory(loop, trial, float(recipe.fleet["memory_mb"]) * 1e6)
        return _total(plan, loop, trial, loading, server, memory)


def _participants(loop: Loop) -> Iterator[Tensor]:
    """Yield who takes part, round by round."""
    for t in range(loop.settings.total):
        yield loop.participants(t)


def _traffic(loop: Loop, trial: _Trial) -> list[dict[str, int]]:
    """Count what every round will send; the participants are known, so nothing is left to chance."""
    once, seen, counted = loop.method.traits.once, set[int](), []
    own = tree.row(loop.method.download(loop.task, loop.server, torch.tensor(trial.clients)), 0)
    sent = tree.row(trial.up, 0)
    for clients in _participants(loop):
        count, first = len(clients), len({*clients.tolist()} - seen)
        seen |= {*clients.tolist()}
        down, up = tree.repeat(own, count), tree.repeat(sent, count)
        counted.append(count_traffic(down, up, count, first, once, loop.guards))
    return counted


def _try(loop: Loop) -> _Trial:
    """Let the first group train for a few steps, and be tested."""
    stacked = isinstance(loop.fleet, Stacked)
    clients = next(_participants(loop))[: loop.fleet.width].tolist()
    device = loop.device
    down = loop.method.download(loop.task, loop.server, torch.tensor(clients))
    rows = [tree.to(loop.store.get(client), device) for client in clients]
    personal = tree.stack(rows)
    start, own = (down, personal) if stacked else (tree.settled(tree.row(down, 0)), rows[0])

    def data(most: int) -> MeteredData:
        plain = loop.shards.data(clients, 0, stacked=stacked)
        return MeteredData(**vars(plain), most=most)

    def fit(most: int) -> tuple[tuple[Tree, Tree], MeteredData]:
        given = data(most)
        return loop.method.fit(loop.task, start, own, given), given

    fit(1)  # the first step of all compiles, records and caches what later ones use
    (_, short) = _timed(device, lambda: fit(1))
    (((up, after), metered), long) = _timed(device, lambda: fit(1 + STEPS))
    step = max(0.0, long - short) / STEPS
    moved = {name: value for name, value in after.items() if not torch.equal(value, own[name])}
    test = _test_seconds(loop, clients)
    if not stacked:
        up, moved = tree.stack([up]), tree.stack([moved])
    last = data(1)
    if adapts(loop.method):
        loop.method.adapt(loop.task, start, own, last)
    return _Trial(clients, up, moved, personal, metered.asked, last.asked, step, max(0.0, short - step), test)


def _test_seconds(loop: Loop, clients: list[int]) -> float:
    """Return how long a test of a group with the usual number of test images takes, from two tests of a few."""
    tested, width = loop.shards.rows["test"], loop.fleet.width
    usual: float = sum(max(len(tested[client]) for client in group.tolist()) for group in loop.everyone.split(width))
    usual /= -(-len(loop.everyone) // width)
    few, most = 1, max(2, min(IMAGES, max(len(tested[client]) for client in clients)))
    short, long = (_few_tested(loop, clients, count) for count in (few, most))
    each = max(0.0, long - short) / (most - few)
    return short + each * max(0.0, usual - few)


def _few_tested(loop: Loop, clients: list[int], count: int) -> float:
    """Time a test of a group's received models on `count` images of each client, the second time."""
    fleet: Any = copy(loop.fleet)
    shards = copy(loop.shards)
    shards.rows = shards.rows | {"test": [rows[:count] for rows in shards.rows["test"]]}
    fleet.shards = shards

    def test() -> Tree:
        download = partial(loop.method.download, loop.task, loop.server)
        sums: Tree = fleet.evaluate(0, torch.tensor(clients), download, adapt=False)
        return sums

    test()
    return _timed(loop.device, test)[1]


def _timed(device: torch.device, work: Callable[[], Any]) -> tuple[Any, float]:
    began = clock()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, clock() - began


def _server_seconds(loop: Loop, trial: _Trial) -> float:
    """Time the guards and the server's half of one round; every client answers as the first one did."""
    clients = next(_participants(loop))
    count = len(clients)
    down = loop.method.download(loop.task, loop.server, clients)
    up = tree.settled(tree.repeat(tree.row(trial.up, 0), count))
    weights = loop.method.weight(loop.shards.facts(clients.tolist()))

    def conclude() -> Tree:
        heard, answers, counts = loop.guards(0, clients, down, up, weights)
        return loop.method.aggregate(loop.task, loop.server, heard, answers, counts)

    return _timed(loop.device, conclude)[1]


def _memory(loop: Loop, trial: _Trial, most_personal: float) -> int | None:
    """Return the peak so far, and what a whole round and all personal trees add to it."""
    count = len(next(_participants(loop)))
    answers = 2 * count * tree.nbytes(tree.row(trial.up, 0))  # one by one, and then stacked
    kept = min(most_personal, len(loop.everyone) * tree.nbytes(tree.row(trial.personal, 0)))
    if loop.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(loop.device) + answers + kept)
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return int(peak + answers + kept)


def _steps(loop: Loop, members: list[int], asked: list[dict[str, Any]]) -> int:
    """Return the steps of a group's local trainings, all of them together."""
    data = loop.shards.data(members, 0, stacked=isinstance(loop.fleet, Stacked))
    return sum(data.batches(**how).steps for how in asked)


def _total(plan: Plan, loop: Loop, trial: _Trial, loading: float, server: float, memory: int | None) -> Costs:
    """Multiply what one group took by all trainings and tests of the run."""
    settings, traffic, known = loop.settings, _traffic(loop, trial), dict[tuple[int, ...], int]()
    everyone = list(loop.everyone.split(settings.per_round or len(loop.everyone)))

    def steps(members: list[int], asked: list[dict[str, Any]]) -> int:
        key = (id(asked), *(len(loop.shards.rows["train"][client]) for client in members))
        if key not in known:  # as many images make as many steps
            known[key] = _steps(loop, members, asked)
        return known[key]

    trained = [*_participants(loop), *(everyone if settings.after else ())]
    groups = [group.tolist() for clients in trained for group in clients.split(loop.fleet.width)]
    total = sum(steps(group, trial.asked) for group in groups)
    seconds = len(groups) * trial.besides + trial.step * total / max(1, len(trial.asked))
    tests = _tests(loop)
    if adapts(loop.method):
        last = [group.tolist() for group in loop.everyone.split(loop.fleet.width)]
        more = sum(steps(group, trial.adapting) for group in last)
        seconds += trial.step * more / max(1, len(trial.adapting))
        total, tests = total + more, tests + len(last)
    personal, learned = tree.row(trial.personal, 0), _learned(trial)
    kept = tree.nbytes(tree.pick(loop.server, loop.method.traits.keeps)) * settings.total
    return Costs(
        device=str(plan.device),
        rounds=settings.total,
        clients=len(next(_participants(loop))),
        down_bytes=sum(line["down_bytes"] for line in traffic),
        up_bytes=sum(line["up_bytes"] for line in traffic),
        round_down_bytes=traffic[0]["down_bytes"],
        round_up_bytes=traffic[0]["up_bytes"],
        trainings=sum(len(clients) for clients in _participants(loop)),
        trained=tree.floats(learned),
        frozen=count_frozen(plan.task.backbone, learned),
        memory_bytes=memory,
        checkpoint_bytes=tree.nbytes(loop.server) + tree.nbytes(personal) * len(loop.everyone) + kept,
        steps=total,
        step_seconds=trial.step / max(1, len(trial.asked)),
        training_seconds=seconds,
        testing_seconds=trial.test * tests * (1 + loop.beyond.images / max(1, sum(map(len, loop.shards.rows["test"])))),
        server_seconds=server * settings.total,
        loading_seconds=loading,
    )


def _learned(trial: _Trial) -> Tree:
    """Return what one client trains: what it sends, and what of its own tree has moved, momentum left out."""
    own = {name: value for name, value in trial.moved.items() if not name.startswith("velocity.")}
    return tree.row(own, 0) | tree.row(trial.up, 0)


def _tests(loop: Loop) -> int:
    """Return how often a group of clients is tested, the server's model on all images counted as one test of each."""
    settings, width, count = loop.settings, loop.fleet.width, 0
    for t, clients in enumerate(_participants(loop), 1):
        present = -(-(len(loop.founders) if t <= settings.rounds else len(loop.everyone)) // width)
        last = t in (settings.rounds, settings.total)
        if last or t % settings.every == 0:
            personal = present - (-len(clients) // width) if last or settings.personal else 0
            deployed = 0 if personal and not last else present
            count += personal + deployed
    return count + (-(-len(loop.everyone) // width) if settings.after else 0)
