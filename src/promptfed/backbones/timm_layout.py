"""Vision transformers as timm keeps them: config.json names an architecture, and the weights say the rest."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from promptfed.backbones.transformer import Arch, Statistics
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

KINDS = ("vit_", "deit_", "deit3_")
SUPPORTED = "supported are timm's ViTs with a class token: vit_…, deit_… and deit3_…, without distillation"
HALVES = [0.5, 0.5, 0.5]
HEAD_WIDTHS = {1280: 80, 1408: 88, 1664: 104}  # of the huge, giant and gigantic ones; of all others 64
WHOLE = re.compile(
    r"cls_token|pos_embed|reg_token|patch_embed\.proj\.(weight|bias)|norm\.(weight|bias)|head\..*|mask_token"
)
BLOCK = re.compile(r"blocks\.\d+\.((norm1|norm2|attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\.(weight|bias)|ls[12]\.gamma)")
Shapes = Mapping[str, list[int]]


def is_timm(config: Mapping[str, Any]) -> bool:
    """Say whether a configuration is timm's."""
    return isinstance(config.get("architecture"), str) and "model_type" not in config


def timm_arch(folder: Path, config: Mapping[str, Any], shapes: Shapes) -> Arch:
    """Return the form of the network in a folder, read off the shapes of its weights."""
    _check(folder, config, shapes)
    width, mlp = shapes["blocks.0.mlp.fc2.weight"]
    heads = (config.get("model_args") or {}).get("num_heads", width // HEAD_WIDTHS.get(width, 64))
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise PromptFedError(f"{folder} has num_heads={heads}, which does not divide its width, {width}.")
    patch = shapes["patch_embed.proj.weight"][-1]
    return Arch(
        width=width,
        depth=len({name.split(".")[1] for name in shapes if name.startswith("blocks.")}),
        heads=heads,
        patch=patch,
        mlp=mlp,
        grid=_grid(folder, config, shapes, patch),
        layer_scale="blocks.0.ls1.gamma" in shapes,
        swiglu=_gated(shapes),
        patch_bias="patch_embed.proj.bias" in shapes,
        registers=shapes["reg_token"][-2] if "reg_token" in shapes else 0,
        statistics=_statistics(folder, config),
    )


def with_class_position(found: Tree, arch: Arch) -> Tree:
    """Return the tensors with a zero position of the class token where the network gives it none."""
    position = found.get("position")
    if position is None or position.shape[-2] != arch.grid[0] * arch.grid[1]:
        return found
    return found | {"position": torch.cat([torch.zeros_like(position[..., :1, :]), position], -2)}


def _check(folder: Path, config: Mapping[str, Any], shapes: Shapes) -> None:
    """Refuse what is another kind of network."""
    name = config["architecture"]
    if not name.startswith(KINDS) or "cls_token" not in shapes:
        raise PromptFedError(f'{folder} holds timm\'s "{name}"; {SUPPORTED}.')
    if config.get("global_pool", "token") not in ("token", ""):
        raise PromptFedError(f'{folder} pools by "{config["global_pool"]}", not by its class token; {SUPPORTED}.')
    if strange := [one for one in shapes if not (WHOLE.fullmatch(one) or BLOCK.fullmatch(one))]:
        raise PromptFedError(f'{folder} has a weight "{strange[0]}", which a plain ViT has not; {SUPPORTED}.')
    for needed in ("pos_embed", "patch_embed.proj.weight", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight"):
        if needed not in shapes:
            raise PromptFedError(f'{folder} is not a complete checkpoint: it has no weight for "{needed}".')
    if _gated(shapes) and "dinov2" not in name:
        raise PromptFedError(f'{folder} holds "{name}" with a gated MLP; only DINOv2\'s is supported.')


def _gated(shapes: Shapes) -> bool:
    return shapes["blocks.0.mlp.fc1.weight"][0] == 2 * shapes["blocks.0.mlp.fc2.weight"][1]


def _grid(folder: Path, config: Mapping[str, Any], shapes: Shapes, patch: int) -> tuple[int, int]:
    """Return the rows and columns of patches that have a position; the class token may have one as well."""
    count = shapes["pos_embed"][-2]
    sides = _pretrained(config).get("input_size")
    if isinstance(sides, list) and len(sides) == 3 and all(isinstance(side, int) for side in sides):
        rows, columns = sides[1] // patch, sides[2] // patch
        if rows * columns in (count, count - 1):
            return rows, columns
    for patches in (count - 1, count):
        if (side := math.isqrt(patches)) ** 2 == patches:
            return side, side
    raise PromptFedError(f"{folder} has {count} positions, which are no square of patches.")


def _pretrained(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the images were like in pretraining; old files have it beside the architecture."""
    found = config.get("pretrained_cfg")
    return found if isinstance(found, dict) else config


def _statistics(folder: Path, config: Mapping[str, Any]) -> Statistics:
    """Return the mean and deviation of the pixels."""
    found = []
    for key in ("mean", "std"):
        values = _pretrained(config).get(key, HALVES)
        numbers = isinstance(values, (list, tuple)) and len(values) == 3
        if not numbers or not all(isinstance(one, (int, float)) and math.isfinite(one) for one in values):
            raise PromptFedError(f"{folder / 'config.json'} must give {key} for three channels.")
        found.append((float(values[0]), float(values[1]), float(values[2])))
    return found[0], found[1]
