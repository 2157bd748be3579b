"""A pretrained residual network (He et al. 2016), such as ResNet-50: frozen, or trained as a whole.

Batch norm always uses the pretrained mean and variance and learns its scale and shift at most. So an image's features
do not depend on what else is in its batch, which in a stack of clients is partly padding, and statistics of single
domains are neither mixed nor sent.
"""

import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.backbones import checkpoint
from promptfed.backbones.init import affine
from promptfed.backbones.pretrained import fingerprint
from promptfed.backbones.resizing import resized
from promptfed.backbones.transformer import Statistics
from promptfed.core import ops
from promptfed.core.errors import PromptFedError
from promptfed.core.options import Whole
from promptfed.core.protocols import Draw, Rng, Tokens
from promptfed.core.tree import Tree

EPS = 1e-5  # of batch norm
PICKLED = (".pth", ".pt")  # what torchvision's downloads are
TENSORS = ["model*.safetensors", "model.safetensors.index.json"]
NO_TOKENS = "A residual network takes no prompt tokens; use backbone.name=vit."

# what a config.json leaves out has these values
DEFAULTS: dict[str, Any] = {
    "num_channels": 3,
    "embedding_size": 64,
    "hidden_sizes": [256, 512, 1024, 2048],
    "depths": [3, 4, 6, 3],
    "layer_type": "bottleneck",
    "hidden_act": "relu",
    "downsample_in_first_stage": False,
    "downsample_in_bottleneck": False,
}

# the hub's names and torchvision's, and ours: a unit is a convolution with its norm
HUB = re.compile(
    r"encoder\.stages\.(\d+)\.layers\.(\d+)\.(?:(shortcut)|layer\.(\d+))\.(convolution|normalization)\.(\w+)"
)
VISION = re.compile(r"layer(\d)\.(\d+)\.(?:(downsample)\.([01])|(conv|bn)(\d))\.(\w+)")
STEMS = {
    "embedder.embedder.convolution": "stem",
    "embedder.embedder.normalization": "stem.norm",
    "conv1": "stem",
    "bn1": "stem.norm",
}
KINDS = {"weight": "weight", "bias": "bias", "running_mean": "mean", "running_var": "var"}


@dataclass(frozen=True)
class ResNetArch:
    """The form of a residual network whose blocks halve the image, if at all, in their 3×3 convolution."""

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
class Block:
    """The units of one residual block, and the one in its shortcut, if any."""

    units: tuple[Unit, ...]
    shortcut: Unit | None


FIFTY = ResNetArch(64, (256, 512, 1024, 2048), (3, 4, 6, 3))


@cache
def blocks(arch: ResNetArch) -> tuple[Block, ...]:
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
            found.append(Block(tuple(units), shortcut))
            inputs = width
    return tuple(found)


@cache
def shapes(arch: ResNetArch) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by name, the head's left out; `norm.mean` and `norm.var` are never trained."""
    found: dict[str, tuple[int, ...]] = {}
    inner = [unit for block in blocks(arch) for unit in (*block.units, block.shortcut) if unit is not None]
    for unit in (Unit("stem", 3, arch.stem, 7, 2), *inner):
        found[f"{unit.name}.weight"] = unit.outputs, unit.inputs, unit.kernel, unit.kernel
        for kind in KINDS.values():
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
    weight, bias, mean, var = (weights[f"{name}.{kind}"] for kind in KINDS.values())
    scale = weight * torch.rsqrt(var + EPS)
    shift = bias - mean * scale
    scale, shift = (ops.spread(one.to(x.dtype)[..., None, None], 3, x) for one in (scale, shift))
    return torch.addcmul(shift, x, scale)


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
        """Return the pretrained network's form."""
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
        """Return the network of this form with `weights` on `device`."""
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
        """Return the network's form."""
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
        return features(self.form, used, resized(x, self._sides()).to(kind)).float()

    def _sides(self) -> tuple[int, int]:
        return (self.size, self.size) if self.size else self.shape[1:]

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the logits [..., B, classes]; the classifier is `weights`' own and used as it is."""
        features = self.features(weights, x, tokens=tokens, noise=noise)
        return ops.linear(features, weights["head.weight"], weights["head.bias"])


def _kind(value: Tensor, low: torch.dtype) -> torch.dtype:
    """Return the precision of a frozen weight: norms are small and keep all their digits."""
    return low if value.dim() >= 4 else torch.float32


# -- from files ---------------------------------------------------------------------------------------------------


@cache
def read_arch(weights: str) -> ResNetArch:
    """Return the form of the network called `weights`: what its config.json says, or a file's tensors show."""
    place = _find(weights, checkpoint.CONFIGS)
    if place.is_file():
        return _arch_of_tensors(place, _read(place))
    given = checkpoint.read_json(place / "config.json")
    checkpoint.require(place, {"model_type": None} | given, {"model_type": ("resnet",)})
    config = DEFAULTS | given
    allowed: dict[str, tuple[object, ...]] = {
        "num_channels": (3,),
        "hidden_act": ("relu",),
        "layer_type": ("bottleneck", "basic"),
        "downsample_in_first_stage": (False,),
        "downsample_in_bottleneck": (False,),
    }
    checkpoint.require(place, config, allowed)
    widths, depths = (
        tuple(checkpoint.count(place, key, one) for one in _several(place, key, config[key]))
        for key in ("hidden_sizes", "depths")
    )
    if len(widths) != len(depths):
        raise PromptFedError(f"{place} has {len(widths)} hidden_sizes, but {len(depths)} depths.")
    stem = checkpoint.count(place, "embedding_size", config["embedding_size"])
    statistics = checkpoint.statistics(place, checkpoint.IMAGENET)
    return ResNetArch(stem, widths, depths, config["layer_type"] == "bottleneck", statistics)


def read_weights(weights: str) -> Tree:
    """Return the numbers of the network called `weights`, by our names and in float32."""
    arch, place = read_arch(weights), _find(weights, [*checkpoint.CONFIGS, *TENSORS])
    if place.is_dir() and not any(place.glob("model*.safetensors*")):
        place = _find(weights, [*checkpoint.CONFIGS, "pytorch_model.bin"])
    return checkpoint.fitted(place, _read(place), shapes(arch))


def _find(weights: str, patterns: list[str]) -> Path:
    path = Path(weights).expanduser()
    if weights == "embedded":
        raise PromptFedError("No ResNet is embedded; give backbone.weights a hub name, a folder or a file.")
    if path.suffix in PICKLED and not path.exists():
        raise PromptFedError(f'backbone.weights="{weights}": there is no such file.')
    return checkpoint.find(weights, patterns, path)


def _several(folder: Path, key: str, value: object) -> list[object]:
    if not isinstance(value, list) or not value:
        raise PromptFedError(f"{folder / 'config.json'} has {key}={value}; it must be a list of whole numbers.")
    return value


def _read(place: Path) -> Tree:
    """Return the tensors of a folder or file under our names."""
    if place.suffix not in PICKLED:
        return checkpoint.read_tensors(place, _our_name)
    try:
        found = torch.load(place, map_location="cpu", weights_only=True)
    except Exception as error:  # a torn pickle may end in any of them
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise PromptFedError(f"{place} is no whole PyTorch file: {reason}.") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise PromptFedError(f"{place} holds no weights by name; save the network's state_dict().")
    return {name: value for theirs, value in found.items() if (name := _our_name(theirs, place))}


def _arch_of_tensors(path: Path, found: Tree) -> ResNetArch:
    """Read the form off the names and shapes of the weights."""
    numbers = [match for name in found if (match := re.match(r"stage(\d+)\.block(\d+)\.unit(\d+)\.weight", name))]
    if not numbers or "stem.weight" not in found:
        raise PromptFedError(f"{path} has neither torchvision's names of a ResNet nor the hub's.")
    stages = range(1 + max(int(match[1]) for match in numbers))
    depths = tuple(len({match[2] for match in numbers if int(match[1]) == stage}) for stage in stages)
    last = max(int(match[3]) for match in numbers)
    ends = [f"stage{stage}.block0.unit{last}.weight" for stage in stages]
    if lacking := [name for name in ends if name not in found]:
        raise PromptFedError(f'{path} is no whole checkpoint: it has no weight for "{lacking[0]}".')
    widths = tuple(len(found[name]) for name in ends)
    return ResNetArch(len(found["stem.weight"]), widths, depths, last == 2, checkpoint.IMAGENET)


def _our_name(theirs: str, path: Path) -> str:
    """Return our name for a tensor, or an empty text for one without use here: a classifier, a count of batches."""
    plain = theirs.removeprefix("resnet.")
    if match := HUB.fullmatch(plain):
        stage, block, bridge, unit, part, kind = match.groups()
        name, normed = f"stage{stage}.block{block}", part == "normalization"
    elif match := VISION.fullmatch(plain):
        number, block, bridge, second, part, which, kind = match.groups()
        name, normed = f"stage{int(number) - 1}.block{block}", second == "1" if bridge else part == "bn"
        unit = "" if bridge else str(int(which) - 1)
    else:
        stem, _, kind = plain.rpartition(".")
        return f"{STEMS[stem]}.{KINDS[kind]}" if stem in STEMS and kind in KINDS else ""
    if kind not in KINDS:
        return ""
    return f"{name}.{'shortcut' if bridge else f'unit{unit}'}{'.norm' if normed else ''}.{KINDS[kind]}"
