"""What is exported: the models of one client or of all clients, from a run, a site's run or a bundle.

A run is bundled first: the bundle has what answers depend on and nothing else, and knows what clients share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from promptfed.analysis.bundle.contents import ABOUT, Bundle, open_bundle, read_row
from promptfed.analysis.bundle.making import make_bundle
from promptfed.analysis.predict import Model, find_folder, load, open_classifier
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.data.dataset import Images, Indices
from promptfed.results.folder import names
from promptfed.runs.planning import Plan

DEVICE = "cpu"  # where answers are in float32


@dataclass(frozen=True)
class ToExport:
    """A bundle and the clients whose models are exported."""

    source: Path
    folder: Path  # of the bundle
    bundle: Bundle
    clients: tuple[int, ...]
    together: bool  # all clients in one graph
    data: str  # the images it was trained on, in words

    @property
    def method(self) -> str:
        """Return the method's name."""
        return str(self.bundle.method["name"])

    @property
    def whose(self) -> str:
        """Return whose model it is, in words."""
        if self.together:
            return f"the {len(self.clients)} clients"
        (number,) = self.clients
        name = self.bundle.clients[number].name
        return f"site {name}" if name else f"client {number}"

    def model(self, client: int) -> Model:
        """Return a client's model."""
        return load(self.folder, client, DEVICE)

    def own(self, client: int) -> Tree:
        """Return the tensors that a client does not share with all others; none where only one is exported."""
        return read_row(self.folder, self.bundle, client) if self.together else {}

    @cached_property
    def plan(self) -> Plan | None:
        """Return the run's images and who holds which, or None where there is only a bundle."""
        return open_classifier(self.source, DEVICE).plan if (self.source / names.RECIPE).is_file() else None

    def test_images(self, client: int, most: int) -> tuple[Images, Indices] | None:
        """Return up to `most` of a client's test images and their labels, if there are any."""
        if self.plan is None or not len(self.plan.partition.test[client]):
            return None
        rows, dataset = self.plan.partition.test[client][:most], self.plan.dataset
        return np.asarray(dataset.images[rows]), dataset.labels[rows]


def open_source(source: Path, scratch: Path, client: int | None, *, together: bool) -> ToExport:
    """Open the run, the site's run or the bundle at `source`; a bundle that must be made first is in `scratch`."""
    if together and client is not None:
        raise PromptFedError("--client and --all exclude each other; give one of them.")
    folder = find_folder(source, DEVICE)
    found, data = folder, "It is not recorded which images the model was trained on."
    if not (folder / ABOUT).is_file():
        if (folder / names.RECIPE).is_file():
            run = open_classifier(folder, DEVICE)
            if client is None and not together and len(run) > 1:
                raise _undecided(folder, range(len(run)))
            data = _in_words(str(run.recipe.data["name"]))
        found = scratch / "bundle"
        make_bundle(folder, found, DEVICE, client)
    bundle = open_bundle(found)
    if together and len(bundle.clients) == 1:
        raise PromptFedError(f"{folder} has the model of one client; leave out --all.")
    return ToExport(folder, found, bundle, _chosen(folder, bundle, client, together=together), together, data)


def _chosen(folder: Path, bundle: Bundle, client: int | None, *, together: bool) -> tuple[int, ...]:
    """Return the clients to export."""
    if together or (client is None and len(bundle.clients) == 1):
        return tuple(bundle.clients)
    if client is None:
        raise _undecided(folder, list(bundle.clients))
    if client not in bundle.clients:
        raise PromptFedError(f"{folder} has no client {client}; it has {', '.join(map(str, bundle.clients))}.")
    return (client,)


def _undecided(folder: Path, clients: Sequence[int]) -> PromptFedError:
    return PromptFedError(
        f"{folder} has the models of {len(clients)} clients; choose one with --client {clients[0]} … {clients[-1]}, "
        "or give --all."
    )


def _in_words(data: str) -> str:
    """Return the name of a data set, without the path of a user's own."""
    kind, _, own = data.partition(":")
    return f"It was trained on images of the user's own (data.name={kind}:…)." if own else f"It was trained on {data}."
