"""A pretrained residual network (He et al. 2016), such as ResNet-50: frozen, or trained as a whole.

Batch norm always uses the pretrained mean and variance and learns its scale and shift at most. So an image's features
do not depend on what else is in its batch, which in a stack of clients is partly padding, and statistics of single
domains are neither mixed nor sent.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.backbones import residual
from promptfed.backbones.init import affine
from promptfed.backbones.pretrained import fingerprint
from promptfed.backbones.residual import FIFTY, ResNetArch, shapes, trained
from promptfed.backbones.resizing import resized
from promptfed.backbones.resnet_checkpoint import read_arch, read_weights
from promptfed.backbones.transformer import Statistics
from promptfed.core import ops
from promptfed.core.errors import PromptFedError
from promptfed.core.options import Whole
from promptfed.core.protocols import Draw, Rng, Tokens
from promptfed.core.tree import Tree

NO_TOKENS = "A residual network takes no prompt tokens; use backbone.name=vit."


@dataclass(frozen=True)
class ResNet:
    """A pretrained ResNet, frozen unless a method trains it: from the model hub by name, or from files."""

    name: ClassVar[str] = "resnet"
    shape: tuple[int, int, int]
    classes: int
    weights: str = "microsoft/resnet-50"  # or a folder in the hub's layout, or a .safetensors or .pth of torchvision
    size: Whole = 0  # images are resized to this many pixels per side; 0: as they come
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # of the forward; auto: bf16 on a GPU, fp32 on a CPU

    @classmethod
    def random(
        cls,
        shape: tuple[int, int, int],
        classes: int,
        arch: ResNetArch = FIFTY,
        *,
        seed: int = 0,
        size: int = 0,
        precision: Literal["auto", "fp32", "bf16"] = "auto",
    ) -> "LoadedResNet":
        """Return a network with random weights on the CPU: for tests and for measuring speed, without files."""
        generator = torch.Generator().manual_seed(seed)
        weights: Tree = {}
        for name, form in shapes(arch).items():
            if len(form) == 4:
                weights[name] = affine("unit", form, generator)["unit.weight"]
            else:
                weights[name] = torch.zeros(form) if name.endswith((".bias", ".mean")) else torch.ones(form)
        return cls(shape, classes, "random", size, precision).loaded(arch, weights, torch.device("cpu"))

    @property
    def arch(self) -> ResNetArch:
        """Return the pretrained network's architecture."""
        return read_arch(self.weights)

    @property
    def statistics(self) -> Statistics | None:
        """Return the mean and deviation of the pixels it was pretrained on."""
        return self.arch.statistics

    @property
    def token_width(self) -> int:
        """Refuse: there are no tokens."""
        raise PromptFedError(NO_TOKENS)

    @property
    def layers(self) -> int:
        """Refuse: there are no tokens."""
        raise PromptFedError(NO_TOKENS)

    def to(self, device: torch.device) -> "LoadedResNet":
        """Read the weights and return the network on `device`."""
        return self.loaded(self.arch, read_weights(self.weights), device)

    def loaded(self, arch: ResNetArch, weights: Tree, device: torch.device) -> "LoadedResNet":
        """Return the network of this architecture with `weights` on `device`."""
        low = self.precision == "bf16" or (self.precision == "auto" and device.type == "cuda")
        kind = torch.bfloat16 if low else torch.float32
        frozen = {name: value.to(device, _kind(value, kind)) for name, value in weights.items()}
        return LoadedResNet(
            self.shape,
            self.classes,
            self.weights,
            self.size,
            self.precision,
            form=arch,
            pretrained=weights,
            frozen=frozen,
        )


@dataclass(frozen=True, kw_only=True)
class LoadedResNet(ResNet):
    """A pretrained network with its weights: `pretrained` as read, `frozen` as the forward on the device uses them."""

    form: ResNetArch
    pretrained: Tree = field(compare=False, repr=False)
    frozen: Tree = field(compare=False, repr=False)

    @property
    def arch(self) -> ResNetArch:
        """Return the network's architecture."""
        return self.form

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of the weights and of the size and precision they are used in."""
        return fingerprint(self.pretrained, self._sides(), self.frozen["stem.weight"].dtype)

    def to(self, device: torch.device) -> "LoadedResNet":
        """Return it on another device."""
        return self.loaded(self.form, self.pretrained, device)

    def init(self, rng: Rng) -> Tree:
        """Return the pretrained weights without the norms' statistics, which stay frozen, and a fresh classifier."""
        return {name: value for name, value in self.pretrained.items() if trained(name)} | self.head(rng)

    def head(self, rng: Rng) -> Tree:
        """Return a fresh classifier."""
        return affine("head", (self.classes, self.form.widths[-1]), rng("head", shared=True))

    def draws(self) -> dict[str, Draw]:
        """Return nothing: there is no dropout."""
        return {}

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the mean over the last map [..., B, width] in float32.

        A weight that `weights` has takes the place of the frozen one; convolutions use it in the forward's precision.
        """
        if tokens is not None:
            raise PromptFedError(NO_TOKENS)
        kind = self.frozen["stem.weight"].dtype
        used = {
            name: weights[name].to(_kind(value, kind)) if name in weights else value
            for name, value in self.frozen.items()
        }
        return residual.features(self.form, used, resized(x, self._sides()).to(kind)).float()

    def _sides(self) -> tuple[int, int]:
        return (self.size, self.size) if self.size else self.shape[1:]

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the logits [..., B, classes]; the classifier is `weights`' own and used as it is."""
        features = self.features(weights, x, tokens=tokens, noise=noise)
        return ops.linear(features, weights["head.weight"], weights["head.bias"])


def _kind(value: Tensor, low: torch.dtype) -> torch.dtype:
    """Return the precision of a frozen weight: norms are small and keep all their digits."""
    return low if value.dim() >= 4 else torch.float32
