"""A recipe as a frozen value: every key of a run, its fingerprint, its text, and how two recipes differ."""

import hashlib
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Literal

from promptfed.core.options import Count, NonNegative, Whole
from promptfed.core.schedule import PACED
from promptfed.federation import guard_options
from promptfed.results.recipe_keys import PLACE
from promptfed.runs import nested, registry
from promptfed.runs.nested import NestedTable

PROMPTED = f"+{registry.WRAPPER}"  # ends the name of a method whose images have a visual prompt


@dataclass(frozen=True)
class FleetOptions:
    """How clients are simulated: `auto` stacks them on a GPU and takes them one by one on a CPU."""

    name: Literal["auto", "stacked", "one-by-one"] = "auto"
    width: Whole = 0  # clients stacked at a time; 0: all of a round
    memory_mb: NonNegative = 1024.0  # personal state kept in memory before it spills to disk
    precision: Literal["tf32", "fp32"] = "tf32"  # of matrix products on a GPU


@dataclass(frozen=True)
class EvaluateOptions:
    """When clients are evaluated."""

    every: Count = 1  # rounds between evaluations; the last round is always evaluated
    personal: bool = True  # false: before the last round, evaluate only the server's own model
    after: bool = True  # at the end, also evaluate every client after one more local training
    split: Literal["test", "val"] = "test"  # val: choose settings on validation images, never on test images
    sets: str = ""  # what else every client's model is tested on: own-names, neighbour, base, novel, joined by "+"
    elsewhere: str = ""  # data sets, joined by "+", that the server's own model is tested on at the end, by class names
    metric: Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc", "ece"] = "accuracy"  # what comes first


@dataclass(frozen=True)
class Recipe:
    """Everything a run depends on. Tables hold a `name` and that thing's own fields."""

    seed: Whole = 0
    rounds: Count = 10
    clients: Count = 20
    per_round: Whole = 0  # clients that take part in a round; 0: all
    sampling: Literal["uniform", "one-per-domain"] = "uniform"  # how they are drawn
    newcomers: Whole = 0  # clients that join after the last round
    join_rounds: Count = 5  # rounds for newcomers only, if there are any
    device: str = "auto"
    checkpoint_seconds: NonNegative = 5.0
    method: NestedTable = field(default_factory=lambda: {"name": "pfedpt"})
    data: NestedTable = field(default_factory=lambda: {"name": "fashion-shops", "limit": 50})
    partition: NestedTable = field(default_factory=lambda: {"name": "pathological", "classes_per_client": 5})
    prompt: NestedTable = field(default_factory=dict)  # a visual prompt around the method's images; empty: none
    backbone: NestedTable = field(default_factory=dict)  # empty: the method's default
    schedule: NestedTable = field(default_factory=dict)  # of all learning rates over the rounds; empty: constant
    train: NestedTable = field(default_factory=dict)  # what is done to training images; empty: nothing
    stop: NestedTable = field(default_factory=dict)  # when validation images gain no more; empty: after the last round
    fleet: NestedTable = field(default_factory=lambda: {"name": "auto"})
    evaluate: NestedTable = field(default_factory=dict)
    guards: NestedTable = field(default_factory=dict)  # empty: none
    clock: NestedTable = field(default_factory=dict)  # of simulated links and devices; empty: none

    def flatten(self) -> NestedTable:
        """Return all values under dotted keys."""
        return {".".join(path): value for path, value in nested.leaves(asdict(self))}

    def to_toml(self) -> str:
        """Return the text of recipe.toml."""
        return nested.to_toml(asdict(self))

    @property
    def own_images(self) -> bool:
        """Return whether the images are a user's own, from a folder or a file, and so may be private."""
        return ":" in str(self.data.get("name", ""))

    @property
    def hash(self) -> str:
        """Return the fingerprint of all that decides the numbers; the place of the run does not.

        Nor does its length, unless the learning rates fall towards the last round.
        """
        rounds = self.rounds if self.schedule.get("name") in PACED else 1
        content = asdict(self) | PLACE | {"rounds": rounds, "guards": guard_options.deciding(self.guards)}
        owners = "", str(self.method.get("name")).removesuffix(PROMPTED), self.partition.get("name")
        for key, default in ADDED_KEYS.items():
            owner, _, path = key.rpartition(":")
            table, _, name = path.rpartition(".")
            place = content[table] if table else content
            if owner in owners and place.get(name) == default:
                del place[name]
        return "sha256:" + hashlib.sha256(nested.to_toml(content).encode()).hexdigest()


_WORDS = ("relic", "fedti", "fedcpw", "fedproto", "ti-local", "ti-central")
_WORD_KEYS = {"branch_lr": 0.0, "weight_decay": 0.0, "bias": True, "visual": "given"}
# Keys added after the first runs: at these values a recipe keeps the fingerprint it had without them. "NAME:KEY" is
# a key that was added to one method or one partition only.
ADDED_KEYS = {
    "sampling": "uniform",
    "data.only": "",
    "data.split": "fedbn",
    "data.validate": True,
    "partition.each": 0,
    "partition.repeat": False,
    "partition.unseen": "",
    "partition.draw": "seed",
    "pfllib-iid:partition.balanced": False,
    "domain-dirichlet:partition.balanced": False,
    "evaluate.metric": "accuracy",
    "method.tune_epochs": 0,
    "fedavg:method.tune": "all",
    "method.test_prompt": "own",
    **{f"{name}:method.rest": "sum" for name in ("fedapt", "promptfl", "fedclip")},
    **{f"{name}:method.intra": "kl" for name in ("promptfl", "fedclip")},
    **{f"{name}:method.{key}": default for name in _WORDS for key, default in _WORD_KEYS.items()},
    "pfedpg:method.descriptors": "unit",
    "per-fedavg:method.drop_last": False,
    "fedrep:method.drop_last": False,
    "fedbabu:method.drop_last": False,
}
DEFAULTS = {
    part: table["name"] for part, table in asdict(Recipe()).items() if isinstance(table, dict) and "name" in table
}
LEARNING = ("schedule", "train", "stop")  # how a run learns, whatever its method
TABLES = ("method", "prompt", "data", "partition", "backbone", *LEARNING, "fleet", "evaluate", "guards", "clock")


def differences(one: Recipe, other: Recipe, ignored: Collection[str] = PLACE) -> dict[str, tuple[object, object]]:
    """Return the dotted keys in which two recipes differ, with both values; a key that one lacks has None there."""
    here, there = one.flatten(), other.flatten()
    keys = [key for key in here | there if key not in ignored and here.get(key) != there.get(key)]
    return {key: (here.get(key), there.get(key)) for key in keys}


def first_difference(stored: Recipe, wanted: Recipe) -> str:
    """Name a key that keeps `stored` from being `wanted`, as "KEY=STORED, not WANTED"; if none does, the length."""
    found = differences(stored, wanted, {*PLACE, "rounds"}) if stored.hash != wanted.hash else {}
    key, (here, there) = next(iter(found.items()), ("rounds", (stored.rounds, wanted.rounds)))
    return f"{key}={here}, not {there}"
