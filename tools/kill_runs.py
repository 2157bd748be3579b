"""Kill runs of several methods at random moments, resume them, and compare each with a straight run bit for bit.

    python tools/kill_runs.py [--kills 200] [--seed 0] [--methods pfedpt pfedpg fedapt relic pfedvpt fedrep]

A run is a process that gets SIGKILL at a moment drawn from how long the straight run took, again and again until it
finishes. It ends with exit code 1 if any run differs, or if a killed run cannot be resumed.
"""

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from promptfed.core.files import unsealed
from promptfed.federation.store import Store
from promptfed.runs import config, resuming

METHODS = ("pfedpt", "pfedpg", "fedapt", "relic", "pfedvpt", "fedrep")
SMALL = ("rounds=6", "checkpoint_seconds=0.02", "device=cpu", "evaluate.after=false")
FEW_REPEATS = ("rounds=3", "method.repeats=1", "method.epochs=1")
FEW_IMAGES = ("clients=4", "data.name=fashion-shops", "data.limit=4", "partition.name=iid")


def words(method: str) -> list[str]:
    """Return the words of a small run; a method that learns a word has images of its own."""
    return [*SMALL, *(FEW_REPEATS if method == "relic" else FEW_IMAGES)]


def work(method: str, folder: Path, errors: Path) -> None:
    """Start or resume the run in `folder`; what goes wrong is in `errors`."""
    torch.set_num_threads(1)
    with errors.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    resuming.start_or_resume(config.load_one(method, words(method)), folder)


def begin(method: str, folder: Path) -> Any:
    """Return a process at work on a run, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["promptfed.runs.runner", "promptfed.results.report"])
    process = context.Process(target=work, args=(method, folder, folder.with_suffix(".errors")))
    process.start()
    return process


def state(folder: Path) -> dict[str, Any]:
    """Return all that a finished run's folder says of its models and rounds, as bytes."""
    committed = unsealed((folder / "checkpoint" / "state.json").read_text())
    store = Store(lambda client: {}, folder / "checkpoint")
    store.restore(committed["personal"])
    clients = sorted({client for entry in committed["personal"].values() for client in entry["clients"]})
    lines = [unsealed(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    trees = {"server": load_file(folder / "checkpoint" / committed["server"]["file"])}
    trees |= {f"client {client}": store.get(client) for client in clients}
    trees |= {path.name: load_file(path) for path in sorted(folder.glob("words/*.safetensors"))}
    bits = {
        f"{name}, {key}": (value.dtype, value.shape, value.contiguous().view(torch.uint8).numpy().tobytes())
        for name, tree in trees.items()
        for key, value in tree.items()
    }
    return bits | {"rounds": [{key: value for key, value in line.items() if key != "seconds"} for line in lines]}


def campaign(method: str, kills: int, rng: random.Random, place: Path) -> tuple[int, int, list[str]]:
    """Kill runs of a method until there were so many kills; return them, the runs, and what went wrong."""
    straight = place / "straight"
    begin(method, straight).join()  # the first process imports what the others are forked with
    again, began = place / "timed", time.monotonic()
    begin(method, again).join()
    seconds, wanted, done, runs, wrong = time.monotonic() - began, state(straight), 0, 0, list[str]()
    while done < kills:
        runs, folder = runs + 1, place / f"killed-{runs}"
        while True:
            process = begin(method, folder)
            process.join(rng.uniform(0, seconds) if done < kills else None)
            if process.exitcode is not None:
                break
            process.kill()
            process.join()
            done += 1
        if process.exitcode:
            wrong.append(f"{method}, run {runs}: {folder.with_suffix('.errors').read_text()[-500:]}")
            continue
        found = state(folder)
        wrong += [f"{method}, run {runs}: {key} differs" for key in wanted if found.get(key) != wanted[key]]
    return done, runs, wrong


def main() -> int:
    """Run the campaign and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    given = parser.parse_args()
    rng, total, wrong = random.Random(given.seed), 0, list[str]()
    with tempfile.TemporaryDirectory() as place:
        for method in given.methods:
            folder = Path(place) / method
            folder.mkdir()
            kills, runs, faults = campaign(method, -(-given.kills // len(given.methods)), rng, folder)
            total, wrong = total + kills, wrong + faults
            sys.stdout.write(f"{method}: {kills} kills, {runs} runs, {len(faults)} faults\n")
            sys.stdout.flush()
    sys.stdout.write("".join(f"{fault}\n" for fault in wrong) + f"{total} kills, {len(wrong)} faults\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
