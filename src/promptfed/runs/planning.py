"""From a recipe to everything it names: the method, the images, the clients, and the round loop, ready to run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from promptfed.backbones import BACKBONES
from promptfed.backbones.cached import behind
from promptfed.backbones.digest import digest_weights
from promptfed.core import extensions, options
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task, dense
from promptfed.core.ranks import ALONE, Ranks
from promptfed.core.tree import Tree
from promptfed.data import open_dataset
from promptfed.data.batches import Pool, Shards
from promptfed.data.dataset import Dataset
from promptfed.data.digest import digest_images
from promptfed.data.domain_partitioners import domain_last
from promptfed.data.features import constants_of, features_of, patches_of, views_of
from promptfed.data.partition import POOLED, Partition, make_partition
from promptfed.data.selection import of_other_classes
from promptfed.data.split import evaluated_on, validated
from promptfed.federation import guards
from promptfed.federation.beyond import Beyond
from promptfed.federation.fleet import Fleet, OneByOne, Stacked
from promptfed.federation.guards import Guards
from promptfed.federation.loop import Loop, Settings, rng_for
from promptfed.federation.ranked import EVERYWHERE, RankedFleet, deal
from promptfed.federation.sampling import choose
from promptfed.federation.store import Store
from promptfed.federation.tested_sets import sets_of
from promptfed.results.folder.record import Record
from promptfed.runs import config, memory
from promptfed.runs.footprint import require_room
from promptfed.runs.learning import held_out, stopping_of, training_of
from promptfed.runs.recipe import EvaluateOptions, FleetOptions, Recipe
from promptfed.runs.selecting import own_keys, selected, selected_each

IMAGES, WEIGHTS = "images", "frozen weights"  # what a checkpoint has digests of


@dataclass(frozen=True)
class Plan:
    """Everything a recipe names: its method, its images, which client holds which, the task, and the device."""

    recipe: Recipe
    method: Method
    dataset: Dataset
    partition: Partition
    task: Task
    device: torch.device
    ranks: Ranks = ALONE


def prepare(
    recipe: Recipe, method: Method | None, saved: Path | None, task: Task | None = None, ranks: Ranks = ALONE
) -> Plan:
    """Find everything a recipe names; the partition is read from `saved`, if there is such a file.

    A method or a task that is given is used as it is.
    """
    with ranks.in_turn():  # who comes second finds what the first has read, and maps it
        dataset = _find_images(recipe)
    partition = _divide(recipe, dataset, saved)
    device = pick_device(recipe.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    task = task or make_task(recipe, dataset.sides, dataset.classes, device)
    _check_size(recipe, task)
    mean, std = task.backbone.statistics or (dataset.mean, dataset.std)
    dataset = replace(dataset, mean=mean, std=std)
    return Plan(recipe, method or config.build_method(recipe), dataset, partition, task, device, ranks)


def digests(plan: Plan) -> dict[str, str]:
    """Return digests of what a run must not be resumed without: its images, and its backbone's frozen weights."""
    found = {IMAGES: digest_images(plan.dataset), WEIGHTS: digest_weights(plan.task.backbone)}
    return {what: digest for what, digest in found.items() if digest}


def _find_images(recipe: Recipe) -> Dataset:
    """Load the recipe's data set with its evaluation split; a domain that is left out becomes the last one."""
    given, unseen = own_keys(recipe.data), recipe.partition.get("unseen")
    dataset = open_dataset(str(given.pop("name")), **given)
    dataset = evaluated_on(dataset, "test" if _pooled(recipe) else recipe.evaluate["split"], recipe.seed)
    dataset = selected(dataset, recipe)
    return domain_last(dataset, str(unseen)) if unseen else dataset


def _divide(recipe: Recipe, dataset: Dataset, saved: Path | None) -> Partition:
    """Read the partition from `saved`, or divide the images as the recipe says."""
    rule = dict(recipe.partition)
    again = saved is not None and saved.exists()
    name = f"file:{saved}" if again else str(rule.pop("name"))
    partition = make_partition(name, {} if name.startswith("file:") else rule, dataset, recipe.clients, recipe.seed)
    if _pooled(recipe) and recipe.evaluate["split"] == "val" and not again:
        partition = validated(partition, dataset, recipe.seed)
    return partition if again else selected_each(partition, dataset, recipe)


def _pooled(recipe: Recipe) -> bool:
    """Say whether the partition pools training and test images, and splits each client's own."""
    return str(recipe.partition["name"]).startswith(POOLED)


def _check_size(recipe: Recipe, task: Task) -> None:
    """Refuse images that are smaller than the pictures a generative backbone draws."""
    size, side = recipe.data.get("size"), getattr(task.backbone, "side", None)
    if isinstance(size, int) and isinstance(side, int) and size < side:
        raise PromptFedError(
            f"data.size={size} is less than the {side} × {side} pixels that the backbone draws; set data.size={side}."
        )


def pick_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise PromptFedError(f"device={name} needs a GPU, but torch sees none here; use device=cpu.")
    return torch.device(name)


def make_task(recipe: Recipe, sides: tuple[int, int], classes: tuple[str, ...], device: torch.device) -> Task:
    """Return the task: the recipe's backbone for images of this height and width, and these classes."""
    given = dict(recipe.backbone)
    kind = BACKBONES[str(given.pop("name"))]
    fixed: dict[str, object] = {"shape": (3, *sides), "classes": len(classes)}
    if "names" in options.hints(kind):  # a text tower reads the classes' names
        fixed["names"] = classes
    backbone: Any = options.make(kind, given, "backbone", fixed)
    return Task(backbone.to(device), classes, recipe.clients - recipe.newcomers, recipe.rounds, recipe.seed)


def task_for(method: Method, task: Task) -> Task:
    """Return the task as the method sees it: with features computed once, if it reads those."""
    return replace(task, backbone=behind(task.backbone, method.traits.reads))


def make_loop(plan: Plan, record: Record, *, secret_draw: bool = True) -> Loop:
    """Build the run's clients and its round loop; over sites, who all know the seed, the draw is not secret."""
    recipe, method, dataset, task = plan.recipe, plan.method, plan.dataset, task_for(plan.method, plan.task)
    fleet_options = options.make(FleetOptions, recipe.fleet, "fleet")
    evaluate = options.make(EvaluateOptions, recipe.evaluate, "evaluate")
    pool = pool_of(plan)
    partition, validation = held_out(recipe, plan.partition, dataset)

    def shards_of(dealt: Partition) -> Shards:
        draws, unseen = method.draws(task), _unseen(recipe, dataset)
        return Shards(pool, dealt.train, dealt.test, recipe.seed, draws, unseen, training_of(recipe))

    shards = shards_of(partition)

    def fresh(client: int) -> Tree:
        data = shards.data([client], 0, stacked=False)
        return method.init_client(task, data, rng_for(recipe.seed, client))

    stacked = fleet_options.name == "stacked" or (fleet_options.name == "auto" and plan.device.type == "cuda")
    width = fleet_options.width or recipe.per_round or recipe.clients
    together = (fleet_options.width or 1) if stacked else 1
    ranks, owner = plan.ranks, _owner(plan, partition, fresh, together)
    store = Store(fresh, record.checkpoint, fleet_options.memory_mb, ranks, owner)

    def fleet_of(own: Shards) -> Fleet:
        fleet = Stacked(method, task, own, store, width) if stacked else OneByOne(method, task, own, store)
        return (
            fleet if ranks.size == 1 else RankedFleet(fleet, ranks, method, own, owner, together, _everywhere(recipe))
        )

    if memory.grown(recipe):
        require_room(method, task, shards, width if stacked else 1)
    founders = recipe.clients - recipe.newcomers
    guarded = guards.build(
        recipe.guards, method, recipe.seed, founders, recipe.per_round or founders, secret_draw=secret_draw
    )
    groups = _groups(recipe, shards, guarded)
    settings = _settings(recipe, evaluate, dataset, groups, affordable(recipe, guarded, groups))
    return Loop(
        method,
        task,
        fleet_of(shards),
        shards,
        store,
        record,
        settings,
        guarded,
        stopping_of(recipe),
        fleet_of(shards_of(validation)) if validation else None,
        Beyond.of(sets_of(evaluate.sets), task, partition.test, dataset.others, of_other_classes(dataset)),
        ranks,
    )


def _settings(
    recipe: Recipe, evaluate: EvaluateOptions, dataset: Dataset, groups: tuple[int, ...], rounds: int
) -> Settings:
    return Settings(
        recipe.seed,
        rounds,
        recipe.per_round,
        recipe.newcomers,
        recipe.join_rounds,
        evaluate.every,
        evaluate.personal,
        evaluate.after,
        recipe.checkpoint_seconds,
        dataset.domain_names,
        groups,
    )


def _owner(plan: Plan, partition: Partition, fresh: Callable[[int], Tree], together: int) -> list[int]:
    """Return which process holds each client's personal tree; nothing if clients keep none, or there is one process.

    Newcomers, who have rounds of their own, are dealt apart.
    """
    if plan.ranks.size == 1 or not fresh(0):
        return []
    sizes, founders = [len(rows) for rows in partition.train], plan.recipe.clients - plan.recipe.newcomers
    return [owner for some in (sizes[:founders], sizes[founders:]) for owner in deal(some, plan.ranks.size, together)]


def _everywhere(recipe: Recipe) -> float:
    """Return the bytes of a round's answers up to which every process aggregates; secret noise is drawn only once."""
    return -1 if recipe.guards.get("entropy") == "system" else EVERYWHERE


def _unseen(recipe: Recipe, dataset: Dataset) -> list[NDArray[np.int64]]:
    """Return the test images of the domain that is left out, the last one, if the recipe leaves one out."""
    if not recipe.partition.get("unseen"):
        return []
    last = len(dataset.domain_names) - 1
    return [np.flatnonzero(dataset.dealt & dataset.test & (dataset.domains == last))]


def _groups(recipe: Recipe, shards: Shards, guarded: Guards) -> tuple[int, ...]:
    """Return the domain of every founding client, if one client per domain is sampled."""
    if recipe.sampling == "uniform":
        return ()
    groups = tuple(shards.facts(range(len(shards) - recipe.newcomers))["domain"].tolist())
    if recipe.per_round != len(set(groups)):
        raise PromptFedError(
            f"sampling=one-per-domain samples one client of each domain: set per_round={len(set(groups))}, "
            f"not {recipe.per_round}."
        )
    if guarded.accountant is not None and guarded.accountant.place == "central":
        raise PromptFedError("The privacy of central noise is known only for uniform sampling; set sampling=uniform.")
    return groups


def affordable(recipe: Recipe, guarded: Guards, groups: tuple[int, ...] = ()) -> int:
    """Return how many of the recipe's rounds its privacy budget allows; participants are known in advance."""
    accountant, founders = guarded.accountant, recipe.clients - recipe.newcomers
    if accountant is None or not accountant.budget:
        return recipe.rounds
    drawn = (choose(recipe.seed, t, founders, recipe.per_round, groups).tolist() for t in range(recipe.rounds))
    allowed = accountant.affordable(drawn)
    if not allowed:
        raise PromptFedError(f"guards.budget={accountant.budget:g} allows no round; raise it, or guards.noise.")
    if recipe.newcomers and recipe.join_rounds > (most := accountant.most(founders)):
        raise PromptFedError(f"guards.budget={accountant.budget:g} allows newcomers {most} rounds; lower join_rounds.")
    return allowed


def pool_of(plan: Plan) -> Pool:
    """Return the images, or their features if the method reads those of a frozen backbone, and what belongs to them."""
    data, device, traits, backbone = plan.dataset, plan.device, plan.method.traits, plan.task.backbone
    extras: Tree = {}
    if isinstance(plan.method, extensions.HasConstants):
        compute = partial(extensions.constants, plan.method, plan.task)
        extras = constants_of(data, device, plan.recipe.seed, compute)
    if traits.reads == "pixels":
        return Pool(data, device, extras=extras)
    if not backbone.fingerprint:
        name, wanted = plan.recipe.method["name"], plan.method.backbone
        raise PromptFedError(f"Method {name} reads the features of a pretrained backbone; set backbone.name={wanted}.")
    if traits.reads == "patches":
        return Pool(data, device, patches_of(data, dense(plan.task), device, plan.ranks), extras)
    features = features_of(data, backbone, device, plan.ranks)
    if traits.views:
        extras["views"] = views_of(data, backbone, device, traits.views, plan.ranks)
    return Pool(data, device, features, extras)
