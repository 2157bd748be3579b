"""From a recipe to a finished run folder: `promptfed.run(...)`."""

import datetime
import math
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from promptfed.core import extensions, options, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_json, write_text
from promptfed.core.method import Method, adapts
from promptfed.core.progress import bar
from promptfed.data.dataset import Dataset
from promptfed.data.partition import Partition
from promptfed.federation.evaluate import Score
from promptfed.federation.guards.accountant import Accountant
from promptfed.federation.loop import Loop, summarise
from promptfed.results import figures
from promptfed.results.folder import names
from promptfed.results.folder.parts import read_summary
from promptfed.results.folder.record import Line, Record, over_sites
from promptfed.results.report import compare, read_run, write_report
from promptfed.runs import config, domains, nested
from promptfed.runs.planning import Plan, make_loop, prepare
from promptfed.runs.recipe import Recipe, first_difference

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
    if isinstance(source, type):
        raise PromptFedError(f"A method's object is run, not its class: give {source.__name__}().")
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
        words += [f"{key if name is None else f'{key}.{name}'}={nested.literal(item)}" for name, item in inner]
    return words


def _own(method: Method, name: str, words: list[str]) -> list[Recipe]:
    """Return the recipe of a method object: its fields are the [method] table."""
    fields = {key: getattr(method, key) for key in options.hints(type(method))}
    return config.load(name, [f"method.{key}={nested.literal(value)}" for key, value in fields.items()] + words)


def single(found: list[Recipe]) -> Recipe:
    """Return the one recipe, or refuse a sweep."""
    if len(found) != 1:
        raise PromptFedError(
            f"This recipe is a sweep of {len(found)} runs; here every key takes one value. On the command line, "
            "`promptfed run` without --resume takes a sweep."
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
    flat = [recipe.flatten() for recipe in recipes]
    told: list[str] = []  # another method has other fields: its name says it all
    for key in sorted(dict.fromkeys(chain(*flat)), key=lambda one: "." in one and not one.endswith(".name")):
        if _apart(flat, [*told, key]) > _apart(flat, told):
            told.append(key)
    if _apart(flat, told) < len(flat):
        raise PromptFedError("The sweep has one run twice; give every value once.")
    return [parent / ",".join(f"{key}={one.get(key)}" for key in told).replace("/", "_") for one in flat]


def _apart(flat: list[dict[str, Any]], keys: list[str]) -> int:
    """Return how many runs differ in these keys."""
    return len({repr([one.get(key) for key in keys]) for one in flat})


def demo(seed: int, out: Path) -> list[Path]:
    """Run the three demo recipes on the same partition; a finished one is not run again, a stopped one goes on."""
    folders = []
    for name in ("local", "fedavg", "pfedpt"):
        folder = out / f"{name}-seed{seed}"
        recipe = single(config.load(f"demo/{name}", [f"seed={seed}"]))
        start_or_go_on(recipe, folder)
        folders.append(folder)
    return folders


def start_or_go_on(recipe: Recipe, folder: Path) -> Result:
    """Go on with the run in `folder`, if there is one, or start it."""
    return go_on(folder, recipe) if (folder / names.RECIPE).is_file() else start(recipe, folder)


def start(recipe: Recipe, folder: Path, method: Method | None = None) -> Result:
    """Run a recipe in a new folder."""
    plan = prepare(recipe, method, None)
    record = Record(folder)
    loop = make_loop(plan, record)
    loop.store.get(0)  # a method that does not fit the images says so before anything is written
    record.begin(recipe.to_toml(), environment(plan.device))
    plan.partition.save(folder / names.PARTITION, plan.dataset)
    return _execute(plan, loop)


def go_on(folder: Path, recipe: Recipe | None = None, method: Method | None = None) -> Result:
    """Resume the run in `folder`; a recipe given with it must be the run's own, but may ask for more rounds."""
    record = Record.reopen(folder)
    if over_sites(folder):
        raise PromptFedError(f"{folder} is a run over sites; go on with promptfed sites run --resume {folder}.")
    stored = single(config.load(str(folder / names.RECIPE)))
    wanted = stored if recipe is None else recipe
    if wanted.hash != stored.hash:
        raise PromptFedError(
            f"{folder} was run with {first_difference(stored, wanted)}; resume it without that change."
        )
    longer = wanted.rounds > stored.rounds or _raised(stored, wanted)
    if longer and stored.newcomers:
        raise PromptFedError(f"In {folder} newcomers join after round {stored.rounds}; it cannot go on to more rounds.")
    if wanted.rounds < stored.rounds:
        raise PromptFedError(f"{folder} was asked for {stored.rounds} rounds; it can go on to more, not to fewer.")
    if not longer and (folder / names.SUMMARY).exists():
        summary = read_summary(folder)
        record.read(summary["accuracy"]["round"])
        return Result(folder, record.rounds, summary)
    stored = replace(
        stored,
        rounds=wanted.rounds,
        device=wanted.device,
        checkpoint_seconds=wanted.checkpoint_seconds,
        guards=wanted.guards,
    )
    plan = prepare(stored, method, folder / names.PARTITION)
    if not (folder / names.PARTITION).exists():
        plan.partition.save(folder / names.PARTITION, plan.dataset)
    return _execute(plan, make_loop(plan, record))


def read_again(source: Path, recipe: Recipe, folder: Path) -> Result:
    """Test the finished run in `source` as `recipe` would, in a new folder; only options of testing may differ."""
    stored = single(config.load(str(source / names.RECIPE)))
    theirs, ours = config.training(stored), config.training(recipe)
    if theirs.hash != ours.hash or stored.rounds != recipe.rounds:
        raise PromptFedError(f"{source} was trained with {first_difference(theirs, ours)}; it cannot be read as that.")
    plan, old = prepare(recipe, None, source / names.PARTITION), Record(source)
    state = old.state(stored.hash, plan.partition.hash)
    record = Record(folder)
    loop = make_loop(plan, record)
    if state is None or state["round"] != loop.settings.total:
        raise PromptFedError(f"{source} is not finished; resume it first.")
    old.read(state["round"])
    record.begin(recipe.to_toml(), environment(plan.device))
    plan.partition.save(folder / names.PARTITION, plan.dataset)
    shutil.copytree(old.checkpoint, record.checkpoint, dirs_exist_ok=True)
    (record.checkpoint / names.STATE).unlink()  # it is the other recipe's
    for name in loop.method.traits.keeps:
        shutil.copytree(old.kept(name, 0).parent, record.kept(name, 0).parent)
    for line in old.rounds:
        record.append(line | dict.fromkeys(("loss", "received", "trained", "deployed")))
    loop.restore(state)
    record.rewind(loop.finished - 1)
    with _precision(str(recipe.fleet["precision"])):
        record.append(loop.reevaluated(old.rounds[-1]))
    loop.save(recipe.hash, plan.partition.hash)
    return _execute(plan, loop)


def _raised(stored: Recipe, wanted: Recipe) -> bool:
    """Say whether the privacy budget was raised, and refuse to lower it."""
    before, now = (recipe.guards.get("budget") or math.inf for recipe in (stored, wanted))
    if now < before:
        raise PromptFedError(f"guards.budget={now:g} is less than the run began with; it can go on with more.")
    return now > before


def environment(device: torch.device) -> dict[str, object]:
    """Return what a reader needs to know about where a run happened."""
    from promptfed.core.version import __version__

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


def _execute(plan: Plan, loop: Loop) -> Result:
    """Run what is left of a run, then write its summary, pictures and report; nobody else writes meanwhile."""
    with loop.record.held():
        return _complete(plan, loop)


def _complete(plan: Plan, loop: Loop) -> Result:
    recipe, record = plan.recipe, loop.record
    with _precision(str(recipe.fleet["precision"])):
        _go_back(loop, recipe, plan.partition)
        with bar(f"{recipe.method['name']}", loop.settings.total) as advance:
            advance(loop.finished)
            loop.fleet.tick = lambda more, of: advance(more / of)
            loop.run(lambda: loop.save(recipe.hash, plan.partition.hash), lambda line: advance(0, _note(line)))
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
        summary = summarise(record, about, *_last_tests(loop), recipe.newcomers)
    record.finish(summary)
    _show_clients(loop, record.folder / names.FIGURES, plan)
    domains.show(loop, plan.dataset, record.folder)
    _draw(loop, record.folder / names.PICTURES, plan.dataset)
    write_report([record.folder])
    return Result(record.folder, record.rounds, summary)


def _last_tests(loop: Loop) -> tuple[Score | None, Score | None]:
    """Return the scores of the final state after the method's own adaptation, and after one more local training."""
    trainings = len(loop.everyone) * (adapts(loop.method) + loop.settings.after)
    if not trainings:
        return None, None
    with bar("last tests", trainings) as advance:
        loop.fleet.tick = lambda more, of: advance(more)
        return loop.adapted(), loop.after()


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
    stored = record.folder / names.RECIPE
    if stored.read_text(encoding="utf-8") != recipe.to_toml():  # it was asked for more rounds, or on another device
        for stale in (names.SUMMARY, names.FIGURES):
            (record.folder / stale).unlink(missing_ok=True)
        write_text(stored, recipe.to_toml())


def _note(line: Line) -> str:
    mean = line["received"] and line["received"]["mean"]
    return "" if mean is None else f"accuracy {100 * mean:.1f} %"


def _show_clients(loop: Loop, path: Path, plan: Plan) -> None:
    """Write figures.json: how the clients' prompts and descriptors compare with the images they hold."""
    clients = loop.everyone[: figures.MOST_CLIENTS]
    personal = tree.stack([tree.to(loop.store.get(client), loop.device) for client in clients.tolist()])
    with torch.no_grad():
        shown = extensions.exhibits(loop.method, loop.task, loop.server, clients, personal)
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
        for name, picture in extensions.pictures(
            loop.method, loop.task, tree.to(loop.store.get(client), "cpu")
        ).items():
            pixels = np.clip((picture.numpy() * std + mean) * 255, 0, 255).astype(np.uint8)
            folder.mkdir(exist_ok=True)
            Image.fromarray(pixels.transpose(1, 2, 0)).save(folder / names.picture_file(name, client))
