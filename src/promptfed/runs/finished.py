"""A finished run, opened again: its method, its images, its server's tree and every client's own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Inversion, Method, Task, text_to_image
from promptfed.core.progress import bar
from promptfed.core.protocols import TextToImage
from promptfed.core.tree import Tree
from promptfed.federation.fleet import Stacked
from promptfed.federation.loop import Loop, rng_for
from promptfed.federation.store import read_tree
from promptfed.results.folder import names
from promptfed.results.folder.parts import read_summary
from promptfed.results.folder.record import Record, over_sites
from promptfed.runs import config, planning, runner
from promptfed.runs.config import Recipe
from promptfed.runs.planning import Plan

UNKNOWN = (32, 32)  # images that are not there; a model draws pictures of its own size


@dataclass(frozen=True)
class Words:
    """The words that a run's server has had: all that it takes to draw them, wherever the run's images are."""

    folder: Path
    recipe: Recipe
    method: Method
    task: Task
    device: torch.device
    rounds: int

    def word(self, finished: int) -> Tensor:
        """Return the server's word [v, W] as it was after so many rounds; after 0 it is the one the run began with."""
        if finished == 0:
            server = self.method.init_server(self.task, rng_for(self.recipe.seed, "server"))
            return server["word"].to(self.device)
        path = Record(self.folder).words / names.word_file(finished)
        if not path.is_file():
            raise PromptFedError(f"{self.folder} has words of rounds 0 … {self.rounds}, not of round {finished}.")
        return read_tree(path)["word"].to(self.device)


@dataclass(frozen=True)
class Finished:
    """All that a finished run learned, on the device where it is looked at."""

    folder: Path
    plan: Plan
    loop: Loop

    @property
    def task(self) -> Task:
        """Return the task as the method saw it in training."""
        return self.loop.task

    @property
    def words(self) -> Words:
        """Return the words of its server."""
        loop = self.loop
        return Words(self.folder, self.plan.recipe, loop.method, self.task, loop.device, loop.finished)

    def own(self, client: int) -> tuple[Tree, Tree]:
        """Return what a client receives from the server now, and its personal tree."""
        check_client(self, client)
        down = tree.row(self.loop.method.download(self.task, self.loop.server, torch.tensor([client])), 0)
        return down, tree.to(self.loop.store.get(client), self.loop.device)


def open_words(folder: Path, device: str = "") -> Words:
    """Open the words of the finished run in `folder`; neither its images nor its clients' own trees are needed."""
    recipe = _finished_recipe(folder, device)
    method, where = config.build_method(recipe), planning.pick_device(device or recipe.device)
    _check_inverts(folder, method, recipe)
    task = planning.make_task(recipe, UNKNOWN, ("thing", "other"), where)
    return Words(folder, recipe, method, task, where, read_summary(folder)["accuracy"]["round"])


def open_run(folder: Path, device: str = "") -> Finished:
    """Open the finished run in `folder`, on the recipe's device unless another is given; nothing is written there."""
    recipe = _finished_recipe(folder, device)
    if over_sites(folder):
        raise PromptFedError(
            f"{folder} is the coordinator's side of a run over sites: it has neither images nor their own models."
        )
    plan = planning.prepare(replace(recipe, device=device or recipe.device), None, folder / names.PARTITION)
    record = Record(folder)
    state = record.state(recipe.hash, plan.partition.hash)
    if state is None:
        raise PromptFedError(f"{folder} has no checkpoint, so what it learned is gone.")
    loop = planning.make_loop(plan, record)
    loop.restore(state, rewind=False)
    return Finished(folder, plan, loop)


def _finished_recipe(folder: Path, device: str) -> Recipe:
    """Return the recipe of the finished run in `folder`, or say what is missing."""
    if not (folder / names.RECIPE).is_file():
        raise PromptFedError(f"{folder} holds no run: recipe.toml is missing.")
    if not (folder / names.SUMMARY).is_file():
        command = "promptfed sites run" if over_sites(folder) else "promptfed run"
        raise PromptFedError(f"{folder} is not finished; go on with {command} --resume {folder}.")
    recipe = runner.single(config.load(str(folder / names.RECIPE)))
    config.check_device(device or recipe.device)
    return recipe


def check_client(run: Finished, client: int) -> None:
    """Refuse a client that there is not."""
    if not 0 <= client < len(run.loop.shards):
        raise PromptFedError(f"{run.folder} has clients 0 … {len(run.loop.shards) - 1}, not {client}.")


def once_more(loop: Loop, clients: Sequence[int], *, keep: bool = False) -> Iterator[tuple[int, Tree, Tree, Tensor]]:
    """Train clients once more from the final state; yield each, what it received, what it sends, and its weight.

    With `keep` the store has their personal trees of afterwards, until it is told to `discard` them.
    """
    width = loop.fleet.width if isinstance(loop.fleet, Stacked) else 1
    weights = loop.method.weight(loop.shards.facts(clients))
    with bar("training clients", len(clients)) as advance:
        for first in range(0, len(clients), width):
            some = torch.tensor(clients[first : first + width])
            down = loop.method.download(loop.task, loop.server, some)
            up = loop.fleet.fit(loop.settings.total, some, down, keep=keep, test=False).up
            for number, client in enumerate(some.tolist()):
                yield client, tree.row(down, number), tree.row(up, number), weights[first + number]
            advance(len(some))


def inverted(run: Finished | Words) -> tuple[Inversion, TextToImage]:
    """Return the method and the model of a run that learned a word, or say that it did not."""
    words = run.words if isinstance(run, Finished) else run
    _check_inverts(words.folder, words.method, words.recipe)
    return cast(Inversion, words.method), text_to_image(words.task)


def _check_inverts(folder: Path, method: Method, recipe: Recipe) -> None:
    if not method.inverts:
        name = recipe.method["name"]
        raise PromptFedError(f"{folder} is a run of {name}, which learns no word; relic, fedti and their kind do.")
