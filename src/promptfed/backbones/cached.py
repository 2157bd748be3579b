"""A pretrained backbone whose images have already become features: what it is given is what it would return."""

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor

from promptfed.core import ops
from promptfed.core.protocols import Backbone, DualEncoder, Tokens
from promptfed.core.tree import Tree


class Cached:
    """`backbone` without its image tower: batches hold features, computed once. All else is the backbone's own."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling ask for these before there is a backbone to ask
            raise AttributeError(name)
        return getattr(self.backbone, name)

    def named(self, names: Sequence[str]) -> "Cached":
        """Return it with other classes' names; it has to be a dual encoder."""
        return Cached(cast(DualEncoder, self.backbone).named(names))

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the features as they are."""
        return x

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the logits [..., B, classes]."""
        return ops.linear(x, weights["head.weight"], weights["head.bias"])
