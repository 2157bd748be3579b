"""A frozen pretrained vision transformer: only what a method passes in is trained, a head or prompt tokens."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.backbones import checkpoint, companions, float8, transformer
from promptfed.backbones.init import affine
from promptfed.backbones.resizing import resized
from promptfed.backbones.transformer import Arch, Statistics
from promptfed.core import ops, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.options import Whole
from promptfed.core.protocols import Draw, Rng, Tokens
from promptfed.core.tree import Tree

Precision = Literal["auto", "fp32", "bf16", "fp8"]  # fp8: the blocks' matrices in 8-bit floats, the rest in bf16


@dataclass(frozen=True)
class ViT:
    """A frozen pretrained ViT or DINOv2: embedded, from the model hub by name, or from files."""

    name: ClassVar[str] = "vit"
    shape: tuple[int, int, int]
    classes: int
    weights: str = "embedded"  # or a name on the hub, a folder in the hub's layout, an original DINOv2 .safetensors
    size: Whole = 0  # images are resized to this many pixels per side; 0: as they come
    precision: Precision = "auto"  # of the forward; auto: bf16 on a GPU, fp32 on a CPU

    @classmethod
    def random(
        cls,
        shape: tuple[int, int, int],
        classes: int,
        *,
        width: int,
        depth: int,
        heads: int,
        patch: int,
        mlp_ratio: int = 4,
        layer_scale: bool = False,
        swiglu: bool = False,
        seed: int = 0,
        size: int = 0,
        precision: Precision = "auto",
    ) -> "LoadedViT":
        """Return a network with random frozen weights on the CPU: for tests and for measuring speed, without files."""
        if width % heads:
            raise PromptFedError(f"heads={heads} does not divide width={width}.")
        made = cls(shape, classes, "random", size, precision)
        arch = Arch(width, depth, heads, patch, width * mlp_ratio, (0, 0), layer_scale=layer_scale, swiglu=swiglu)
        arch = replace(arch, grid=made.grid_of(arch))
        generator = torch.Generator().manual_seed(seed)
        weights = transformer.fresh(arch, generator)
        for name in ("cls", "position"):  # zeros would make all patches of one colour alike
            weights[name] = 0.02 * torch.randn(weights[name].shape, generator=generator)
        return made.loaded(arch, weights, torch.device("cpu"))

    @property
    def arch(self) -> Arch:
        """Return the pretrained network's architecture, read from its configuration alone."""
        return checkpoint.read_arch(self.weights)

    @property
    def statistics(self) -> Statistics | None:
        """Return the mean and deviation of the pixels it was pretrained on."""
        return self.arch.statistics

    @property
    def token_width(self) -> int:
        """Return the width of a prompt token."""
        return self.arch.width

    @property
    def layers(self) -> int:
        """Return how many layers take prompt tokens."""
        return self.arch.depth

    def to(self, device: torch.device) -> "LoadedViT":
        """Read the weights, fit their positions to the images, and return the network on `device`."""
        arch = self.arch
        grid = self.grid_of(arch)
        weights = checkpoint.read_weights(self.weights)
        weights["position"] = fit_positions(weights["position"], arch.grid, grid)
        return self.loaded(replace(arch, grid=grid), weights, device)

    def _sides(self) -> tuple[int, int]:
        return (self.size, self.size) if self.size else self.shape[1:]

    def grid_of(self, arch: Arch) -> tuple[int, int]:
        """Return the rows and columns of patches."""
        sides = self._sides()
        if sides[0] % arch.patch or sides[1] % arch.patch:
            usual = arch.patch * max(1, min(arch.grid[0] or sides[0] // arch.patch, 224 // arch.patch))
            raise PromptFedError(
                f"Images of {sides[0]}×{sides[1]} pixels do not divide into the backbone's patches of {arch.patch}; "
                f"set backbone.size={usual}."
            )
        return sides[0] // arch.patch, sides[1] // arch.patch

    def loaded(self, arch: Arch, weights: Tree, device: torch.device) -> "LoadedViT":
        """Return the network of this architecture with `weights` on `device`."""
        low = self.precision in ("bf16", "fp8") or (self.precision == "auto" and device.type == "cuda")
        if self.precision == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0):
            raise PromptFedError("backbone.precision=fp8 needs a Hopper GPU or a later one; set it to bf16.")
        placed = tree.to(weights, device)
        frozen = {name: value.to(torch.bfloat16 if low else torch.float32) for name, value in placed.items()}
        return LoadedViT(
            self.shape,
            self.classes,
            self.weights,
            self.size,
            self.precision,
            form=arch,
            pretrained=weights,
            frozen=frozen,
            low=transformer.quantised(arch, placed) if self.precision == "fp8" else (),
        )


@dataclass(frozen=True, kw_only=True)
class LoadedViT(ViT):
    """A pretrained network with its weights: `pretrained` as read, `frozen` as the forward on the device uses them."""

    form: Arch
    pretrained: Tree = field(compare=False, repr=False)
    frozen: Tree = field(compare=False, repr=False)
    low: tuple[float8.QuantisedBlock, ...] = field(compare=False, repr=False)

    @property
    def arch(self) -> Arch:
        """Return the network's architecture, its positions fitted to the images."""
        return self.form

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of the weights and of the size and precision they are used in."""
        kind = "fp8" if self.low else self.frozen["cls"].dtype
        return fingerprint(self.pretrained, self._sides(), kind)

    def to(self, device: torch.device) -> "LoadedViT":
        """Return it on another device."""
        return self.loaded(self.form, self.pretrained, device)

    def init(self, rng: Rng) -> Tree:
        """Return the pretrained weights and a fresh classifier: what fine-tuning starts from."""
        return self.pretrained | self.head(rng)

    def head(self, rng: Rng) -> Tree:
        """Return a fresh classifier."""
        return affine("head", (self.classes, self.form.width), rng("head", shared=True))

    def draws(self) -> dict[str, Draw]:
        """Return nothing: there is no dropout."""
        return {}

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the class token after the last block [..., B, width] in float32.

        A weight that `weights` has takes the place of the frozen one and is used in the forward's precision.
        """
        return self._forward(weights, x, tokens)

    def patches(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, project: bool = True) -> Tensor:
        """Return the class token and all patches after the last block [..., B, 1 + M, D] in float32."""
        return self._forward(weights, x, tokens, patches=True, project=project)

    def grown(
        self, weights: Tree, x: Tensor, *, tokens: Mapping[int, Tensor], nearest: int = 0, upto: int = 0
    ) -> Tensor:
        """Return features [..., B, width] in float32 of a sequence to which tokens come and stay, see the protocol."""
        kind = self.frozen["cls"].dtype
        placed = {number: value.to(kind) for number, value in tokens.items()}
        x, used = resized(x, self._sides()), self._used(weights)
        return transformer.grown(self.form, used, x, placed, nearest=nearest, upto=upto).float()

    def _used(self, weights: Tree) -> Tree:
        """Return the weights of a forward: the frozen ones, with those that are given in their place or beside them."""
        kind = self.frozen["cls"].dtype
        used = {name: weights[name].to(kind) if name in weights else value for name, value in self.frozen.items()}
        return used | {name: value.to(kind) for name, value in weights.items() if companions.is_one(name)}

    def _forward(self, weights: Tree, x: Tensor, tokens: Tokens | None, **how: bool) -> Tensor:
        if self.low and any(name.startswith("block") for name in weights):
            raise PromptFedError(
                "backbone.precision=fp8 is for frozen blocks, but this method trains them; set it to bf16."
            )
        kind = self.frozen["cls"].dtype
        if tokens is not None:
            tokens = tokens.to(kind) if isinstance(tokens, Tensor) else [layer.to(kind) for layer in tokens]
        beside = any(map(companions.is_one, weights))
        constant = not (x.requires_grad or beside or self.frozen.keys() & weights.keys())
        x, used = resized(x, self._sides()), self._used(weights)
        return transformer.features(self.form, used, x, tokens, low=self.low, prompts_only=constant, **how).float()

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return the outputs and inputs of every matrix that may have a pair of low rank beside it."""
        return companions.matrices(transformer.shapes(self.form))

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the logits [..., B, classes]; the classifier is `weights`' own and used as it is."""
        features = self.features(weights, x, tokens=tokens, noise=noise)
        return ops.linear(features, weights["head.weight"], weights["head.bias"])


def fingerprint(weights: Tree, *use: object) -> str:
    """Return a hash of weights and of the way they are used."""
    content = hashlib.sha256(str(use).encode())
    for name, value in weights.items():
        content.update(name.encode())
        content.update(value.numpy().tobytes())
    return content.hexdigest()


def fit_positions(position: Tensor, grid: tuple[int, int], wanted: tuple[int, int]) -> Tensor:
    """Interpolate positions [1 + rows·columns, width] from one grid of patches to another; the class token's stays."""
    if grid == wanted:
        return position
    plane = position[1:].view(1, *grid, -1).permute(0, 3, 1, 2)
    plane = F.interpolate(plane, wanted, mode="bicubic", align_corners=False)
    return torch.cat([position[:1], plane.permute(0, 2, 3, 1).flatten(0, 2)])
