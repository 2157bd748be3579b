"""What is done to training batches alone: a rate for the round, random changes of images, weights of classes."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from promptfed.core.schedule import Schedule
from promptfed.data.augment import Augment


@dataclass(frozen=True)
class ClassWeights:
    """How much an image of each class counts, from its client's own training images; on the mean an image counts 1."""

    kind: Literal["balanced", "effective"]
    beta: float = 0.999  # of the effective number of images, (1 − βⁿ) / (1 − β)

    def of(self, counts: Tensor) -> Tensor:
        """Return the weight of every class [..., classes] from the images of each; of a class without any, 0."""
        held = counts.clamp(min=1)
        each = 1 / held if self.kind == "balanced" else (1 - self.beta) / (1 - self.beta**held)
        each = each * (counts > 0)
        mean = (each * counts).sum(-1, keepdim=True) / counts.sum(-1, keepdim=True).clamp(min=1)
        return each / mean.clamp(min=1e-12)

    def weigh(self, mask: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """Return a batch's mask [..., B] with every image's weight in place of 1."""
        return mask * self.of(counts).take_along_dim(labels, -1)


@dataclass(frozen=True)
class Training:
    """What sets training batches apart; by default nothing does."""

    schedule: Schedule | None = None
    augment: Augment | None = None
    weights: ClassWeights | None = None


PLAIN = Training()
