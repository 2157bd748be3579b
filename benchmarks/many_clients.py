"""Memory against rounds: pFedPT with 10,000 clients whose personal state lives on disk beyond a few megabytes.

    python benchmarks/many_clients.py [--clients 10000] [--rounds 100] [--memory-mb 4] [--plot memory.png]

Prints the process's resident memory and the state's size on disk every tenth of the run.
"""

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from round_speed import loop_of, made_up

from promptfed.federation.loop import Loop

MEGABYTE = 2**20


def resident() -> float:
    """Return this process's resident memory in megabytes (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE


def on_disk(folder: Path) -> float:
    """Return the checkpoint's size in megabytes."""
    return sum(path.stat().st_size for path in folder.iterdir()) / MEGABYTE


def measure(loop: Loop, rounds: int) -> list[tuple[int, float, float, int]]:
    """Run the rounds; return (round, resident MB, MB on disk, clients with state of their own) every tenth."""
    rows, touched = [], set()
    for t in range(rounds):
        loop.server, line = loop.round(t)
        loop.store.seal()
        loop.record.append(line)
        loop.finished = t + 1
        touched |= set(line["clients"])
        if (t + 1) % max(1, rounds // 10) == 0:
            loop.save("benchmark", "benchmark")
            rows.append((t + 1, resident(), on_disk(loop.record.checkpoint), len(touched)))
    return rows


def main() -> None:
    """Print one table, and draw it if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--per-round", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--memory-mb", type=float, default=4)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    data = made_up(2 * args.clients)
    data = replace(data, images=np.ascontiguousarray(data.images[:, :16, :16]))
    words = [f"clients={args.clients}", f"per_round={args.per_round}", f"fleet.memory_mb={args.memory_mb}"]
    words += ["rounds=1000000", "evaluate.every=1000000", "method.epochs=1", "method.prompt_epochs=1", "device=cpu"]
    words += ["backbone.name=vit-tiny", "backbone.width=16", "backbone.depth=1", "backbone.heads=2"]
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(loop_of(words, "pfedpt", data, Path(folder) / "run"), args.rounds)
    print(
        f"{args.clients:,} clients, {args.per_round} a round, {args.memory_mb:g} MB of personal state kept in memory\n"
    )
    print("| round | clients with state | resident MB | state on disk MB |\n|--:|--:|--:|--:|")
    for number, memory, disk, touched in rows:
        print(f"| {number} | {touched:,} | {memory:.0f} | {disk:.1f} |")
    if args.plot:
        draw(rows, args.plot)


def draw(rows: list[tuple[int, float, float, int]], path: Path) -> None:
    """Plot resident memory and the state on disk against rounds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    rounds = [row[0] for row in rows]
    axes.plot(rounds, [row[1] for row in rows], label="resident memory")
    axes.plot(rounds, [row[2] for row in rows], label="personal state on disk")
    axes.set(xlabel="round", ylabel="MB", ylim=(0, None))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
