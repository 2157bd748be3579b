"""Three sites whose images together are one data set, so that a run over them can be compared with a simulation."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptfed.core.tree import Tree
from promptfed.data import open_dataset
from promptfed.data.partition import Partition
from promptfed.federation.store import read_tree
from promptfed.runs import config
from promptfed.runs.config import Recipe
from promptfed.runs.execution import start
from promptfed.sites import coordinator
from promptfed.sites.identity import STARTUP
from promptfed.sites.settings import Federation
from promptfed.sites.terms import FILE
from promptfed.sites.worker import Worker
from support.certificates import write_certificates
from support.sites_in_threads import Threads

NAMES = ("north", "south", "west")
SIDE = 32
PLACES = {"north": (0, 14), "south": (14, 24), "west": (24, 40)}  # each site's images in the whole


def _images() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return 40 images of two classes, the second lighter in its upper half."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 40)
    images = rng.integers(0, 120, (40, SIDE, SIDE, 3))
    images[labels == 1, : SIDE // 2] += 100
    return images.astype(np.uint8), labels.astype(np.int64)


def write_sites(folder: Path) -> dict[str, Path]:
    """Write an .npz file per site; the last quarter of its images is for testing."""
    images, labels = _images()
    files = {}
    for name, (first, last) in PLACES.items():
        cut = last - (last - first) // 4
        files[name] = folder / f"{name}.npz"
        np.savez(
            files[name],
            x_train=images[first:cut],
            y_train=labels[first:cut],
            x_test=images[cut:last],
            y_test=labels[cut:last],
            class_names=np.array(["dark", "light"]),
        )
    return files


def _place(images: Sequence[int]) -> NDArray[np.int64]:
    """Return the number of the site that has each image."""
    spans = list(PLACES.values())
    return np.array([next(n for n, (_, last) in enumerate(spans) if image < last) for image in images])


def write_whole(folder: Path) -> tuple[Path, Path]:
    """Write all images as one .npz file and, as a partition file, who holds which."""
    images, labels = _images()
    train, test, cuts = [], [], {name: last - (last - first) // 4 for name, (first, last) in PLACES.items()}
    for name, (first, last) in PLACES.items():
        train += list(range(first, cuts[name]))
        test += list(range(cuts[name], last))
    path = folder / "whole.npz"
    np.savez(
        path,
        x_train=images[train],
        y_train=labels[train],
        x_test=images[test],
        y_test=labels[test],
        domain_train=_place(train),
        domain_test=_place(test),
        class_names=np.array(["dark", "light"]),
    )
    order = {image: row for row, image in enumerate(train + test)}
    shares = [
        tuple(
            np.array([order[image] for image in span], np.int64)
            for span in (range(first, cuts[name]), range(cuts[name], last))
        )
        for name, (first, last) in PLACES.items()
    ]
    saved = folder / "partition.json"
    dataset = open_dataset(f"npz:{path}")
    Partition("sites", tuple(own for own, _ in shares), tuple(own for _, own in shares)).save(saved, dataset)
    return path, saved


def recipe(method: str, *more: str) -> Recipe:
    """Return a short recipe for three clients."""
    words = ["clients=3", "rounds=3", "device=cpu", *SETTINGS[method], *more]
    return config.load_one(method, words, embedded=False)


CNN = ("backbone.channels=[4, 4]", "backbone.hidden=[8]", "method.epochs=2", "method.batch=4")
SETTINGS: dict[str, Sequence[str]] = {
    "fedavg": ("method.lr=0.05", *CNN),
    "fedapt": ("method.lr=0.01", "method.batch=4", "method.tokens=2", "method.domains=3", "method.epochs=1"),
    "dp-fpl": ("method.tokens=2", "method.rank=1", "method.batch=4"),
    "fedrep": ("method.lr=0.05", "backbone.channels=[4, 4]", "backbone.hidden=[8]", "method.batch=4"),
    "pfedpt": ("method.lr=0.05", "method.prompt_epochs=1", *CNN),
    "pfedpg": ("method.lr=0.05", "method.batch=4", "method.epochs=1", "method.tokens=2"),
}


Ask = Callable[[bytes], bytes]
Change = Callable[[str, Ask], Ask]


# few sites and images, and results that are compared with a simulation's
OPEN = 'evaluation = "exact"\nmin_test = 1\nmin_members = 2\n'


def workers(folder: Path, terms: str = OPEN) -> dict[str, Worker]:
    """Return the three sites as objects, their state under folder/home; terms that are already there stay."""
    files = write_sites(folder)
    for name in NAMES:
        path = folder / "home" / name / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (path.parent / STARTUP).exists():
            write_certificates(path.parent, name)
        if terms != OPEN or not path.exists():
            path.write_text(terms, encoding="utf-8")
    return {name: Worker(name, folder / "home" / name, str(files[name]), "cpu") for name in NAMES}


def begin(folder: Path, method: str, *more: str, federation: Federation | None = None) -> tuple[Path, Federation]:
    """Begin a run of the three sites."""
    federation, out = federation or Federation(NAMES), folder / "run"
    coordinator.create(out, recipe(method, *more), federation)
    return out, federation


def exchange(folder: Path, change: Change = lambda site, ask: ask, terms: str = OPEN) -> Threads:
    """Return an exchange with the three sites, each of whose answering `change` may tamper with."""
    return Threads({name: change(name, worker.answer) for name, worker in workers(folder, terms).items()})


def simulate(folder: Path, method: str, *more: str) -> Path:
    """Run the same three clients in simulation."""
    whole, saved = write_whole(folder)
    place = [f"data.name=npz:{whole}", f"partition.name=file:{saved}", "fleet.name=one-by-one"]
    return start(recipe(method, *place, *more), folder / "simulated").folder


def server_tree(folder: Path) -> Tree:
    """Return the server's tree after the last round of a run."""
    state = json.loads((folder / "checkpoint" / "state.json").read_text())
    return read_tree(folder / "checkpoint" / state["server"]["file"])


def lines(folder: Path) -> list[dict[str, object]]:
    """Return the rounds of a run."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def furthest(one: Tree, other: Tree) -> float:
    """Return the largest difference between two trees of the same names and shapes."""
    assert list(one) == list(other)
    return max(float((value - other[name]).abs().max()) for name, value in one.items())
