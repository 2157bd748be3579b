"""A finished run, opened again: its method, its images, the server's tree and every client's own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.extensions import LearnsWord
from promptfed.core.method import Method, Task, adapts, text_to_image
from promptfed.core.progress import bar
from promptfed.core.protocols import Batch, TextToImage
from promptfed.core.tree import Tree
from promptfed.data import find_sides
from promptfed.data.batches import ClientData, LatePool, Pool, make_facts
from promptfed.data.dataset import Color, Dataset, Indices
from promptfed.data.shares import DescribedPartition
from promptfed.federation.loop import Loop, rng_for
from promptfed.federation.store import Store, read_tree, verify
from promptfed.results.folder import names
from promptfed.results.folder.parts import read_summary
from promptfed.results.folder.record import Line, Record, over_sites
from promptfed.runs import config, planning
from promptfed.runs.config import Recipe
from promptfed.runs.learning import training_of
from promptfed.runs.planning import Plan
from promptfed.runs.selecting import own_keys

UNKNOWN = (32, 32)  # the size of images that are not needed; a model draws pictures of its own size


@dataclass(frozen=True)
class Words:
    """The words that a run's server has had, and all it takes to draw them; the run's images are not needed."""

    folder: Path
    recipe: Recipe
    method: Method
    task: Task
    device: torch.device
    rounds: int

    def word(self, finished: int) -> Tensor:
        """Return the server's word [v, W] after so many rounds; after 0 it is the initial one."""
        if finished == 0:
            server = self.method.init_server(self.task, rng_for(self.recipe.seed, "server"))
            return server["word"].to(self.device)
        path = Record(self.folder).kept("word", finished)
        if not path.is_file():
            raise PromptFedError(f"{self.folder} has the words of rounds 0 to {self.rounds}, not of round {finished}.")
        return read_tree(path)["word"].to(self.device)


@dataclass(frozen=True)
class FinishedRun:
    """All that a finished run learned, on the device where it is looked at; each part is loaded when first needed."""

    folder: Path
    recipe: Recipe
    method: Method
    described: DescribedPartition
    state: Line
    device: torch.device

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.described.partition)

    @property
    def finished(self) -> int:
        """Return the number of rounds."""
        return int(self.state["round"])

    @property
    def name(self) -> str:
        """Return the method's name as the recipe has it."""
        return str(self.recipe.method["name"])

    @property
    def title(self) -> str:
        """Return which run this is, for a caption."""
        return f"{self.name} on {self.dataset.name} after round {self.finished}"

    @property
    def dataset(self) -> Dataset:
        """Return its images."""
        return self.plan.dataset

    @property
    def words(self) -> Words:
        """Return the words of its server."""
        return Words(self.folder, self.recipe, self.method, self.task, self.device, self.finished)

    @property
    def pixel_statistics(self) -> tuple[Color, Color]:
        """Return the mean and the deviation that images are normalised with; no data set has any of its own."""
        return self.image_task.backbone.statistics or (Dataset.mean, Dataset.std)

    @cached_property
    def sides(self) -> tuple[int, int]:
        """Return the height and width of its images."""
        given = own_keys(self.recipe.data)
        return find_sides(str(given.pop("name")), **given)

    @cached_property
    def image_task(self) -> Task:
        """Return the task with the whole backbone."""
        return planning.make_task(self.recipe, self.sides, self.described.classes, self.device)

    @cached_property
    def task(self) -> Task:
        """Return the task as the method saw it in training: the backbone's features may have been computed once."""
        return planning.task_for(self.method, self.image_task)

    @cached_property
    def server(self) -> Tree:
        """Return the server's tree after the last round."""
        path = Record(self.folder).checkpoint / self.state["server"]["file"]
        verify(path, self.state["server"]["crc32"])
        return tree.to(read_tree(path), self.device)

    @cached_property
    def plan(self) -> Plan:
        """Return all that the recipe names, its images included."""
        return planning.prepare(self.recipe, self.method, self.folder / names.PARTITION, self.image_task)

    @cached_property
    def loop(self) -> Loop:
        """Return the run's loop at its last round, images included, to train or test any of its clients."""
        loop = planning.make_loop(self.plan, Record(self.folder))
        loop.restore(self.state, rewind=False)
        return loop

    @cached_property
    def _store(self) -> Store:
        def fresh(client: int) -> Tree:
            return self.method.init_client(self.task, self.data(client, 0), rng_for(self.recipe.seed, client))

        store = Store(fresh, Record(self.folder).checkpoint)
        store.restore(self.state["personal"])
        return store

    @cached_property
    def _facts(self) -> Tree:
        held = self.described
        return tree.to(make_facts(held.counts.sum(1), held.counts, held.domains.argmax(1)), self.device)

    def facts(self, client: int) -> Tree:
        """Return what a client knows of itself."""
        self.check_client(client)
        if self.recipe.stop:  # some of its training images were kept for validation
            return tree.row(self.loop.shards.facts([client]), 0)
        return tree.row(self._facts, client)

    def data(self, client: int, t: int) -> ClientData:
        """Return a client's training data in round `t`; whoever asks it for no batch loads no image."""
        if self.recipe.stop:
            return self.loop.shards.data([client], t, stacked=False)
        rows, draws = self.described.partition.train, self.method.draws(self.task)
        pool, most = LatePool(lambda: self.loop.shards.pool), int(self.described.counts.sum(1).max())
        own, facts, training = (rows[client],), self.facts(client), training_of(self.recipe)
        return ClientData(pool, self.recipe.seed, t, (client,), own, False, draws, facts, most, training=training)

    def own(self, client: int) -> tuple[Tree, Tree]:
        """Return what a client receives from the server now, and its personal tree."""
        self.check_client(client)
        down = tree.row(self.method.download(self.task, self.server, torch.tensor([client])), 0)
        return down, tree.to(self._store.get(client), self.device)

    def model(self, client: int) -> Tree:
        """Return what a client has at the start of a round: what it receives, and its personal tree."""
        down, personal = self.own(client)
        return down | personal

    def deployed(self, client: int) -> Tree:
        """Return the model that a client deploys, adapted to its training data if the method does that."""
        if not adapts(self.method):
            return self.model(client)
        down, personal = self.own(client)
        return self.method.adapt(self.task, down, personal, self.data(client, self.finished))

    def counts(self, clients: Sequence[int]) -> Indices:
        """Return the clients' training images per class [C, classes]."""
        return self.described.counts[list(clients)]

    def batch(self, client: int, rows: Indices, pool: Pool | None = None) -> Batch:
        """Return images of the data set, or of another pool, as a client sees them in testing, without labels."""
        data = self.loop.shards.data([client], 0, "test", stacked=False).without_dropout(self.task.backbone)
        (batch,) = replace(data, pool=pool or data.pool, rows=(rows,)).batches("test", size=len(rows), ordered=True)
        return tree.drop(batch, ["y"])

    def logits(self, params: Tree, batch: Batch) -> Tensor:
        """Return a model's answers [B, classes]."""
        with torch.no_grad():
            return self.method.predict(self.task, self.method.prepare(self.task, params), batch)

    def check_client(self, client: int) -> None:
        """Refuse a client that does not exist."""
        if not 0 <= client < len(self):
            raise PromptFedError(f"{self.folder} has clients 0 to {len(self) - 1}, not {client}.")


def open_words(folder: Path, device: str = "") -> Words:
    """Open the words of the finished run in `folder`; neither its images nor its clients' own trees are needed."""
    recipe = _finished_recipe(folder, device)
    method, where = config.build_method(recipe), planning.pick_device(device or recipe.device)
    _learning_word(folder, method, recipe)
    task = planning.make_task(recipe, UNKNOWN, ("thing", "other"), where)
    return Words(folder, recipe, method, task, where, read_summary(folder)["accuracy"]["round"])


def open_run(folder: Path, device: str = "") -> FinishedRun:
    """Open the finished run in `folder`, on the recipe's device unless another is given; nothing is written there."""
    recipe = _finished_recipe(folder, device)
    if over_sites(folder):
        raise PromptFedError(
            f"{folder} is the coordinator's folder of a run over sites; it has neither images nor the sites' models."
        )
    recipe = replace(recipe, device=device or recipe.device)
    record = Record(folder)
    if not (record.checkpoint / names.STATE).exists():
        raise PromptFedError(f"{folder} has no checkpoint, so its models are lost.")
    described = DescribedPartition.load(folder / names.PARTITION)
    state = record.state(recipe.hash, described.partition.hash)
    assert state is not None
    method, where = config.build_method(recipe), planning.pick_device(recipe.device)
    return FinishedRun(folder, recipe, method, described, state, where)


def _finished_recipe(folder: Path, device: str) -> Recipe:
    """Return the recipe of the finished run in `folder`, or say what is missing."""
    if not (folder / names.RECIPE).is_file():
        raise PromptFedError(f"{folder} is not a run folder: recipe.toml is missing.")
    if not (folder / names.SUMMARY).is_file():
        command = "promptfed sites run" if over_sites(folder) else "promptfed run"
        raise PromptFedError(f"{folder} is not finished; resume it with {command} --resume {folder}.")
    recipe = config.load_one(str(folder / names.RECIPE))
    config.check_device(device or recipe.device)
    return recipe


def train_again(loop: Loop, clients: Sequence[int], *, keep: bool = False) -> Iterator[tuple[int, Tree, Tree, Tensor]]:
    """Train clients again from the final state; yield each, what it received, what it sends, and its weight.

    With `keep`, the store has their new personal trees until its `discard` is called.
    """
    width = loop.fleet.width
    weights = loop.method.weight(loop.shards.facts(clients))
    with bar("training clients", len(clients)) as advance:
        for first in range(0, len(clients), width):
            some = torch.tensor(clients[first : first + width])
            down = loop.method.download(loop.task, loop.server, some)
            up = loop.fleet.fit(loop.finished, some, down, keep=keep, test=False).up
            for number, client in enumerate(some.tolist()):
                yield client, tree.row(down, number), tree.row(up, number), weights[first + number]
            advance(len(some))


def inverted(run: FinishedRun | Words) -> tuple[LearnsWord, TextToImage]:
    """Return the method and the model of a run that learned a word, or say that it did not."""
    words = run.words if isinstance(run, FinishedRun) else run
    return _learning_word(words.folder, words.method, words.recipe), text_to_image(words.task)


def _learning_word(folder: Path, method: Method, recipe: Recipe) -> LearnsWord:
    """Return the method if it learns a word, or refuse the run."""
    if isinstance(method, LearnsWord):
        return method
    name = recipe.method["name"]
    raise PromptFedError(f"{folder} is a run of {name}, which learns no word; relic, fedti and similar methods do.")
