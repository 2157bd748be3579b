"""ResNets from the model hub's folders or torchvision's files: their architecture, and their weights."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptfed.backbones import checkpoint
from promptfed.backbones.residual import ResNetArch, shapes
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

PICKLED = (".pth", ".pt")  # what torchvision's downloads are
TENSORS = ["model*.safetensors", "model.safetensors.index.json"]

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


@cache
def read_arch(weights: str) -> ResNetArch:
    """Return the architecture of the network called `weights`, from its config.json or from a file's tensors."""
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
    except Exception as error:  # a damaged pickle may raise any of them
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise PromptFedError(f"{place} is not a complete PyTorch file: {reason}.") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise PromptFedError(f"{place} does not hold weights by name; save the network's state_dict().")
    return {name: value for theirs, value in found.items() if (name := _our_name(theirs, place))}


def _arch_of_tensors(path: Path, found: Tree) -> ResNetArch:
    """Read the architecture from the names and shapes of the weights."""
    numbers = [match for name in found if (match := re.match(r"stage(\d+)\.block(\d+)\.unit(\d+)\.weight", name))]
    if not numbers or "stem.weight" not in found:
        raise PromptFedError(f"{path} has neither torchvision's names of a ResNet nor the hub's.")
    stages = range(1 + max(int(match[1]) for match in numbers))
    depths = tuple(len({match[2] for match in numbers if int(match[1]) == stage}) for stage in stages)
    last = max(int(match[3]) for match in numbers)
    ends = [f"stage{stage}.block0.unit{last}.weight" for stage in stages]
    if lacking := [name for name in ends if name not in found]:
        raise PromptFedError(f'{path} is not a complete checkpoint: it has no weight for "{lacking[0]}".')
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
