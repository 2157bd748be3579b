"""Group runs that differ only in their seed into one row, and give every row a distinct label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.results.folder.reader import RunFolder
from promptfed.results.recipe_keys import REPEATED

# Keys that a table shows anyway.
_SHOWN = {"clients", "rounds"}
_OWN_TABLES = ("data", "partition", "backbone")
# a run without [guards] equals one whose guards are all off, whatever their other settings
GUARDS_OFF = {"guards.robust": "mean", "guards.clip": "0.0", "guards.noise": "0.0", "guards.secure": "False"}
LEARNING_OFF = {
    "stop.patience": "0",
    "train.class_weights": "none",
    "train.augment": "none",
    "schedule.name": "constant",
}
OFF = GUARDS_OFF | LEARNING_OFF | {"clock.mode": "sync"}  # one without [clock] waits for all
_OPTIONAL = ("guards.", "clock.", "stop.", "train.", "schedule.")
_OF_MODE = {"clock.buffer": "fedbuff", "clock.deadline_minutes": "semi"}  # to the others these keys mean nothing


@dataclass(frozen=True)
class Setting:
    """What runs must have in common for a fair comparison."""

    dataset: str
    partition: str
    backbone: str
    clients: int

    def __str__(self) -> str:
        return f"{self.dataset}, {self.partition}, {self.backbone}, {self.clients} clients"


@dataclass(frozen=True)
class RunGroup:
    """One row: runs that differ only in their seed."""

    label: str
    setting: Setting
    runs: tuple[RunFolder, ...]

    @property
    def finished(self) -> bool:
        """Whether the runs are finished; a group never mixes finished and unfinished runs."""
        return self.runs[0].finished

    @property
    def adapts(self) -> bool:
        """Whether the scores are of models that the method adapted at the end, not of those that clients received."""
        return any(run.adapts for run in self.runs)


def group_runs(runs: Sequence[RunFolder]) -> tuple[RunGroup, ...]:
    """Pool runs that differ only in their seed, but neither finished with unfinished runs nor runs of the same seed."""
    if not runs:
        raise PromptFedError("No run to compare; give at least one run folder.")
    pools: dict[tuple[str, bool, int], list[RunFolder]] = {}
    for run in runs:
        recipe, copy = repr(sorted(flat(run.recipe).items())), 0
        while run.seed in (other.seed for other in pools.get((recipe, run.finished, copy), ())):
            copy += 1
        pools.setdefault((recipe, run.finished, copy), []).append(run)
    pooled = [tuple(sorted(pool, key=lambda run: run.seed)) for pool in pools.values()]
    firsts = [pool[0] for pool in pooled]
    datasets = _named([run.dataset for run in firsts], firsts, "data")
    partitions = _named([run.partition_name for run in firsts], firsts, "partition")
    backbones = _named([run.backbone for run in firsts], firsts, "backbone")
    clients = [run.clients for run in firsts]
    settings = list(map(Setting, datasets, partitions, backbones, clients))
    named = _named([run.method for run in firsts], firsts, "method")
    marked = [name if run.finished else f"{name} (unfinished)" for name, run in zip(named, firsts, strict=True)]
    labels = _distinct(marked, settings, firsts)
    return tuple(map(RunGroup, labels, settings, pooled))


def flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the recipe under dotted keys, without the keys in which runs of one row may differ."""
    found: dict[str, str] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        elif key not in REPEATED and prefix + key not in REPEATED:
            found[prefix + key] = str(value)
    return found


def _named(names: Sequence[str], runs: Sequence[RunFolder], part: str) -> list[str]:
    """Add to each name the settings in which its part of the recipe differs from others of the same name."""
    recipes = [OFF | flat(run.recipe) for run in runs]
    texts = []
    for name, recipe in zip(names, recipes, strict=True):
        namesakes = [other for same, other in zip(names, recipes, strict=True) if same == name]
        known = {key for other in namesakes for key in other if _belongs(key, part)}
        keys = sorted(known, key=lambda key: (key != "clock.mode", key))
        odd = [key for key in keys if _differs(key, namesakes) and recipe.get(key) != OFF.get(key)]
        odd = [key for key in odd if recipe.get("clock.mode") == _OF_MODE.get(key, recipe.get("clock.mode"))]
        shown = ", ".join(f"{key.removeprefix(part + '.')}={recipe[key]}" for key in odd[:3])
        texts.append(f"{name} ({shown})" if shown else name)
    return texts


def _differs(key: str, recipes: Sequence[Mapping[str, str]]) -> bool:
    """Return whether recipes differ in a key; settings of what a recipe need not have only among those that do."""
    values = {recipe.get(key) for recipe in recipes}
    return len(values - {None} if key.startswith(_OPTIONAL) else values) > 1


def _belongs(key: str, part: str) -> bool:
    """Return whether a key belongs to this part of the recipe; the method takes all keys of no other part."""
    table, _, last = key.rpartition(".")
    if last in _SHOWN or key == f"{part}.name":
        return False
    return table.split(".")[0] == part or (part == "method" and table.split(".")[0] not in _OWN_TABLES)


def _distinct(labels: Sequence[str], settings: Sequence[Setting], runs: Sequence[RunFolder]) -> list[str]:
    """Add the folder to labels that several rows of one setting would share."""
    rows = list(zip(labels, settings, strict=True))
    return [
        label if rows.count((label, setting)) == 1 else f"{label} [{run.path.name or run.path}]"
        for (label, setting), run in zip(rows, runs, strict=True)
    ]
