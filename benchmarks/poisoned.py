"""Poisoned sites: some clients send their update reversed and ten times as long; what each robust rule makes of it.

    python benchmarks/poisoned.py [--poisoned 2] [--factor -10] [KEY=VALUE ...]

FedAvg on the embedded data set, ten clients that each have images of all kinds. Keys change the recipe, for example
partition.name=dirichlet partition.alpha=0.5. Accuracies are the mean over the honest clients after the last round.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task
from promptfed.core.protocols import Data
from promptfed.core.tree import Tree
from promptfed.data import open_dataset
from promptfed.data.partition import make_partition
from promptfed.federation.loop import Loop
from promptfed.methods.fedavg import FedAvg
from promptfed.results.folder.record import Record
from promptfed.runs import config, planning

RECIPE = [
    *("clients=10", "rounds=12", "partition.name=iid", "evaluate.every=1000", "evaluate.after=false"),
    *("method.lr=0.1", "method.epochs=1", "data.limit=30", "device=cpu"),
]
RULES = {
    "mean": [],
    "trimmed-mean": ["guards.robust=trimmed-mean", "guards.trim=0.2"],
    "median": ["guards.robust=median"],
    "krum": ["guards.robust=krum", "guards.byzantine=2"],
    "krum, keep 6": ["guards.robust=krum", "guards.byzantine=2", "guards.keep=6"],
    "norm-bound": ["guards.robust=norm-bound"],
}


@dataclass(frozen=True)
class Poisoned(FedAvg):
    """FedAvg in which the first clients send `factor` times the change they should."""

    name: ClassVar[str] = "poisoned"

    poisoned: int = 2
    factor: float = -10.0

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Train as FedAvg does, then scale the poisoned clients' change."""
        up, personal = super().fit(task, down, personal, data)
        who = data.facts["client"]
        times = torch.where(who < self.poisoned, self.factor, 1.0)

        def sent(name: str) -> torch.Tensor:
            wide = times.reshape(*who.shape, *(1,) * (up[name].ndim - who.ndim))
            return torch.where(wide == 1, up[name], down[name] + wide * (up[name] - down[name]))

        return {name: sent(name) for name in up}, personal


def poisoned_loop(words: Sequence[str], poisoned: int, factor: float, folder: Path) -> Loop:
    """Return the round loop of a FedAvg recipe some of whose clients are poisoned."""
    recipe = config.load_one("frames/fedavg", list(words))
    given = {key: value for key, value in recipe.method.items() if key != "name"}
    method = Poisoned(**given, poisoned=poisoned, factor=factor)
    dataset = open_dataset(**recipe.data)
    rule = {key: value for key, value in recipe.partition.items() if key != "name"}
    partition = make_partition(recipe.partition["name"], rule, dataset, recipe.clients, recipe.seed)
    device = planning.pick_device(recipe.device)
    task = planning.make_task(recipe, dataset.sides, dataset.classes, device)
    plan = planning.Plan(recipe, method, dataset, partition, task, device)
    return planning.make_loop(plan, Record.create(folder, recipe.to_toml(), {}))


def accuracy(words: Sequence[str], poisoned: int, factor: float = -10.0, honest: int = 2) -> float | None:
    """Return the mean accuracy of the clients from `honest` on after the last round, or None if training diverged."""
    with tempfile.TemporaryDirectory() as folder:
        loop = poisoned_loop(words, poisoned, factor, Path(folder) / "run")
        try:
            loop.run(lambda: None, lambda line: None)
        except PromptFedError:
            return None
    each = loop.record.rounds[-1]["received"]["per_client"]
    known = [value for value in each[honest:] if value is not None]
    return float(sum(known) / len(known))


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--poisoned", type=int, default=2)
    parser.add_argument("--factor", type=float, default=-10.0)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    print(f"{args.poisoned} of 10 clients send {args.factor:g} times their change\n")
    print("| guards.robust | none poisoned | poisoned |\n|---|--:|--:|")
    for rule, words in RULES.items():
        recipe = [*RECIPE, *args.keys, *words]
        found = [accuracy(recipe, count, args.factor, args.poisoned) for count in (0, args.poisoned)]
        shown = ("diverged" if value is None else f"{100 * value:.1f} %" for value in found)
        print(f"| {rule} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
