"""What a trained model predicts for images: a site's model, a client's in a simulated run, or one of a bundle."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from promptfed.analysis.bundle.contents import ABOUT, Bundle, open_bundle, read_client
from promptfed.backbones.cached import behind, seen
from promptfed.backbones.pretrained import fingerprint
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.extensions import LearnsWord
from promptfed.core.method import Method, Task
from promptfed.core.printable import printable
from promptfed.core.protocols import Backbone, Batch
from promptfed.core.tree import Tree
from promptfed.data.batches import ClientData, Pool
from promptfed.data.dataset import Color, Dataset, Images
from promptfed.data.photos import decode
from promptfed.results.folder import names
from promptfed.results.folder.record import over_sites
from promptfed.runs import config
from promptfed.runs.config import Recipe
from promptfed.runs.finished import FinishedRun, open_run
from promptfed.runs.planning import make_task, pick_device
from promptfed.runs.site_model import MODEL, read_model

BATCH = 64


@dataclass(frozen=True)
class Model:
    """A model ready to predict, with the draws and facts of its client as in testing."""

    method: Method
    task: Task  # with the whole backbone, whatever the method read in training
    params: Tree
    shape: tuple[int, int]
    mean: Color
    std: Color
    facts: Tree
    seed: int
    round: int
    device: torch.device
    ready: bool = False  # whether `prepare` has been done

    def batch(self, images: Images) -> tuple[Task, Batch]:
        """Return images [N, H, W, 3] as its client sees them in testing, and the task as its method does."""
        task, backbone = self.task, self.task.backbone
        pool = Pool(_dataset(images, task.classes, self.mean, self.std), self.device)
        if (reads := self.method.traits.reads) != "pixels":
            features = seen(backbone, reads, pool.images(torch.arange(len(images), device=self.device)))
            pool = Pool(_dataset(images, task.classes), self.device, features)
            task = replace(task, backbone=behind(backbone, reads), captured={})
        batch = next(iter(_data(self, task, pool, len(images)).batches("test", size=len(images), ordered=True)))
        return task, tree.drop(batch, ["y"])

    def prepared(self, task: Task) -> Tree:
        """Return its parameters with all that can be computed before there are images."""
        return self.params if self.ready else self.method.prepare(task, self.params)


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one image, with their probabilities, likeliest first."""

    file: Path
    classes: tuple[tuple[str, float], ...]


def load(source: Path, client: int | None = None, device: str = "auto") -> Model:
    """Return the model at `source`: a site's, or a client's in a bundle or in a simulated run."""
    folder = find_folder(source, device)
    if (folder / ABOUT).is_file():
        return _bundled_model(folder, client, device)
    if (folder / names.RECIPE).is_file():
        return client_model(open_classifier(folder, device), client)
    if client is not None:
        raise PromptFedError(f"{folder} has the model of one site; leave out --client.")
    return site_model(folder, device)


def find_folder(source: Path, device: str) -> Path:
    """Return the folder of the bundle, the run or the site's model at `source`, or say why it has no model."""
    config.check_device(device)
    if not source.exists():
        near = sorted(source.parent.glob(f"{source.name}-*"))
        hint = f'; did you mean "{near[0]}"?' if near else "."
        raise PromptFedError(f"There is no model {source}{hint}")
    folder = source if source.is_dir() else source.parent
    if source.is_file() and source.name != MODEL:
        raise PromptFedError(f"{source} is not a model; give {MODEL}, a bundle or a run folder.")
    if over_sites(folder):
        raise PromptFedError(f"{folder} is the coordinator's side of a run; the models are at the sites.")
    if not any((folder / name).is_file() for name in (ABOUT, names.RECIPE, MODEL)):
        started = any((folder / name).exists() for name in ("versions", "once.safetensors"))
        what = "is not finished: it has no" if started else f"has no model: neither {ABOUT} nor recipe.toml nor"
        raise PromptFedError(f"{folder} {what} {MODEL}.")
    return folder


def open_classifier(folder: Path, device: str) -> FinishedRun:
    """Open a finished run whose method knows classes."""
    run = open_run(folder, device)
    _check_classifies(folder, run.recipe, run.method)
    return run


def _check_classifies(folder: Path, recipe: Recipe, method: Method) -> None:
    """Refuse a run whose method knows no classes."""
    if isinstance(method, LearnsWord):
        name = recipe.method["name"]
        raise PromptFedError(
            f"{folder} is a run of {name}, which learns a word, not classes; use promptfed generate or export."
        )


def _bundled_model(folder: Path, client: int | None, device: str) -> Model:
    """Return the model of a bundle's client; a bundle of one client needs no number."""
    bundle, place = open_bundle(folder), pick_device(device)
    numbers = ", ".join(map(str, bundle.clients))
    if client is None and len(bundle.clients) > 1:
        raise PromptFedError(f"{folder} has a model for every client; choose one with --client: {numbers}.")
    number = next(iter(bundle.clients)) if client is None else client
    if number not in bundle.clients:
        raise PromptFedError(f"{folder} has no client {number}; it has {numbers}.")
    recipe = bundled_recipe(bundle)
    facts = {name: torch.tensor(value) for name, value in bundle.clients[number].facts.items()}
    return Model(
        method=config.build_method(recipe),
        task=bundled_task(folder, bundle, recipe, place),
        params=tree.to(read_client(folder, bundle, number), place),
        shape=bundle.shape,
        mean=bundle.mean,
        std=bundle.std,
        facts=tree.to(facts, place),
        seed=bundle.seed,
        round=bundle.round,
        device=place,
        ready=True,
    )


def bundled_recipe(bundle: Bundle) -> Recipe:
    """Return of a bundle's recipe what answers depend on."""
    return Recipe(
        seed=bundle.seed,
        clients=bundle.trained,
        method=dict(bundle.method),
        prompt=dict(bundle.prompt),
        backbone=dict(bundle.backbone),
    )


def bundled_task(folder: Path, bundle: Bundle, recipe: Recipe, place: torch.device) -> Task:
    """Return the task of a bundle, or refuse a frozen backbone that is not the one it was trained with."""
    task = make_task(recipe, bundle.shape, bundle.classes, torch.device("cpu"))
    if frozen_fingerprint(task.backbone) != bundle.fingerprint:
        weights = bundle.backbone.get("weights", bundle.backbone["name"])
        raise PromptFedError(f"The weights of {weights} are not those that {folder} was made with; restore those.")
    return task if place.type == "cpu" else replace(task, backbone=task.backbone.to(place))


def frozen_fingerprint(backbone: Backbone) -> str:
    """Return what changes with the frozen weights of a backbone on the CPU, its text tower's too; empty without any."""
    own = backbone.fingerprint
    return fingerprint(getattr(backbone, "spelled", {}), own) if own else ""


def site_model(folder: Path, device: str) -> Model:
    """Return the model that a site has kept."""
    found = read_model(folder)
    method = config.build_method(found.recipe)
    _check_classifies(folder, found.recipe, method)
    place = pick_device(device)
    return Model(
        method=method,
        task=make_task(found.recipe, found.shape, found.classes, place),
        params=tree.to(found.params, place),
        shape=found.shape,
        mean=found.mean,
        std=found.std,
        facts=tree.to(found.facts, place),
        seed=found.recipe.seed,
        round=found.round,
        device=place,
    )


def client_model(run: FinishedRun, client: int | None) -> Model:
    """Return the model a client of a simulated run deploys; without a client, the server's own, if there is one."""
    params = run.method.deploy(run.task, run.server) if client is None else run.deployed(client)
    if client is None and not params:
        raise PromptFedError(f"{run.folder} has a model for every client; choose one with --client 0 … {len(run) - 1}.")
    mean, std = run.pixel_statistics
    return Model(
        method=run.method,
        task=run.image_task,
        params=params,
        shape=run.sides,
        mean=mean,
        std=std,
        facts=run.facts(client or 0),
        seed=run.recipe.seed,
        round=run.finished,
        device=run.device,
    )


# -- predicting -------------------------------------------------------------------------------------------------------


def predict(model: Model, files: Sequence[Path], top: int = 3) -> list[Prediction]:
    """Return the `top` likeliest classes of every image file."""
    predictions = []
    for first in range(0, len(files), BATCH):
        some = files[first : first + BATCH]
        chances = probabilities(model, np.stack([_read(file, model.shape) for file in some]))
        found, order = chances.topk(min(top, chances.shape[-1]), -1)
        for file, numbers, places in zip(some, found.tolist(), order.tolist(), strict=True):
            names = [model.task.classes[place] for place in places]
            predictions.append(Prediction(file, tuple(zip(names, numbers, strict=True))))
    return predictions


def probabilities(model: Model, images: Images) -> Tensor:
    """Return the probability of every class [N, classes] for images [N, H, W, 3] of the model's size."""
    with torch.no_grad():
        task, batch = model.batch(images)
        logits = model.method.predict(task, model.prepared(task), batch)
    return logits.float().softmax(-1).cpu()


def _data(model: Model, task: Task, pool: Pool, count: int) -> ClientData:
    """Return the images as a client's test data."""
    client, rows, draws = int(model.facts["client"]), np.arange(count, dtype=np.int64), model.method.draws(task)
    data = ClientData(pool, model.seed, model.round, (client,), (rows,), False, draws, model.facts, count)
    return data.without_dropout(task.backbone)


def _dataset(images: Images, classes: tuple[str, ...], mean: Color = (0, 0, 0), std: Color = (1, 1, 1)) -> Dataset:
    """Return images without labels."""
    nothing = np.zeros(len(images), np.int64)
    return Dataset("images", images, nothing, nothing == 0, classes, nothing, ("images",), mean, std)


def _read(file: Path, shape: tuple[int, int]) -> Images:
    if not file.is_file():
        what = "is a folder, not an image" if file.is_dir() else "does not exist"
        raise PromptFedError(f"{file} {what}.")
    try:
        return decode(file, shape)
    except Exception as problem:  # damaged files make Pillow raise nearly anything
        raise PromptFedError(f"{file} cannot be read as an image: {problem}.") from problem


# -- showing ----------------------------------------------------------------------------------------------------------


def to_table(predictions: Sequence[Prediction]) -> Table:
    """Return a table for a person, a row per image."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("file", overflow="fold")
    shown.add_column("class")
    shown.add_column("probability", justify="right")
    others = max(len(prediction.classes) for prediction in predictions) - 1
    for number in range(others):
        shown.add_column("or" if number == 0 else "")
    for prediction in predictions:
        (name, chance), *rest = prediction.classes
        cells = (str(prediction.file), name, f"{100 * chance:.1f} %", *(f"{n} {100 * p:.1f} %" for n, p in rest))
        shown.add_row(*(escape(printable(cell)) for cell in cells))  # names are no markup
    return shown


def to_json(predictions: Sequence[Prediction]) -> str:
    """Return JSON for a program."""
    rows = [
        {"file": str(prediction.file), "classes": [{"class": name, "probability": p} for name, p in prediction.classes]}
        for prediction in predictions
    ]
    return json.dumps(rows, indent=1)
