"""A method of one's own, as another package would write it."""

from dataclasses import dataclass
from typing import ClassVar

from promptfed.core import local, tree
from promptfed.core.method import Method, Task
from promptfed.core.protocols import Data, Rng
from promptfed.core.tree import Tree


@dataclass(frozen=True)
class Averaged(Method):
    """A method of one's own: the model is averaged, and a client deploys it only after training once more."""

    name: ClassVar[str] = "averaged"
    lr: float = 0.05
    epochs: int = 1

    def init_server(self, task: Task, rng: Rng) -> Tree:
        return task.backbone.init(rng)

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        batches = data.batches(size=8, epochs=self.epochs)
        return tree.pick(local.sgd(self.loss, task, batches, start=down, params=down, lr=self.lr), down), personal

    def adapt(self, task: Task, down: Tree, personal: Tree, data: Data) -> Tree:
        return self.fit(task, down, personal, data)[0]
