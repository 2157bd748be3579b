"""Images a second of prompt tuning on a frozen ViT: one local step of all clients, its images fed from memory.

    python benchmarks/prompt_speed.py [--device cuda] [--clients 10] [--batch 64] [--tokens 10]

On a GPU the network is ViT-B/16 at 224 pixels with random weights, elsewhere a small one. A step is forward, backward
and update of every client's prompt and head. A second table shows memory as clients are added, a third the loss after
every round in every precision, beside the same training from another seed.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from promptfed.backbones.pretrained import LoadedViT, Precision, ViT
from promptfed.core.method import Task
from promptfed.data.dataset import Dataset
from promptfed.data.partition import make_partition
from promptfed.federation.loop import Loop
from promptfed.results.folder.record import Record
from promptfed.runs import config, planning

LARGE = (768, 12, 12, 16)  # width, depth, heads, patch
SMALL = (64, 3, 4, 8)
CLASSES = 10


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    device: str
    clients: int
    batch: int
    tokens: int
    steps: int  # of a client in a round

    @property
    def size(self) -> int:
        """Return the images' side in pixels."""
        return 224 if self.device == "cuda" else 32

    def images(self) -> Dataset:
        """Return noise around a colour for every class: something to learn."""
        rng = np.random.default_rng(0)
        count = self.clients * self.batch * self.steps
        labels = np.arange(count + count // 10) % CLASSES
        colours = rng.integers(64, 192, (CLASSES, 1, 1, 3), np.uint8)
        grain = rng.integers(-64, 64, (97, self.size, self.size, 3), np.int8).view(np.uint8)
        images = np.empty((len(labels), self.size, self.size, 3), np.uint8)
        for number, label in enumerate(labels):
            np.add(colours[label], grain[number % len(grain)], out=images[number])
        return Dataset(
            name="made-up",
            images=images,
            labels=labels,
            test=np.arange(len(labels)) >= count,
            classes=tuple("0123456789"),
            domains=np.zeros(len(labels), np.int64),
            domain_names=("one",),
        )


@cache
def network(size: int, device: str) -> LoadedViT:
    """Return the network with random weights, on the CPU and in float32."""
    width, depth, heads, patch = LARGE if device == "cuda" else SMALL
    return ViT.random((3, size, size), CLASSES, width=width, depth=depth, heads=heads, patch=patch, precision="fp32")


@contextmanager
def loop_of(setting: Setting, data: Dataset, precision: Precision, fleet: str, seed: int = 0) -> Iterator[Loop]:
    """Yield pFedPG's round loop on a ViT with random weights."""
    words = [
        *(f"clients={setting.clients}", f"device={setting.device}", f"seed={seed}", "rounds=1000"),
        *(f"method.batch={setting.batch}", f"method.tokens={setting.tokens}", "method.epochs=1", "method.lr=0.01"),
        *(f"fleet.name={fleet}", "evaluate.after=false"),
    ]
    recipe = config.load("pfedpg", words)[0]
    device, base = torch.device(setting.device), network(setting.size, setting.device)
    backbone = ViT(base.shape, CLASSES, "random", 0, precision).loaded(base.form, base.pretrained, device)
    task = Task(backbone, data.classes, recipe.clients)
    partition = make_partition("iid", {}, data, recipe.clients, 0)
    plan = planning.Plan(recipe, config.build_method(recipe), data, partition, task, device)
    with tempfile.TemporaryDirectory() as folder:
        yield planning.make_loop(plan, Record.create(Path(folder) / "run", recipe.to_toml(), {}))
    task.captured.clear()  # recorded steps keep their memory
    gc.collect()
    torch.cuda.empty_cache()


def images_a_second(loop: Loop, rounds: int) -> float:
    """Time local training alone, after a first round that records the step."""

    def once(t: int) -> None:
        loop.fleet.fit(t, loop.everyone, loop.method.download(loop.task, loop.server, loop.everyone), test=False)
        if loop.device.type == "cuda":
            torch.cuda.synchronize()

    once(0)
    seen, began = loop.shards.pool.seen, time.perf_counter()
    for t in range(1, rounds + 1):
        once(t)
    return (loop.shards.pool.seen - seen) / (time.perf_counter() - began)


def peak_gib(loop: Loop) -> float:
    """Return the most memory a round of training takes."""
    torch.cuda.reset_peak_memory_stats()
    images_a_second(loop, 1)
    return torch.cuda.max_memory_allocated() / 2**30


def speeds(setting: Setting, data: Dataset, rounds: int) -> None:
    """Print images a second, slowest way first."""
    cuda = setting.device == "cuda"
    ways: list[tuple[str, Precision, str, str]] = [("one by one, fp32", "fp32", "one-by-one", "highest")]
    ways += [("one by one, TF32", "fp32", "one-by-one", "high")] if cuda else []
    ways += [("stacked, bf16", "bf16", "stacked", "high"), ("stacked, fp8", "fp8", "stacked", "high")]
    print("| way | images/s | ms a step of all clients | of the slowest |\n|---|--:|--:|--:|")
    slowest = 0.0
    for title, precision, fleet, matmul in ways:
        torch.set_float32_matmul_precision(matmul)
        slow = fleet == "one-by-one"
        part = replace(setting, steps=2) if slow else setting
        with loop_of(part, part.images() if slow else data, precision, fleet) as loop:
            rate = images_a_second(loop, 1 if slow else rounds)
        slowest = slowest or rate
        took = 1e3 * setting.clients * setting.batch / rate
        print(f"| {title} | {rate:,.0f} | {took:,.1f} | {rate / slowest:.1f}× |", flush=True)
    torch.set_float32_matmul_precision("high")


def memory(setting: Setting) -> None:
    """Print memory against the number of clients stacked together."""
    print("\n| clients | bf16 GiB | per further client | fp8 GiB | per further client |\n|--:|--:|--:|--:|--:|")
    first: dict[Precision, float] = {}
    for clients in (1, 5, 10, 20):
        fewer = replace(setting, clients=clients, steps=2)
        cells = []
        kinds: tuple[Precision, Precision] = ("bf16", "fp8")
        for precision in kinds:
            with loop_of(fewer, fewer.images(), precision, "stacked") as loop:
                peak = peak_gib(loop)
            first.setdefault(precision, peak)
            more = f"{(peak - first[precision]) / (clients - 1):.2f}" if clients > 1 else ""
            cells += [f"{peak:.1f}", more]
        print(f"| {clients} | {' | '.join(cells)} |", flush=True)


def curves(setting: Setting, rounds: int) -> None:
    """Print the loss on test images after every round."""
    data = setting.images()
    rows: dict[str, list[float]] = {}
    kinds: tuple[Precision, ...] = ("fp32", "bf16", "fp8")
    for title, precision, seed in (*((kind, kind, 0) for kind in kinds), ("fp32, another seed", "fp32", 1)):
        with loop_of(setting, data, precision, "stacked", seed) as loop:
            rows[title] = []
            for t in range(rounds):
                loop.server, line = loop.round(t)
                rows[title].append(line["loss"])
    print(f"\n| loss after round | {' | '.join(str(t + 1) for t in range(rounds))} |\n|---|{'--:|' * rounds}")
    for title, row in rows.items():
        print(f"| {title} | {' | '.join(f'{value:.4f}' for value in row)} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=10)
    parser.add_argument("--steps", type=int, default=8, help="of a client in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["speed", "memory", "loss"], help="one of the tables")
    args = parser.parse_args()
    device = planning.pick_device(args.device).type
    setting = Setting(device, args.clients, args.batch, args.tokens, args.steps)
    data = setting.images()
    if args.only in (None, "speed"):
        speeds(setting, data, args.rounds)
    if args.only in (None, "memory") and device == "cuda":
        memory(setting)
    if args.only in (None, "loss"):
        curves(replace(setting, steps=args.steps // 2), args.rounds + 1)


if __name__ == "__main__":
    main()
