"""From a recipe to a finished run folder: `promptfed.run(...)`."""

import datetime
import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from promptfed import config, domains, figures, guards, options, tree
from promptfed.backbones import BACKBONES
from promptfed.backbones.cached import Cached
from promptfed.config import EvaluateOptions, FleetOptions, Recipe
from promptfed.data import open_dataset
from promptfed.data.batches import Pool, Shards
from promptfed.data.dataset import Dataset
from promptfed.data.features import features_of, views_of
from promptfed.data.partition import Partition, make_partition
from promptfed.data.partitioners import domain_last
from promptfed.data.split import evaluated_on
from promptfed.errors import PromptFedError
from promptfed.federation.fleet import Fleet, OneByOne, Stacked
from promptfed.federation.loop import Loop, Settings, rng_for, summarise
from promptfed.federation.sampling import choose
from promptfed.federation.store import Store
from promptfed.files import write_json, write_text
from promptfed.guards import Guards
from promptfed.guards.accountant import Accountant
from promptfed.method import Method, Task
from promptfed.progress import bar
from promptfed.record import Line, Record
from promptfed.report import compare, read_run, write_report
from promptfed.tree import Tree

PICTURES = 64  # clients whose prompts are drawn


@dataclass(frozen=True)
class Result:
    """A finished run."""

    folder: Path
    rounds: list[Line]
    summary: Line

    def table(self) -> str:
        """Return the run as a Markdown table."""
        return compare([read_run(self.folder)]).to_markdown()


def run(
    source: str | Recipe | Method,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    overrides: tuple[str, ...] = (),
    **changes: Any,
) -> Result:
    """Run a recipe, a method by name or a method of your own, and return what came out.

    Changes are recipe keys: `run("pfedpt", rounds=8, clients=6, method={"lr": 0.01})`. Without `out` the run folder is
    `runs/METHOD-DATASET-N`. With `resume` the run in that folder goes on where it stopped.
    """
    own = source if isinstance(source, Method) else None
    if isinstance(source, Recipe):
        if overrides or changes:
            raise PromptFedError("A recipe is run as it is; change it with dataclasses.replace, not by keywords.")
        recipe = config.resolve(asdict(source))
    else:
        words = [*overrides, *_words(changes)]
        name = source if isinstance(source, str) else f"{type(source).__module__}:{type(source).__qualname__}"
        recipe = single(config.load(name, words) if own is None else _own(own, name, words))
    if resume is not None:
        return go_on(Path(resume), recipe, own)
    return start(recipe, Path(out) if out is not None else default_folder(recipe), own)


def _words(changes: Mapping[str, Any]) -> list[str]:
    """Return nested changes as `table.key=value` words."""
    words = []
    for key, value in changes.items():
        inner = value.items() if isinstance(value, Mapping) else [(None, value)]
        words += [f"{key if name is None else f'{key}.{name}'}={config.literal(item)}" for name, item in inner]
    return words


def _own(method: Method, name: str, words: list[str]) -> list[Recipe]:
    """Return the recipe of a method object: its fields are the [method] table."""
    fields = {key: getattr(method, key) for key in options.hints(type(method))}
    return config.load(name, [f"method.{key}={config.literal(value)}" for key, value in fields.items()] + words)


def single(found: list[Recipe]) -> Recipe:
    """Return the one recipe, or refuse a sweep."""
    if len(found) != 1:
        raise PromptFedError(
            f"This recipe is a sweep of {len(found)} runs; only `promptfed run` without --resume takes a sweep."
        )
    return found[0]


def default_folder(recipe: Recipe, parent: Path = Path("runs")) -> Path:
    """Return the first free `runs/METHOD-DATASET-N`."""
    stem = f"{recipe.method['name']}-{recipe.data['name']}".replace("/", "_").replace(":", "_")
    return next(folder for number in range(1, 10**6) if not (folder := parent / f"{stem}-{number}").exists())


def sweep_folders(recipes: list[Recipe], out: Path | None) -> list[Path]:
    """Return a run folder per recipe: `out` itself for one, `out/KEY=VALUE` for the runs of a sweep."""
    if len(recipes) == 1:
        return [out or default_folder(recipes[0])]
    parent = out or default_folder(recipes[0])
    flat = [config.flatten(recipe) for recipe in recipes]
    varied = [key for key in flat[0] if len({repr(one.get(key)) for one in flat}) > 1]
    return [parent / ",".join(f"{key}={one.get(key)}" for key in varied).replace("/", "_") for one in flat]


def demo(seed: int, out: Path) -> list[Path]:
    """Run the three demo recipes on the same partition; a finished one is not run again, a stopped one goes on."""
    folders = []
    for name in ("local", "fedavg", "pfedpt"):
        folder = out / f"{name}-seed{seed}"
        recipe = single(config.load(f"demo/{name}", [f"seed={seed}"]))
        if (folder / "recipe.toml").exists():
            go_on(folder, recipe)
        else:
            start(recipe, folder)
        folders.append(folder)
    return folders


def start(recipe: Recipe, folder: Path, method: Method | None = None) -> Result:
    """Run a recipe in a new folder."""
    plan = prepare(recipe, method, None)
    loop = make_loop(plan, Record(folder))
    loop.store.get(0)  # a method that does not fit the images says so before anything is written
    loop.record = Record.create(folder, config.dump(recipe), environment(plan.device))
    plan.partition.save(folder / "partition.json", plan.dataset)
    return _execute(plan, loop)


def go_on(folder: Path, recipe: Recipe | None = None, method: Method | None = None) -> Result:
    """Resume the run in `folder`; a recipe given with it must be the run's own, but may ask for more rounds."""
    record = Record.reopen(folder)
    stored = single(config.load(str(folder / "recipe.toml")))
    wanted = stored if recipe is None else recipe
    if wanted.hash != stored.hash:
        raise PromptFedError(f"{folder} was run with {_difference(stored, wanted)}; resume it without that change.")
    longer = wanted.rounds > stored.rounds or _raised(stored, wanted)
    if longer and stored.newcomers:
        raise PromptFedError(f"In {folder} newcomers join after round {stored.rounds}; it cannot go on to more rounds.")
    if wanted.rounds < stored.rounds:
        raise PromptFedError(f"{folder} was asked for {stored.rounds} rounds; it can go on to more, not to fewer.")
    if not longer and (folder / "summary.json").exists():
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        record.read(summary["accuracy"]["round"])
        return Result(folder, record.rounds, summary)
    stored = replace(stored, rounds=wanted.rounds, device=wanted.device, guards=wanted.guards)
    plan = prepare(stored, method, folder / "partition.json")
    if not (folder / "partition.json").exists():
        plan.partition.save(folder / "partition.json", plan.dataset)
    return _execute(plan, make_loop(plan, record))


def read_again(source: Path, recipe: Recipe, folder: Path) -> Result:
    """Test the finished run in `source` as `recipe` would, in a new folder; only options of testing may differ."""
    stored = single(config.load(str(source / "recipe.toml")))
    theirs, ours = config.training(stored), config.training(recipe)
    if theirs.hash != ours.hash or stored.rounds != recipe.rounds:
        found = (
            f"rounds={stored.rounds}, not {recipe.rounds}" if theirs.hash == ours.hash else _difference(theirs, ours)
        )
        raise PromptFedError(f"{source} was trained with {found}; it cannot be read as that.")
    plan, old = prepare(recipe, None, source / "partition.json"), Record(source)
    state = old.state(stored.hash, plan.partition.hash)
    loop = make_loop(plan, Record(folder))
    if state is None or state["round"] != loop.settings.total:
        raise PromptFedError(f"{source} is not finished; resume it first.")
    old.read(state["round"])
    record = loop.record = Record.create(folder, config.dump(recipe), environment(plan.device))
    plan.partition.save(folder / "partition.json", plan.dataset)
    shutil.copytree(old.checkpoint, record.checkpoint, dirs_exist_ok=True)
    (record.checkpoint / "state.json").unlink()  # it is the other recipe's
    for line in old.rounds:
        record.append(line | dict.fromkeys(("loss", "received", "trained", "deployed")))
    loop.restore(state)
    record.rewind(loop.finished - 1)
    with _precision(str(recipe.fleet["precision"])):
        record.append(loop.tested_again(old.rounds[-1]))
    loop.save(recipe.hash, plan.partition.hash)
    return _execute(plan, loop)


def _raised(stored: Recipe, wanted: Recipe) -> bool:
    """Say whether the privacy budget was raised, and refuse to lower it."""
    before, now = (recipe.guards.get("budget") or math.inf for recipe in (stored, wanted))
    if now < before:
        raise PromptFedError(f"guards.budget={now:g} is less than the run began with; it can go on with more.")
    return now > before


def _difference(stored: Recipe, wanted: Recipe) -> str:
    """Name one key in which two recipes differ."""
    for key in ("seed", "clients", "per_round", "sampling", "newcomers", "join_rounds", *config.TABLES):
        here, there = getattr(stored, key), getattr(wanted, key)
        if here == there:
            continue
        if not isinstance(here, dict):
            return f"{key}={here}, not {there}"
        for name in here | there:
            if here.get(name) != there.get(name):
                return f"{key}.{name}={here.get(name)}, not {there.get(name)}"
    return "another recipe"


@dataclass(frozen=True)
class Plan:
    """A recipe with everything it names found: the method, the images, who holds which, what is learned, and where."""

    recipe: Recipe
    method: Method
    dataset: Dataset
    partition: Partition
    task: Task
    device: torch.device


def prepare(recipe: Recipe, method: Method | None, saved: Path | None) -> Plan:
    """Find everything a recipe names; who holds which images is read from `saved`, if there is such a file."""
    given = dict(recipe.data)
    dataset = open_dataset(str(given.pop("name")), **given)
    dataset = evaluated_on(dataset, recipe.evaluate["split"], recipe.seed)
    rule = dict(recipe.partition)
    if rule.get("unseen"):
        dataset = domain_last(dataset, str(rule["unseen"]))
    name = f"file:{saved}" if saved is not None and saved.exists() else str(rule.pop("name"))
    partition = make_partition(name, {} if name.startswith("file:") else rule, dataset, recipe.clients, recipe.seed)
    device = pick_device(recipe.device)
    task = make_task(recipe, dataset, device)
    if task.backbone.statistics is not None:
        mean, std = task.backbone.statistics
        dataset = replace(dataset, mean=mean, std=std)
    return Plan(recipe, method or config.build_method(recipe), dataset, partition, task, device)


def pick_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise PromptFedError(f"device={name} was asked for, but torch sees no GPU here; use device=cpu.")
    return torch.device(name)


def environment(device: torch.device) -> dict[str, object]:
    """Return what a reader needs to know about where a run happened."""
    from promptfed import __version__

    on_gpu = device.type == "cuda"
    return {
        "promptfed": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@contextmanager
def _precision(name: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def make_task(recipe: Recipe, dataset: Dataset, device: torch.device) -> Task:
    """Return what is being learned: the recipe's backbone for this data set's images and classes."""
    given = dict(recipe.backbone)
    kind = BACKBONES[str(given.pop("name"))]
    height, width = dataset.images.shape[1:3]
    fixed: dict[str, object] = {"shape": (3, height, width), "classes": len(dataset.classes)}
    if "names" in options.hints(kind):  # a text tower reads the classes' names
        fixed["names"] = dataset.classes
    backbone: Any = options.make(kind, given, "backbone", fixed)
    return Task(backbone.to(device), dataset.classes, recipe.clients - recipe.newcomers)


def make_loop(plan: Plan, record: Record) -> Loop:
    """Build the run's clients and its round loop."""
    recipe, method, dataset, task = plan.recipe, plan.method, plan.dataset, plan.task
    if method.reads == "features":
        task = replace(task, backbone=Cached(task.backbone))
    fleet_options = options.make(FleetOptions, recipe.fleet, "fleet")
    evaluate = options.make(EvaluateOptions, recipe.evaluate, "evaluate")
    pool = _pool(plan)
    shards = Shards(
        pool, plan.partition.train, plan.partition.test, recipe.seed, method.draws(task), _unseen(recipe, dataset)
    )

    def fresh(client: int) -> Tree:
        data = shards.data([client], 0, stacked=False)
        return method.init_client(task, data, rng_for(recipe.seed, client))

    store = Store(fresh, record.checkpoint, fleet_options.memory_mb)
    stacked = fleet_options.name == "stacked" or (fleet_options.name == "auto" and plan.device.type == "cuda")
    fleet: Fleet = OneByOne(method, task, shards, store)
    if stacked:
        fleet = Stacked(method, task, shards, store, fleet_options.width or recipe.per_round or recipe.clients)
    founders = recipe.clients - recipe.newcomers
    guarded = guards.build(recipe.guards, method, recipe.seed, founders, recipe.per_round or founders)
    groups = _groups(recipe, shards, guarded)
    settings = Settings(
        recipe.seed,
        _affordable(recipe, guarded, groups),
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
    return Loop(method, task, fleet, shards, store, record, settings, guarded)


def _unseen(recipe: Recipe, dataset: Dataset) -> list[NDArray[np.int64]]:
    """Return the test images of the domain that is left out, which is the last one; there may be none."""
    if not recipe.partition.get("unseen"):
        return []
    last = len(dataset.domain_names) - 1
    return [np.flatnonzero(dataset.dealt & dataset.test & (dataset.domains == last))]


def _groups(recipe: Recipe, shards: Shards, guarded: Guards) -> tuple[int, ...]:
    """Return the domain of every first client if one of each is drawn, else nothing."""
    if recipe.sampling == "uniform":
        return ()
    groups = tuple(shards.facts(range(len(shards) - recipe.newcomers))["domain"].tolist())
    if recipe.per_round != len(set(groups)):
        raise PromptFedError(
            f"sampling=one-per-domain draws a client of each domain: set per_round={len(set(groups))}, "
            f"not {recipe.per_round}."
        )
    if guarded.accountant is not None and guarded.accountant.place == "central":
        raise PromptFedError("Central noise is accounted for uniform draws only; set sampling=uniform.")
    return groups


def _affordable(recipe: Recipe, guarded: Guards, groups: tuple[int, ...]) -> int:
    """Return how many of the recipe's rounds its privacy budget allows; who takes part is known beforehand."""
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


def _pool(plan: Plan) -> Pool:
    """Return the images, or what the frozen backbone makes of them where the method reads no more than that."""
    if plan.method.reads == "pixels":
        return Pool(plan.dataset, plan.device)
    backbone = plan.task.backbone
    if not backbone.fingerprint:
        name = plan.recipe.method["name"]
        wanted = plan.method.backbone
        raise PromptFedError(f"Method {name} reads the features of a pretrained backbone; set backbone.name={wanted}.")
    features = features_of(plan.dataset, backbone, plan.device)
    views = {"views": views_of(plan.dataset, backbone, plan.device, plan.method.views)} if plan.method.views else {}
    return Pool(plan.dataset, plan.device, features, views)


def _execute(plan: Plan, loop: Loop) -> Result:
    """Run what is left of a run, then write its summary, pictures and report."""
    recipe, record = plan.recipe, loop.record
    with _precision(str(recipe.fleet["precision"])):
        _go_back(loop, recipe, plan.partition)
        with bar(f"{recipe.method['name']}", loop.settings.total) as advance:
            advance(loop.finished, "")
            loop.run(lambda: loop.save(recipe.hash, plan.partition.hash), lambda line: advance(1, _note(line)))
        about = {
            "method": recipe.method["name"],
            "dataset": recipe.data["name"],
            "partition": recipe.partition["name"],
            "backbone": recipe.backbone["name"],
            "seed": recipe.seed,
            "clients": recipe.clients,
            "rounds": recipe.rounds,
            "device": str(plan.device),
            "recipe_hash": recipe.hash,
            "partition_hash": plan.partition.hash,
        }
        if loop.guards.accountant is not None:
            about |= _spent(loop, loop.guards.accountant, recipe.rounds)
        summary = summarise(record, about, loop.adapted(), loop.after(), recipe.newcomers)
    record.finish(summary)
    _show_clients(loop, record.folder / "figures.json", plan)
    domains.show(loop, plan.dataset, record.folder)
    _draw(loop, record.folder / "pictures", plan.dataset)
    write_report([record.folder])
    return Result(record.folder, record.rounds, summary)


def _spent(loop: Loop, accountant: Accountant, asked: int) -> Line:
    """Return what every client has spent, and say why the run ended if its budget did not reach for all rounds."""
    epsilon = accountant.spent([line["clients"] for line in loop.record.rounds], loop.everyone.tolist())
    spent: Line = {"privacy": {"epsilon": epsilon, "delta": accountant.delta}}
    if loop.settings.rounds == asked:
        return spent
    sentence = (
        f"Stopped after round {loop.settings.rounds} of {asked}: one more would take a client beyond "
        f"guards.budget={accountant.budget:g}, from ε={max(epsilon):.3g} at δ={accountant.delta:g}."
    )
    sys.stderr.write(sentence + "\n")
    return spent | {"stopped": sentence}


def _go_back(loop: Loop, recipe: Recipe, partition: Partition) -> None:
    """Return to the last committed state, if there is one; rounds beyond it are made again."""
    record = loop.record
    state = record.state(recipe.hash, partition.hash)
    if state is None:
        record.rewind(0)
    else:
        loop.restore(state)
    stored = record.folder / "recipe.toml"
    if stored.read_text(encoding="utf-8") != config.dump(recipe):  # it was asked for more rounds
        for stale in ("summary.json", "figures.json"):
            (record.folder / stale).unlink(missing_ok=True)
        write_text(stored, config.dump(recipe))


def _note(line: Line) -> str:
    mean = line["received"] and line["received"]["mean"]
    return "" if mean is None else f"accuracy {100 * mean:.1f} %"


def _show_clients(loop: Loop, path: Path, plan: Plan) -> None:
    """Write figures.json: how the clients' prompts and descriptors compare with the images they hold."""
    clients = loop.everyone[: figures.MOST_CLIENTS]
    personal = tree.stack([tree.to(loop.store.get(client), loop.device) for client in clients.tolist()])
    with torch.no_grad():
        shown = loop.method.exhibits(loop.task, loop.server, clients, personal)
    facts = loop.shards.facts(clients.tolist())
    made = figures.make(
        {name: value.float().cpu().numpy() for name, value in shown.items()},
        facts["counts"].cpu().numpy(),
        facts["domain"].cpu().numpy(),
        plan.dataset.domain_names,
    )
    if made is not None:
        write_json(path, made)


def _draw(loop: Loop, folder: Path, dataset: Dataset) -> None:
    """Write the learned prompts of the first clients as PNG files."""
    mean, std = (np.array(part).reshape(3, 1, 1) for part in (dataset.mean, dataset.std))
    for client in range(min(len(loop.shards), PICTURES)):
        for name, picture in loop.method.pictures(loop.task, tree.to(loop.store.get(client), "cpu")).items():
            pixels = np.clip((picture.numpy() * std + mean) * 255, 0, 255).astype(np.uint8)
            folder.mkdir(exist_ok=True)
            Image.fromarray(pixels.transpose(1, 2, 0)).save(folder / f"{name}-client-{client:03d}.png")
