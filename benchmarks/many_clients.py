"""Memory, disk and time with very many clients, every one of which has personal state on disk.

    python benchmarks/many_clients.py [--clients 1000000] [--per-round 1000] [--rounds 100] [--plot many.png]
    python benchmarks/many_clients.py --clients 10000 --per-round 200

pFedPT on a tiny network, two images of 8 × 8 pixels a client. Before the first round the store is given a tree for each
client, so that all of them have state. Prints resident memory, disk and seconds a round every tenth of the run, the
time to start and to resume, and, with --beside 10000, the seconds a round of the same rounds with that many clients.
"""

import argparse
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from round_speed import made_up

from promptfed.core import tree
from promptfed.data.dataset import Dataset
from promptfed.data.partition import Partition, make_partition
from promptfed.federation.loop import Loop
from promptfed.results.folder import names
from promptfed.results.folder.record import Record
from promptfed.runs import config, planning

MEGABYTE = 2**20
BACKBONE = ("name=vit-tiny", "width=16", "depth=1", "heads=2", "patch=4")


@dataclass(frozen=True)
class Row:
    """What was seen after some rounds; `weigh` is what the clients' trees weigh."""

    round: int
    resident: float
    disk: float
    weigh: float
    seconds: float  # of a round, the median since the last row


def resident() -> float:
    """Return this process's resident memory in megabytes (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE


def on_disk(folder: Path) -> float:
    """Return the personal trees' files in megabytes."""
    return sum(path.stat().st_size for path in folder.glob("personal-*")) / MEGABYTE


def images_of(clients: int) -> Dataset:
    """Return two images for each client."""
    few = made_up(1000)
    rows = np.arange(2 * clients) % len(few)
    images = np.ascontiguousarray(few.images[:, :8, :8])[rows]
    test, domains = np.zeros(len(rows), bool), np.zeros(len(rows), np.int64)
    return replace(few, images=images, labels=few.labels[rows], test=test, domains=domains)


def begin(data: Dataset, args: argparse.Namespace, clients: int, folder: Path, *, again: bool = False) -> Loop:
    """Return the loop of a new run, or of the one in the folder."""
    words = [f"clients={clients}", f"per_round={args.per_round}", f"fleet.memory_mb={args.memory_mb}"]
    words += ["rounds=1000000", "evaluate.every=1000000", "method.epochs=1", "method.prompt_epochs=1", "device=cpu"]
    recipe = config.load("pfedpt", [*words, *(f"backbone.{word}" for word in BACKBONE)])[0]
    record = Record.reopen(folder) if again else Record.create(folder, recipe.to_toml(), {})
    path = folder / names.PARTITION
    partition = Partition.load(path, data) if again else make_partition("iid", {}, data, clients, 0)
    if not again:
        partition.save(path, data)
    device = planning.pick_device(recipe.device)
    task = planning.make_task(recipe, data.sides, data.classes, device)
    loop = planning.make_loop(planning.Plan(recipe, config.build_method(recipe), data, partition, task, device), record)
    if again:
        state = record.state("benchmark", partition.hash)
        assert state is not None
        loop.restore(state)
    return loop


def fill(loop: Loop) -> float:
    """Give every client a tree of its own; return what they weigh in megabytes."""
    first = loop.store.get(0)
    for start in range(0, len(loop.everyone), 1000):
        for client in range(start, min(start + 1000, len(loop.everyone))):
            loop.store.put(client, tree.map(lambda part: part + 1e-6 * (client % 7), first))  # noqa: B023  (used at once)
        loop.store.seal()
    loop.save("benchmark", loop_hash(loop))
    return len(loop.everyone) * tree.nbytes(first) / MEGABYTE


def loop_hash(loop: Loop) -> str:
    """Return the hash of the loop's partition."""
    return Partition("iid", loop.shards.rows["train"], loop.shards.rows["test"]).hash


def measure(loop: Loop, rounds: int, weigh: float) -> list[Row]:
    """Run the rounds as a run does, a checkpoint every few seconds included."""
    rows: list[Row] = []
    spent: list[float] = []
    known, saved = loop_hash(loop), time.monotonic()
    for number in range(1, rounds + 1):
        began = time.perf_counter()
        server, line = loop.round(loop.finished)
        loop.record.append(line)
        loop.store.seal()
        loop.server, loop.finished = server, loop.finished + 1
        if time.monotonic() - saved > 5 or number % max(1, rounds // 10) == 0:
            loop.save("benchmark", known)
            saved = time.monotonic()
        spent.append(time.perf_counter() - began)
        if number % max(1, rounds // 10) == 0:
            rows.append(Row(number, resident(), on_disk(loop.record.checkpoint), weigh, median(spent)))
            spent = []
    return rows


def run(args: argparse.Namespace, clients: int) -> list[Row]:
    """Start, fill, run and resume one run; print what it took."""
    data = images_of(clients)
    empty = resident()
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        began = time.perf_counter()
        loop = begin(data, args, clients, Path(place) / "run")
        started = time.perf_counter() - began
        weigh = fill(loop)
        rows = measure(loop, args.rounds, weigh)
        finished, after = loop.finished, tree.to(loop.server, "cpu")
        began = time.perf_counter()
        again = begin(data, args, clients, Path(place) / "run", again=True)
        resumed = time.perf_counter() - began
        assert again.finished == finished
        assert all(torch.equal(again.server[name], value) for name, value in after.items())
        files = sum(1 for _ in loop.record.checkpoint.iterdir())
        line = (Path(place) / "run" / names.ROUNDS).stat().st_size / args.rounds
    print(f"{clients:,} clients with state, {args.per_round:,} a round, {args.memory_mb:g} MB of trees in memory\n")
    print("| round | resident MB | of them beside the images | disk MB | of what the trees weigh | seconds a round |")
    print("|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        share = f"{row.disk / row.weigh:.3f}"
        memory = f"{row.resident:.0f} | {row.resident - empty:.0f}"
        print(f"| {row.round} | {memory} | {row.disk:.0f} | {share} | {row.seconds:.2f} |")
    print(f"\nstart {started:.1f} s, resume {resumed:.1f} s, {files:,} checkpoint files, {line:,.0f} bytes a line\n")
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """Plot resident memory and the state on disk against rounds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    rounds = [row.round for row in rows]
    axes.plot(rounds, [row.disk for row in rows], label="personal state on disk")
    axes.plot(rounds, [row.weigh for row in rows], label="what it weighs", linestyle="--")
    axes.plot(rounds, [row.resident for row in rows], label="resident memory")
    axes.set(xlabel="round", ylabel="MB", ylim=(0, None))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print the tables, and draw the first if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--per-round", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--memory-mb", type=float, default=64)
    parser.add_argument("--beside", type=int, default=0, help="also run this many clients, and compare a round's time")
    parser.add_argument("--folder", type=Path, help="where the run may lie for as long as it takes")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    fewer = run(args, args.beside) if args.beside else []
    rows = run(args, args.clients)
    if fewer:
        ratio = median(row.seconds for row in rows) / median(row.seconds for row in fewer)
        print(f"A round takes {ratio:.2f} times as long as with {args.beside:,} clients.")
    if args.plot:
        draw(rows, args.plot)


if __name__ == "__main__":
    main()
