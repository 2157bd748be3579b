"""Whether what was exported answers as PromptFed does, tried on made-up images."""

from dataclasses import dataclass

import numpy as np

from promptfed.analysis.exports.graphs import Answers, Ask
from promptfed.analysis.predict import Model, probabilities
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.data.dataset import Images, Indices

COUNT = 8  # made-up images that every exported model is asked
TOLERANCE = 1e-4  # of a probability


@dataclass(frozen=True)
class Changed:
    """How the answers of a model in 8 bits differ from those of the whole one."""

    images: int
    same: int  # of the likeliest classes
    largest: float  # difference of a probability
    tested: int  # of the images, those that are the clients' test images
    right: tuple[int, int]  # test images classified correctly before and after

    def __add__(self, other: "Changed") -> "Changed":
        """Return the change over both."""
        right = self.right[0] + other.right[0], self.right[1] + other.right[1]
        images, same, tested = self.images + other.images, self.same + other.same, self.tested + other.tested
        return Changed(images, same, max(self.largest, other.largest), tested, right)


def made_up(shape: tuple[int, int], count: int = COUNT) -> Images:
    """Return images [count, H, W, 3]: noise, and every second one coarse, as a photograph's areas are."""
    rng = np.random.default_rng(0)
    fine = rng.integers(0, 256, (count, *shape, 3), np.uint8)
    coarse = rng.integers(0, 256, (count, 4, 4, 3), np.uint8)
    rows, columns = (np.arange(side) * 4 // side for side in shape)
    fine[1::2] = coarse[1::2][:, rows][:, :, columns]
    return fine


def largest_difference(ask: Ask, model: Model, own: Tree) -> float:
    """Ask the exported model, for several images and for a single one, and refuse answers that are not PromptFed's."""
    images = made_up(model.shape)
    expected = probabilities(model, images).numpy()
    answers = np.concatenate([ask(images[:1], own), ask(images[1:], own)])
    worst = float(np.abs(answers - expected).max())
    if not worst <= TOLERANCE:  # NaN is not
        raise PromptFedError(
            f"The exported model does not answer as PromptFed does: probabilities differ by up to {worst:.2g}, and "
            f"{TOLERANCE:g} is allowed; nothing was written."
        )
    return worst


def change(before: Answers, after: Answers, labels: Indices | None) -> Changed:
    """Compare the answers [N, classes] of two models for the same images."""
    first, second = before.argmax(-1), after.argmax(-1)
    right = (0, 0) if labels is None else (int((first == labels).sum()), int((second == labels).sum()))
    worst, same = float(np.abs(before - after).max()), int((first == second).sum())
    return Changed(len(before), same, worst, 0 if labels is None else len(before), right)
