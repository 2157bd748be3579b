"""A pretrained backbone whose images have already become features: what it is given is what it would return."""

from collections.abc import Sequence
from typing import Any, Literal, cast

from torch import Tensor

from promptfed.core import ops
from promptfed.core.errors import PromptFedError
from promptfed.core.protocols import Backbone, DualEncoder, Tokens
from promptfed.core.tree import Tree

Reads = Literal["pixels", "features", "patches"]


def seen(backbone: Any, reads: Reads, x: Tensor) -> Tensor:
    """Return what a method that reads these has in its batches of the images x [..., B, 3, H, W]."""
    if reads == "pixels":
        return x
    found: Tensor = backbone.features({}, x) if reads == "features" else backbone.patches({}, x)
    return found


def behind(backbone: Backbone, reads: Reads) -> Backbone:
    """Return the backbone as such a method has it, behind what its batches hold."""
    return backbone if reads == "pixels" else cast(Backbone, Cached(backbone, dense=reads == "patches"))


class Cached:
    """`backbone` without its image tower: batches hold features, computed once. All else is the backbone's own.

    If it is `dense`, batches hold the class token and all patches.
    """

    def __init__(self, backbone: Backbone, *, dense: bool = False) -> None:
        self.backbone, self.dense = backbone, dense

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling ask for these before there is a backbone to ask
            raise AttributeError(name)
        return getattr(self.backbone, name)

    def named(self, names: Sequence[str]) -> "Cached":
        """Return it with other classes' names; it has to be a dual encoder."""
        return Cached(cast(DualEncoder, self.backbone).named(names), dense=self.dense)

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the features as they are, of patches those of the class token."""
        return x[..., 0, :] if self.dense else x

    def patches(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, project: bool = True) -> Tensor:
        """Return the class token and all patches as they are."""
        if not (self.dense and project):
            raise PromptFedError('A method that looks at projected patches has reads="patches"; others are not kept.')
        return x

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the logits [..., B, classes]."""
        return ops.linear(self.features(weights, x), weights["head.weight"], weights["head.bias"])
