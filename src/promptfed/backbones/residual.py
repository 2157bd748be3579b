"""The residual network itself (He et al. 2016): its architecture, the shapes of its weights, and its forward pass."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.backbones.transformer import Statistics
from promptfed.core import ops
from promptfed.core.tree import Tree

EPS = 1e-5  # of batch norm
NORM_PARTS = ("weight", "bias", "mean", "var")


@dataclass(frozen=True)
class ResNetArch:
    """The architecture of a residual network whose blocks halve the image, if at all, in their 3×3 convolution."""

    stem: int
    widths: tuple[int, ...]  # channels after each stage
    depths: tuple[int, ...]  # blocks of each stage
    bottleneck: bool = True  # a block is 1×1, 3×3, 1×1 through a quarter of the channels; else 3×3, 3×3
    statistics: Statistics | None = None  # of the pixels it was pretrained on


@dataclass(frozen=True)
class Unit:
    """One convolution with its norm: its name, channels in and out, side of its kernel, and stride."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int


@dataclass(frozen=True)
class ResidualBlock:
    """The units of one residual block, and the one in its shortcut, if any."""

    units: tuple[Unit, ...]
    shortcut: Unit | None


FIFTY = ResNetArch(64, (256, 512, 1024, 2048), (3, 4, 6, 3))


@cache
def blocks(arch: ResNetArch) -> tuple[ResidualBlock, ...]:
    """Return the residual blocks in order."""
    found, inputs = [], arch.stem
    for stage, (width, depth) in enumerate(zip(arch.widths, arch.depths, strict=True)):
        for number in range(depth):
            name, stride = f"stage{stage}.block{number}", 2 if stage and not number else 1
            inner = width // 4 if arch.bottleneck else width
            plan = [(inner, 1, 1), (inner, 3, stride), (width, 1, 1)] if arch.bottleneck else [(width, 3, stride)]
            plan = plan if arch.bottleneck else [*plan, (width, 3, 1)]
            units, channels = [], inputs
            for part, (outputs, kernel, step) in enumerate(plan):
                units.append(Unit(f"{name}.unit{part}", channels, outputs, kernel, step))
                channels = outputs
            bridged = inputs != width or stride > 1
            shortcut = Unit(f"{name}.shortcut", inputs, width, 1, stride) if bridged else None
            found.append(ResidualBlock(tuple(units), shortcut))
            inputs = width
    return tuple(found)


@cache
def shapes(arch: ResNetArch) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by name, the head's left out; `norm.mean` and `norm.var` are never trained."""
    found: dict[str, tuple[int, ...]] = {}
    inner = [unit for block in blocks(arch) for unit in (*block.units, block.shortcut) if unit is not None]
    for unit in (Unit("stem", 3, arch.stem, 7, 2), *inner):
        found[f"{unit.name}.weight"] = unit.outputs, unit.inputs, unit.kernel, unit.kernel
        for kind in NORM_PARTS:
            found[f"{unit.name}.norm.{kind}"] = (unit.outputs,)
    return found


def trained(name: str) -> bool:
    """Say whether a weight of that name may be trained."""
    return not name.endswith((".norm.mean", ".norm.var"))


def features(arch: ResNetArch, weights: Tree, x: Tensor) -> Tensor:
    """Return the mean over the last map of images x [..., B, 3, H, W]: [..., B, widths[-1]]."""

    def unit(name: str, z: Tensor, stride: int) -> Tensor:
        return _norm(_conv(z, weights[f"{name}.weight"], stride), weights, f"{name}.norm")

    z = F.relu(unit("stem", x, 2))
    z = F.max_pool2d(z.flatten(0, -4), 3, 2, 1).unflatten(0, z.shape[:-3])
    for block in blocks(arch):
        branch = z
        for one in block.units[:-1]:
            branch = F.relu(unit(one.name, branch, one.stride))
        last = block.units[-1]
        past = z if block.shortcut is None else unit(block.shortcut.name, z, block.shortcut.stride)
        z = F.relu(unit(last.name, branch, last.stride) + past)
    return z.mean((-2, -1))


def _conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve x [lead, ..., I, H, W] by weight [lead, O, I, k, k], the sides padded by half the kernel.

    A stack goes client by client: on images of this size one client's convolution fills a GPU.
    """
    padding = weight.shape[-1] // 2
    if weight.dim() > 4:
        return torch.stack([_conv(one, own, stride) for one, own in zip(x, weight, strict=True)])
    out: Tensor = F.conv2d(x.flatten(0, -4), weight, None, stride, padding).unflatten(0, x.shape[:-3])
    return out


def _norm(x: Tensor, weights: Tree, name: str) -> Tensor:
    """Scale and shift channels as batch norm in evaluation does; both are computed in the norm's own precision."""
    weight, bias, mean, var = (weights[f"{name}.{kind}"] for kind in NORM_PARTS)
    scale = weight * torch.rsqrt(var + EPS)
    shift = bias - mean * scale
    scale, shift = (ops.spread(one.to(x.dtype)[..., None, None], 3, x) for one in (scale, shift))
    return torch.addcmul(shift, x, scale)
