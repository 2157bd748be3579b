"""A model as one function of images: bytes in, probabilities out; nothing of PromptFed is left in its graph."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from promptfed.analysis.predict import Model
from promptfed.backbones.cached import behind, seen
from promptfed.core import tree
from promptfed.core.tree import Tree
from promptfed.data.dataset import Images

DRAW = "draw."  # before the name of a constant that is drawn once per client, such as a patch's place


class Network(torch.nn.Module):
    """Bytes [N, H, W, 3], and the tensors `own` of one client if the graph is for several -> probabilities [N, K]."""

    def __init__(self, model: Model, own: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.order = tuple(model.params)  # a method may walk over a tree, and sums depend on the order
        self.fixed = tree.drop(model.params | drawn(model), own)
        std, mean = torch.tensor(model.std), torch.tensor(model.mean)
        self.scale, self.shift = 1 / (255 * std), -mean / std

    def forward(self, images: Tensor, own: Tree | None = None) -> Tensor:
        """Return the probability of every class."""
        every = self.fixed | (own or {})
        batch = {name.removeprefix(DRAW): value for name, value in every.items() if name.startswith(DRAW)}
        task = self.model.task
        x = torch.addcmul(self.shift, images.float(), self.scale).movedim(-1, -3)
        reads = self.model.method.traits.reads
        x, task = seen(task.backbone, reads, x), replace(task, backbone=behind(task.backbone, reads), captured={})
        facts = {name: value for name, value in self.model.facts.items() if name != "client"}
        params = tree.pick(every, self.order)
        return self.model.method.predict(task, params, batch | facts | {"x": x}).float().softmax(-1)


def drawn(model: Model) -> Tree:
    """Return what is drawn once per client and stays the same for all images in testing."""
    task, batch = model.batch(_one_image(model))
    draws = model.method.draws(task)
    return {f"{DRAW}{name}": batch[name] for name, draw in draws.items() if draw.per == "batch" and name in batch}


def _one_image(model: Model) -> Images:
    return torch.zeros(1, *model.shape, 3, dtype=torch.uint8).numpy()
