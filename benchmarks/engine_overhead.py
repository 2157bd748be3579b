"""What a round costs beside the method's own work: milliseconds per client and round, with a method that does nothing.

    python benchmarks/engine_overhead.py [--clients 10000] [--per-round 1000] [--rounds 20] [--profile]

Each client receives and sends 7,680 numbers, has a personal tree of two tensors and 1,024 numbers, in memory or on disk
beyond 4 MB, and plans one epoch of batches of its own images. Sampling, facts, batches, personal trees, what travels,
the rounds' lines and a checkpoint are in it, and the method's copies of its two small tensors, since to look at a clock
for every client costs more than they do. The server's mean is left out. Wall time is the median of rounds, and the
fastest one; where other programs share the cores, CPU time is what they cannot lengthen much.
"""

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from round_speed import made_up
from torch import Tensor

from promptfed.core import Data, Method, Rng, Task, Tree, tree
from promptfed.core.method import Traits
from promptfed.core.protocols import Draw
from promptfed.data.batches import Pool, Shards
from promptfed.data.partition import make_partition
from promptfed.federation.fleet import OneByOne, Stacked
from promptfed.federation.loop import Loop, Settings
from promptfed.federation.store import Store
from promptfed.results.folder.record import Record

SENT, OWN = 7_680, 512


@dataclass
class Clock:
    """Seconds spent in the method, by the wall and of the processor."""

    wall: float = 0.0
    cpu: float = 0.0

    def __call__(self) -> tuple[float, float]:
        """Return what the time is, without the time spent in the method."""
        return time.perf_counter() - self.wall, time.process_time() - self.cpu

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop while the method works."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu


CLOCK = Clock()


@dataclass(frozen=True)
class Idle(Method):
    """Learn nothing: send what was received, keep what is there."""

    name: ClassVar[str] = "idle"

    @property
    def traits(self) -> Traits:
        """Return that nothing is learned."""
        return Traits(learns=False)

    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return what travels."""
        return {"shared": torch.zeros(SENT)}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return what stays."""
        return {"prompt": torch.zeros(OWN), "velocity": torch.zeros(OWN)}

    def draws(self, task: Task) -> dict[str, Draw]:
        """Return that there are none."""
        return {}

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Plan the batches, as every method does, and go over none."""
        data.batches(size=16)
        return dict(down), tree.map(torch.clone, personal)

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Return the mean, as FedAvg does."""
        with CLOCK.stopped():
            return super().aggregate(task, server, clients, up, weights)


def loop_of(clients: int, per_round: int, kind: str, memory_mb: float, folder: Path) -> Loop:
    """Return a loop of the idle method."""
    data = made_up(20 * clients)
    data = replace(data, images=np.ascontiguousarray(data.images[:, :2, :2]))
    partition = make_partition("iid", {}, data, clients, 0)
    method, task = Idle(), Task(None, data.classes, clients, 1_000_000)  # type: ignore[arg-type]
    shards = Shards(Pool(data, torch.device("cpu")), partition.train, partition.test, 0, {})
    record = Record.create(folder, "", {})
    store = Store(lambda client: method.init_client(task, None, None), record.checkpoint, memory_mb)  # type: ignore[arg-type]
    fleet = (
        OneByOne(method, task, shards, store)
        if kind == "one-by-one"
        else Stacked(method, task, shards, store, per_round)
    )
    settings = Settings(0, 1_000_000, per_round, 0, 0, 1_000_000, True, False, 5, ("one",))
    return Loop(method, task, fleet, shards, store, record, settings)


def overhead(loop: Loop, rounds: int) -> tuple[float, float, float]:
    """Return milliseconds per client and round: by the wall in the median, in the fastest round, and of CPU time."""

    def once() -> None:
        loop.server, line = loop.round(loop.finished)
        loop.record.append(line)
        loop.store.seal()
        loop.finished += 1

    def save() -> None:
        loop.save("benchmark", "benchmark")  # a run spends at most a twentieth of its time on this, so not every round

    once()
    spent = np.array([_timed(once) for _ in range(rounds)])
    saving = np.array(_timed(save)) / rounds
    wall, cpu = (1000 * (spent + saving) / loop.settings.per_round).T
    return float(np.median(wall)), float(wall.min()), float(cpu.mean())


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds that something takes beside the method, by the wall and of the processor."""
    wall, cpu = CLOCK()
    work()
    after = CLOCK()
    return after[0] - wall, after[1] - cpu


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--per-round", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    args = parser.parse_args()
    print(f"{args.clients:,} clients, {args.per_round:,} a round, {args.rounds} rounds\n")
    print("Milliseconds per client and round:\n")
    print("| fleet | personal trees | wall, median | wall, fastest | CPU |\n|---|---|--:|--:|--:|")
    for kind in ("one-by-one", "stacked"):
        for where, memory_mb in (("in memory", 1024.0), ("on disk", 4.0)):
            with tempfile.TemporaryDirectory() as folder:
                loop = loop_of(args.clients, args.per_round, kind, memory_mb, Path(folder) / "run")
                profile = cProfile.Profile()
                if args.profile:
                    profile.enable()
                spent = overhead(loop, args.rounds)
                profile.disable()
            print(f"| {kind} | {where} | {' | '.join(f'{one:.3f}' for one in spent)} |", flush=True)
            if args.profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
