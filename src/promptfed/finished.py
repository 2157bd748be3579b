"""A finished run, opened again: its method, its images, its server's tree and every client's own."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from promptfed import config, planning, runner, tree
from promptfed.errors import PromptFedError
from promptfed.federation.loop import Loop
from promptfed.federation.store import read_tree
from promptfed.method import Inversion, Task, TextToImage, text_to_image
from promptfed.planning import Plan
from promptfed.record import Record
from promptfed.tree import Tree


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

    def own(self, client: int) -> tuple[Tree, Tree]:
        """Return what a client receives from the server now, and its personal tree."""
        check_client(self, client)
        down = tree.row(self.loop.method.download(self.task, self.loop.server, torch.tensor([client])), 0)
        return down, tree.to(self.loop.store.get(client), self.loop.device)

    def word(self, finished: int) -> Tensor:
        """Return the server's word [v, W] as it was after so many rounds."""
        path = self.loop.record.words / f"{finished:06d}.safetensors"
        if not path.is_file():
            known = f"1 … {self.loop.finished}"
            raise PromptFedError(f"{self.folder} has words of rounds {known}, not of round {finished}.")
        return read_tree(path)["word"].to(self.loop.device)


def open_run(folder: Path, device: str = "") -> Finished:
    """Open the finished run in `folder`, on the recipe's device unless another is given; nothing is written there."""
    if not (folder / "recipe.toml").is_file():
        raise PromptFedError(f"{folder} holds no run: recipe.toml is missing.")
    if not (folder / "summary.json").is_file():
        raise PromptFedError(f"{folder} is not finished; go on with promptfed run --resume {folder}.")
    recipe = runner.single(config.load(str(folder / "recipe.toml")))
    config.check_device(device or recipe.device)
    plan = planning.prepare(replace(recipe, device=device or recipe.device), None, folder / "partition.json")
    record = Record(folder)
    state = record.state(recipe.hash, plan.partition.hash)
    if state is None:
        raise PromptFedError(f"{folder} has no checkpoint, so what it learned is gone.")
    loop = planning.make_loop(plan, record)
    loop.restore(state, rewind=False)
    return Finished(folder, plan, loop)


def check_client(run: Finished, client: int) -> None:
    """Refuse a client that there is not."""
    if not 0 <= client < len(run.loop.shards):
        raise PromptFedError(f"{run.folder} has clients 0 … {len(run.loop.shards) - 1}, not {client}.")


def inverted(run: Finished) -> tuple[Inversion, TextToImage]:
    """Return the method and the model of a run that learned a word, or say that it did not."""
    method = run.loop.method
    if not method.inverts:
        name = run.plan.recipe.method["name"]
        raise PromptFedError(f"{run.folder} is a run of {name}, which learns no word; relic, fedti and their kind do.")
    return cast(Inversion, method), text_to_image(run.task)
