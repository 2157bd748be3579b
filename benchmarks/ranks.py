"""One run shared by several processes: seconds a round, and what it costs to bring the answers together.

    python benchmarks/ranks.py [--ranks 1 2 4] [--clients 16] [--images 200] [--rounds 5]

Prints three tables. The first is measured: processes of one thread each on this machine, which share its cores, so more
processes than cores cannot be faster. The second is measured too: what a process waits for when answers of a given
size are brought together, aggregated by every process or by the leader, who hands on the result. The third is
computed from the first one's row of one process and from the links' nominal speeds: nothing in it was measured.
"""

import argparse
import json
import math
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from round_speed import made_up
from torch.multiprocessing.spawn import spawn

from promptfed.core import tree
from promptfed.core.group import Group
from promptfed.core.ranks import ALONE, Ranks
from promptfed.core.tree import Tree
from promptfed.data.partition import make_partition
from promptfed.federation.loop import Loop
from promptfed.federation.ranked import deal
from promptfed.results.folder.record import Follower, Record
from promptfed.runs import config, planning

SIZES = (2**12, 2**16, 2**20, 2**22, 2**24, 2**26)  # bytes of all answers of a round
ANSWERS = 16  # clients whose answers these are
LINKS = {"1 Gbit/s, 0.2 ms": (1e9, 2e-4), "25 Gbit/s, 0.05 ms": (25e9, 5e-5), "NVLink, 0.01 ms": (3.6e12, 1e-5)}
EXCHANGES = 3  # in a round without a test: what came back, and whether to go on and to save


def loop_of(args: argparse.Namespace, method: str, folder: Path, ranks: Ranks) -> Loop:
    """Return a loop that trains everyone in every round and tests nobody."""
    data = made_up(args.clients * args.images)
    words = [f"clients={args.clients}", "rounds=1000000", "evaluate.every=1000000", "method.epochs=1", "device=cpu"]
    recipe = config.load_one(method, words)
    partition = make_partition("iid", {}, data, recipe.clients, 0)
    device = torch.device("cpu")
    task = planning.make_task(recipe, data.sides, data.classes, device)
    plan = planning.Plan(recipe, config.build_method(recipe), data, partition, task, device, ranks)
    record = Record.create(folder, recipe.to_toml(), {}) if ranks.leads else Follower(folder)
    return planning.make_loop(plan, record)


def rounds(args: argparse.Namespace, folder: Path, ranks: Ranks) -> dict[str, list[float]]:
    """Return the seconds of every round after the first, and what one round sends, for each method."""
    found = {}
    for method in args.methods:
        loop, seconds = loop_of(args, method, folder / method, ranks), []
        for t in range(args.rounds + 1):
            ranks.told(None)
            began = time.perf_counter()
            loop.server, line = loop.round(t)
            loop.store.seal()
            loop.record.append(line)
            seconds.append(time.perf_counter() - began)
        found[method] = [*seconds[1:], float(line["traffic"]["up_bytes"])]
    return found


def exchanges(ranks: Ranks) -> dict[str, list[float]]:
    """Return the milliseconds in which answers of each size become the mean, [everywhere, by the leader]."""

    def once(own: Tree, limit: float) -> None:
        gathered = ranks.gathered(own, limit=limit)

        def mean() -> Tree:
            up = tree.cat(gathered.trees)
            return tree.mean(up, torch.ones(len(up["x"])))

        ranks.concluded(mean, gathered.everywhere)

    found = {}
    for size in SIZES:
        mine = deal([1] * ANSWERS, ranks.size).count(ranks.rank)
        own = {"x": torch.zeros(mine, size // ANSWERS // 4)}
        found[str(size)] = [_median(partial(once, own, limit), ranks) for limit in (math.inf, -1.0)]
    return found


def _median(work: Callable[[], None], ranks: Ranks, times: int = 9) -> float:
    seconds = []
    for _ in range(times):
        ranks.told(None)
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds)


def process(rank: int, size: int, port: int, args: argparse.Namespace, folder: Path) -> None:
    """Be one of the processes; the leader writes down what it measured."""
    torch.set_num_threads(1)
    where = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in where.items()})
    group = None if size == 1 else Group(torch.device("cpu"), rank, 600)
    ranks = group or ALONE
    found = {"rounds": rounds(args, folder, ranks), "exchanges": exchanges(ranks)}
    if ranks.leads:
        (folder / "found.json").write_text(json.dumps(found))
    if group is not None:
        group.leave()


def measure(args: argparse.Namespace, size: int) -> dict[str, dict[str, list[float]]]:
    """Start so many processes; return what they measured."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        spawn(process, (size, port, args, Path(folder)), nprocs=size)
        result: dict[str, dict[str, list[float]]] = json.loads((Path(folder) / "found.json").read_text())
    return result


def show_rounds(args: argparse.Namespace, measured: dict[int, dict[str, dict[str, list[float]]]]) -> None:
    """Print the first table."""
    print(f"\n{args.clients} clients with {args.images} images; {os.cpu_count()} cores, one thread a process\n")
    print(
        "| method | processes | s/round | speed-up | efficiency | of the cores there are |\n|---|--:|--:|--:|--:|--:|"
    )
    for method in args.methods:
        alone = statistics.median(measured[min(measured)]["rounds"][method][:-1])
        for size, found in measured.items():
            seconds = statistics.median(found["rounds"][method][:-1])
            gain, cores = alone / seconds, min(size, os.cpu_count() or 1)
            print(f"| {method} | {size} | {seconds:.2f} | {gain:.2f} | {gain / size:.0%} | {gain / cores:.0%} |")


def show_exchanges(measured: dict[int, dict[str, dict[str, list[float]]]]) -> None:
    """Print the second table."""
    print(f"\nAnswers of {ANSWERS} clients become their mean, milliseconds\n")
    print("| processes | bytes | by every process | by the leader |\n|--:|--:|--:|--:|")
    for size, found in measured.items():
        for count, (everywhere, leader) in found["exchanges"].items() if size > 1 else ():
            print(f"| {size} | {int(count):,} | {everywhere:.2f} | {leader:.2f} |")


def show_model(args: argparse.Namespace, alone: dict[str, list[float]], sizes: Sequence[int]) -> None:
    """Print the third table: training is divided as clients are dealt, and every link carries all answers once."""
    print("\nComputed, not measured: every process on a machine of its own\n")
    print(f"| method | link | {' | '.join(f'{size} machines' for size in sizes)} |")
    print(f"|---|---|{'--:|' * len(sizes)}")
    for method in args.methods:
        *seconds, sent = alone[method]
        whole = statistics.median(seconds)
        for link, (speed, wait) in LINKS.items():
            gains = []
            for size in sizes:
                most = np.bincount(deal([args.images] * args.clients, size)).max() / args.clients
                travel = 8 * sent * (size - 1) / size / speed
                gains.append(whole / (whole * most + travel + EXCHANGES * wait * math.ceil(math.log2(size))))
            print(f"| {method} | {link} | {' | '.join(f'{gain:.2f}×' for gain in gains)} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "pfedpt"])
    args = parser.parse_args()
    sizes = sorted({1, *args.ranks})
    measured = {size: measure(args, size) for size in sizes}
    show_rounds(args, measured)
    show_exchanges(measured)
    show_model(args, measured[1]["rounds"], [2, 4, 8, 16])


if __name__ == "__main__":
    main()
