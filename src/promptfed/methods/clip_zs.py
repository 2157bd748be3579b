"""CLIP-zs: zero-shot CLIP (Radford et al. ICML 2021). Nothing is learned and nothing travels; a baseline of FedAPT.

What the pretrained model knows by itself: every tuning has to beat it.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from promptfed.core import Batch, Data, Method, Task, Traits, Tree, dual
from promptfed.core.prompts.text import match


@dataclass(frozen=True)
class CLIPZS(Method):
    """Classify by "a photo of a {class}." and learn nothing."""

    name: ClassVar[str] = "clip-zs"
    backbone: ClassVar[str] = "clip"
    traits = Traits(reads="features", learns=False, open=True)

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Send nothing."""
        return {}, personal

    # -- what is used -----------------------------------------------------------
    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Eq. 1 of FedAPT: the scaled cosines of images and class names."""
        return match(batch["x"], dual(task).zero_shot, dual(task).scale)

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return the class names' features: a model that needs no client."""
        return {"text": dual(task).zero_shot}
