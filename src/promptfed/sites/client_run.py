"""One client's side of a run: the recipe's method on this machine's own data. The coordinator's uses blank images."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task
from promptfed.core.tree import Tree
from promptfed.data import open_dataset
from promptfed.data.batches import Shards
from promptfed.data.dataset import Dataset
from promptfed.data.partition import Partition
from promptfed.data.split import evaluated_on
from promptfed.federation.fleet import OneByOne
from promptfed.federation.guards import Guards
from promptfed.federation.loop import rng_for
from promptfed.federation.store import Store
from promptfed.results.folder.record import Record
from promptfed.runs import config, nested
from promptfed.runs.config import Recipe
from promptfed.runs.planning import Plan, digests, make_loop, make_task, pick_device
from promptfed.runs.selecting import own_keys, selected


@dataclass(frozen=True)
class ClientRun:
    """The run as client number `client` sees it."""

    recipe: Recipe
    client: int
    method: Method
    task: Task
    shards: Shards
    store: Store
    fleet: OneByOne
    dataset: Dataset
    guards: Guards
    rounds: int  # of the recipe, or fewer if its privacy budget ends earlier
    fresh: Tree  # the personal tree before the first round
    sources: dict[str, str]  # digests of its images and of the frozen weights


def read_recipe(text: str, where: str) -> Recipe:
    """Return the recipe in `text`, which is one run, not a sweep."""
    try:
        content = nested.parse(text)
    except ValueError as error:
        raise PromptFedError(f"The recipe of {where} is not valid TOML: {error}.") from error
    return config.single(config.expand(content, (), where))


def own_data(source: str, recipe: Recipe) -> Dataset:
    """Return this machine's data: a folder of photographs, a .csv or .npz file, or a data set by name.

    The options of the recipe's data set count where it is of the same kind.
    """
    name = source
    if ":" not in name and Path(name).expanduser().is_dir():
        name = f"folder:{name}"
    elif ":" not in name and name.endswith((".npz", ".csv")):
        name = f"{name[-3:]}:{name}"
    options = own_keys(recipe.data)
    same = str(options.pop("name")).partition(":")[0] == name.partition(":")[0]
    dataset = open_dataset(name, **(options if same else {}))
    return selected(evaluated_on(dataset, recipe.evaluate["split"], recipe.seed), recipe)


def blank_dataset(shape: tuple[int, int], classes: tuple[str, ...]) -> Dataset:
    """Return two black images, enough to learn the form of a method's answers."""
    return Dataset(
        name="blank",
        images=np.zeros((2, *shape, 3), np.uint8),
        labels=np.array([0, len(classes) - 1], np.int64),
        test=np.zeros(2, np.bool_),
        classes=classes,
        domains=np.zeros(2, np.int64),
        domain_names=("blank",),
    )


def relabelled(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """Return `dataset` with its labels counted in the federation's classes."""
    if dataset.classes == classes:
        return dataset
    foreign = [name for name in dataset.classes if name not in classes]
    if foreign:
        raise PromptFedError(f'Class "{foreign[0]}" of {dataset.name} is not a class of the federation.')
    order = np.array([classes.index(name) for name in dataset.classes], np.int64)
    return replace(dataset, labels=order[dataset.labels], classes=classes)


def build_client_run(recipe: Recipe, dataset: Dataset, client: int, device: str, folder: Path) -> ClientRun:
    """Build the run's method, backbone and batches for the client whose data is all of `dataset`.

    Every client number has the same images here; only this client's own number is ever used.
    """
    plan = _plan(recipe, dataset, client, device)
    method, (train,), (test,) = plan.method, plan.partition.train, plan.partition.test
    alone = make_loop(plan, Record(folder), secret_draw=False)
    count = recipe.clients
    shared = alone.shards
    shards = Shards(shared.pool, [train] * count, [test] * count, recipe.seed, shared.draws, training=shared.training)

    def begin(number: int) -> Tree:
        return method.init_client(alone.task, shards.data([number], 0, stacked=False), rng_for(recipe.seed, number))

    store = Store(begin, folder / "unused")
    return ClientRun(
        recipe=recipe,
        client=client,
        method=method,
        task=alone.task,
        shards=shards,
        store=store,
        fleet=OneByOne(method, alone.task, shards, store),
        dataset=plan.dataset,
        guards=alone.guards,
        rounds=alone.settings.rounds,
        fresh=begin(client),
        sources=digests(plan),
    )


def _plan(recipe: Recipe, dataset: Dataset, client: int, device: str) -> Plan:
    """Return the plan of a run whose only client has all of `dataset`."""
    # a site is one domain: the origin of its images is private
    dataset = replace(
        dataset,
        domains=np.full(len(dataset), client, np.int64),
        domain_names=tuple(map(str, range(recipe.clients))),
    )
    where = pick_device(device)
    task = make_task(recipe, dataset.sides, dataset.classes, where)
    if task.backbone.statistics is not None:
        mean, std = task.backbone.statistics
        dataset = replace(dataset, mean=mean, std=std)
    train, test = (np.flatnonzero(dataset.dealt & part) for part in (~dataset.test, dataset.test))
    return Plan(recipe, config.build_method(recipe), dataset, Partition("site", (train,), (test,)), task, where)
