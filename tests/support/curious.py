"""A coordinator that asks one site whatever it likes: any run, round, recipe and model."""

from pathlib import Path

import torch

from promptfed.core.tree import Tree
from promptfed.federation.loop import rng_for
from promptfed.runs.recipe import Recipe
from promptfed.sites import wire
from promptfed.sites.wire import Message
from support.three_sites import workers


class Prober:
    """Sends requests to the site "north", whose owner has the given terms."""

    def __init__(self, folder: Path, asked: Recipe, terms: str) -> None:
        self.folder, self.recipe, self.terms = folder, asked.to_toml(), terms
        self.restart()
        self.count = 0

    def restart(self) -> None:
        """Let the site forget what it has only in memory."""
        self.worker = workers(self.folder, self.terms)["north"]
        self.answer = self.worker.answer

    def ask(self, kind: str, content: Tree | None = None, run: str = "x", number: int = 0, **more: object) -> Message:
        """Send a request and return the answer."""
        self.count += 1
        head = {"run": run, "round": number, "nonce": f"{self.count:032d}", "kind": kind, "site": "north", "client": 0}
        versions = {"names": list(content or {}), "base": "", "settled": "", "classes": [], "recipe": self.recipe}
        request = wire.pack(Message(head | versions | more, content or {}))
        return wire.unpack(self.answer(request), 2**30)

    def model(self, seed: int, run: str = "x") -> Tree:
        """Return a model of the coordinator's own choice."""
        self.ask("hello", run=run)
        place = self.worker._run
        assert place is not None
        down = place.method.init_server(place.task, rng_for(0, "server"))
        draw = torch.Generator().manual_seed(seed)
        return {name: torch.randn(value.shape, generator=draw) for name, value in down.items()}

    def evaluate(self, seed: int, number: int = 0, run: str = "x", adapt: bool = False) -> Tree:
        """Have a model of its own choice tested."""
        answer = self.ask("evaluate", self.model(seed, run), run, number, adapt=adapt, final=False)
        assert "error" not in answer.head, answer.head
        return answer.tree

    def fit(self, seed: int, number: int = 0, run: str = "x", keep: bool = True) -> Message:
        """Have a model of its own choice trained."""
        return self.ask("fit", self.model(seed, run), run, number, keep=keep, test=True)
