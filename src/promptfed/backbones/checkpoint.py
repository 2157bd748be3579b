"""Pretrained vision transformers from files: their architecture, and their weights under the names used here.

Read are folders in the model hub's layout (ViT and DINOv2), timm's ViTs, and single files with DINOv2's original names.
"""

import json
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from promptfed.backbones import timm_layout, transformer
from promptfed.backbones.transformer import Arch, Statistics
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

Found = TypeVar("Found")
Rename = Callable[[str, Path], str]  # from a checkpoint's name, in that file, to ours; an empty text: it has no use
EMBEDDED = Path(__file__).parent / "embedded"
CONFIGS = ["config.json", "preprocessor_config.json"]
WEIGHTS = ["model*.safetensors", "model.safetensors.index.json"]
IMAGENET: Statistics = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALVES: Statistics = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

# what a config.json leaves out has these values
DEFAULTS: dict[str, dict[str, Any]] = {
    "vit": {"patch_size": 16, "layer_norm_eps": 1e-12, "intermediate_size": 3072},
    "dinov2": {"patch_size": 14, "layer_norm_eps": 1e-6, "mlp_ratio": 4},
    "dinov2_with_registers": {
        "patch_size": 16,
        "layer_norm_eps": 1e-6,
        "mlp_ratio": 4,
        "num_register_tokens": 4,
    },
}
SHARED: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "image_size": 224,
    "num_channels": 3,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
}

# the names of hub ViTs (before and after transformers 5), hub DINOv2s and original DINOv2s, and ours
PARTS = {
    "embeddings.cls_token": "cls",
    "cls_token": "cls",
    "embeddings.position_embeddings": "position",
    "pos_embed": "position",
    "embeddings.patch_embeddings.projection": "patch",
    "patch_embed.proj": "patch",
    "embeddings.register_tokens": "registers",
    "register_tokens": "registers",
    "reg_token": "registers",
    "layernorm": "norm",
    "norm": "norm",
}
BLOCK = re.compile(r"(?:encoder\.layer|layers|blocks)\.(\d+)\.(.+)")
BLOCK_PARTS = {
    "layernorm_before": "norm1",
    "norm1": "norm1",
    "attention.attention.query": "q",
    "attention.attention.key": "k",
    "attention.attention.value": "v",
    "attention.q_proj": "q",
    "attention.k_proj": "k",
    "attention.v_proj": "v",
    "attn.qkv": "qkv",
    "attention.output.dense": "out",
    "attention.o_proj": "out",
    "attn.proj": "out",
    "layer_scale1.lambda1": "scale1",
    "ls1.gamma": "scale1",
    "layernorm_after": "norm2",
    "norm2": "norm2",
    "intermediate.dense": "mlp1",
    "mlp.fc1": "mlp1",
    "mlp.weights_in": "mlp1",
    "mlp.w12": "mlp1",
    "output.dense": "mlp2",
    "mlp.fc2": "mlp2",
    "mlp.weights_out": "mlp2",
    "mlp.w3": "mlp2",
    "layer_scale2.lambda1": "scale2",
    "ls2.gamma": "scale2",
}


@cache
def read_arch(weights: str) -> Arch:
    """Return the architecture of the pretrained network called `weights`, without reading its weights."""
    place = find(weights, CONFIGS, EMBEDDED)
    if place.is_file():
        return _arch_of_file(place)
    config = read_json(place / "config.json")
    if not timm_layout.is_timm(config):
        return vit_arch(place, config)
    place = find(weights, [*CONFIGS, *WEIGHTS], EMBEDDED)  # its form is read off its weights
    return timm_layout.timm_arch(place, config, _shapes(place, lambda theirs, _: theirs))


def read_weights(weights: str) -> Tree:
    """Return the numbers of the pretrained network called `weights`, by our names and in float32."""
    arch = read_arch(weights)
    place = find(weights, [*CONFIGS, *WEIGHTS], EMBEDDED)
    found = read_tensors(place, vit_name)
    if not place.is_file() and timm_layout.is_timm(read_json(place / "config.json")):
        found = timm_layout.with_class_position(found, arch)
    biased = place.is_file() or read_json(place / "config.json").get("qkv_bias", True)
    return fitted(place, fused(found, biased=bool(biased)), transformer.shapes(arch))


HUB_NAME = r"[\w-][\w.-]*/[\w.-]+(@[\w.-]+)?"  # OWNER/NAME or OWNER/NAME@REVISION


# -- where it is --------------------------------------------------------------------------------------------------


def find(weights: str, patterns: list[str], embedded: Path) -> Path:
    """Return the folder or file called `weights`; one on the hub is fetched, if need be, as far as `patterns` say.

    A name on the hub may end with @REVISION, a commit or a tag.
    """
    if weights == "embedded":
        return embedded
    path = Path(weights).expanduser()
    if path.exists():
        return path
    if weights.endswith(".safetensors") or not re.fullmatch(HUB_NAME, weights):
        raise PromptFedError(
            f'backbone.weights="{weights}": there is no such folder or file, and it is not a hub name.'
        )
    try:
        import httpx
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise PromptFedError(
            f'backbone.weights="{weights}" is not a folder here, and a name on the model hub needs the [hf] extra: '
            'pip install "promptfed[hf]".'
        ) from error
    try:
        name, _, revision = weights.partition("@")
        pinned = {"revision": revision} if revision else {}
        return Path(snapshot_download(name, allow_patterns=patterns, **pinned))
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise PromptFedError(
            f'backbone.weights="{weights}" is not a folder here, and the hub did not deliver it: {reason}.'
        ) from error


def _tensor_files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    index = place / "model.safetensors.index.json"
    if index.is_file():
        given = read_json(index).get("weight_map", {})
        names = sorted(set(map(str, given.values()))) if isinstance(given, dict) else [str(given)]
        if odd := [name for name in names if not re.fullmatch(r"[\w-][\w.-]*", name)]:
            raise PromptFedError(f'{index} names "{odd[0]}", which is not the name of a file beside it.')
        return [place / name for name in names]
    pickled = place / "pytorch_model.bin"  # what the hub kept before safetensors
    if pickled.is_file() and not (place / "model.safetensors").is_file():
        return [pickled]
    return [place / "model.safetensors"]


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PromptFedError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise PromptFedError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise PromptFedError(f"{path} does not hold a JSON object.")
    return content


# -- its architecture---------------------------------------------------------------------------------------------


def vit_arch(folder: Path, given: dict[str, Any]) -> Arch:
    """Return the architecture of the ViT or DINOv2 in a configuration; `folder` may have its pixels' statistics."""
    kind = str(given.get("model_type"))
    if kind not in DEFAULTS:
        raise PromptFedError(
            f'{folder / "config.json"} has model_type "{kind}"; supported are vit (DeiT without distillation is one), '
            "dinov2, dinov2_with_registers, and timm's ViTs with a class token."
        )
    config = SHARED | DEFAULTS[kind] | given
    patch, grid = patches(folder, config)
    require(folder, config, {"hidden_act": ("gelu",)})
    width, depth, heads = sizes(folder, config)
    dinov2, swiglu = kind != "vit", bool(config["use_swiglu_ffn"])
    mlp = count(folder, "mlp_ratio", config["mlp_ratio"]) * width if dinov2 else config["intermediate_size"]
    return Arch(
        width=width,
        depth=depth,
        heads=heads,
        patch=patch,
        mlp=(int(mlp * 2 / 3) + 7) // 8 * 8 if swiglu else count(folder, "intermediate_size", mlp),
        grid=grid,
        eps=positive(folder, "layer_norm_eps", config["layer_norm_eps"]),
        layer_scale=dinov2,
        swiglu=swiglu,
        registers=config.get("num_register_tokens", 0) if kind == "dinov2_with_registers" else 0,
        statistics=statistics(folder, IMAGENET if dinov2 else HALVES),
    )


def require(folder: Path, config: dict[str, Any], allowed: dict[str, tuple[object, ...]]) -> None:
    """Refuse a configuration with a value that is not among those `allowed` for its key."""
    for key, values in allowed.items():
        if config[key] not in values:
            known = " or ".join(f"{key}={value}" for value in values)
            raise PromptFedError(f"{folder} has {key}={config[key]}; only {known} is supported.")


def sizes(folder: Path, config: dict[str, Any]) -> tuple[int, int, int]:
    """Return a transformer's width, depth and heads."""
    width, depth, heads = (
        count(folder, key, config[key]) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    if width % heads:
        raise PromptFedError(f"{folder} has num_attention_heads={heads}, which does not divide hidden_size={width}.")
    return width, depth, heads


def patches(folder: Path, config: dict[str, Any]) -> tuple[int, tuple[int, int]]:
    """Return the side of a patch, and the rows and columns of patches."""
    require(folder, config, {"num_channels": (3,)})
    patch, other = _pair(folder, config, "patch_size")
    if patch != other:
        raise PromptFedError(f"{folder} has patches of {patch}×{other} pixels; only square ones are supported.")
    height, width = _pair(folder, config, "image_size")
    return patch, (height // patch, width // patch)


def count(folder: Path, key: str, value: object) -> int:
    """Return a whole number of at least 1, or say that a configuration has none."""
    if not isinstance(value, int) or value < 1:
        raise PromptFedError(f"{folder / 'config.json'} has {key}={value}; it must be a whole number of at least 1.")
    return value


def positive(folder: Path, key: str, value: object) -> float:
    """Return a positive number, or say that a configuration has none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise PromptFedError(f"{folder / 'config.json'} has {key}={value}; it must be a positive number.")
    return float(value)


def _pair(folder: Path, config: dict[str, Any], key: str) -> tuple[int, int]:
    """Return the height and width a configuration gives as one number or two."""
    given = config[key] if isinstance(config[key], list) else [config[key]]
    return count(folder, key, given[0]), count(folder, key, given[-1])


def statistics(folder: Path, usual: Statistics) -> Statistics:
    """Return the mean and deviation of pixels that a folder gives, or the usual ones."""
    path = folder / "preprocessor_config.json"
    given = read_json(path) if path.is_file() else {}
    mean, std = (given.get(key) or other for key, other in zip(("image_mean", "image_std"), usual, strict=True))
    for values in (mean, std):
        if not isinstance(values, (list, tuple)) or len(values) != 3 or not all(map(_is_number, values)):
            raise PromptFedError(f"{path} must give image_mean and image_std for three channels.")
    return (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _arch_of_file(path: Path) -> Arch:
    """Read the architecture of an original DINOv2 from the shapes of its weights; its heads are always 64 wide."""
    shapes = _shapes(path, vit_name)
    if not {"cls", "position", "patch.weight", "block0.qkv.weight", "block0.mlp2.weight"} <= shapes.keys():
        raise PromptFedError(f"{path} has no DINOv2 names; for another ViT give the folder with its config.json.")
    width, mlp = shapes["block0.mlp2.weight"]
    side = math.isqrt(shapes["position"][-2] - 1)
    return Arch(
        width=width,
        depth=len({name.split(".")[0] for name in shapes if name.startswith("block")}),
        heads=width // 64,
        patch=shapes["patch.weight"][-1],
        mlp=mlp,
        grid=(side, side),
        layer_scale="block0.scale1" in shapes,
        swiglu=shapes.get("block0.mlp1.weight", [mlp])[0] == 2 * mlp,
        registers=shapes["registers"][-2] if "registers" in shapes else 0,
        statistics=IMAGENET,
    )


# -- its numbers --------------------------------------------------------------------------------------------------


def read_tensors(place: Path, rename: Rename) -> Tree:
    """Return the tensors of a folder or file under our names."""
    return _read(place, lambda file, name: file.get_tensor(name), rename)


def _shapes(place: Path, rename: Rename) -> dict[str, list[int]]:
    """Return the shapes of a folder's or file's tensors, without reading them."""
    return _read(place, lambda file, name: list(file.get_slice(name).get_shape()), rename)


class _Pickled:
    """A pytorch_model.bin behind the interface of an open safetensors file."""

    def __init__(self, path: Path) -> None:
        try:
            self.tensors: Tree = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle may raise any of them
            raise OSError(str(error) or type(error).__name__) from error

    def __enter__(self) -> "_Pickled":
        return self

    def __exit__(self, *error: object) -> None:
        self.tensors = {}

    def keys(self) -> list[str]:
        return list(self.tensors)

    def get_tensor(self, name: str) -> Tensor:
        return self.tensors[name]


def _read(place: Path, get: Callable[[Any, str], Found], rename: Rename) -> dict[str, Found]:
    """Return what `get` finds in the tensor files under every name that has a place in our forward."""
    found: dict[str, Found] = {}
    for path in _tensor_files(place):
        if not path.is_file():
            raise PromptFedError(f"{place} has no {path.name}.")
        try:
            with _Pickled(path) if path.suffix == ".bin" else safe_open(path, "pt") as file:
                found |= {name: get(file, theirs) for theirs in file.keys() if (name := rename(theirs, path))}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            kind = "PyTorch" if path.suffix == ".bin" else "safetensors"
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise PromptFedError(f"{path} is not a complete {kind} file: {reason}.") from error
    return found


def fitted(place: Path, found: Tree, shapes: dict[str, tuple[int, ...]]) -> Tree:
    """Return the tensors that `shapes` asks for, in float32; a missing one, or one of another shape, is refused."""
    made: Tree = {}
    for name, shape in shapes.items():
        if name not in found:
            raise PromptFedError(f'{place} is not a complete checkpoint: it has no weight for "{name}".')
        made[name] = found[name].float().flatten(1) if name == "patch.weight" else found[name].float()
        if name in ("cls", "position", "registers") and made[name].dim() == 3:
            made[name] = made[name].squeeze(0)
        if made[name].shape != shape:
            sizes = ["×".join(map(str, size)) for size in (made[name].shape, shape)]
            raise PromptFedError(
                f'In {place} the weight for "{name}" is {sizes[0]}; its architecture needs {sizes[1]}.'
            )
    return made


def vit_name(theirs: str, path: Path) -> str:
    """Return our name for a tensor, or an empty text for one without use here: a pooler, a mask token, a head."""
    plain = re.sub(r"^(vit|dinov2|dinov2_with_registers)\.", "", theirs)
    stem, dot, kind = plain.rpartition(".")
    if kind not in ("weight", "bias"):
        stem, dot, kind = plain, "", ""
    match = BLOCK.fullmatch(stem)
    if match is None:
        return f"{PARTS[stem]}{dot}{kind}" if stem in PARTS else ""
    part = BLOCK_PARTS.get(match[2])
    return "" if part is None else f"block{match[1]}.{part}{dot}{kind}"


def fused(found: Tree, *, biased: bool = True) -> Tree:
    """Join separate query, key and value maps; those that are not `biased` get zeros."""
    joined = {name: value for name, value in found.items() if not re.search(r"\.[qkv]\.", name)}
    for name in found:
        if not name.endswith(".q.weight"):
            continue
        block = name.removesuffix(".q.weight")
        for kind in ("weight", "bias"):
            parts = [found[at] for one in "qkv" if (at := f"{block}.{one}.{kind}") in found]
            if len({part.shape for part in parts}) == 1 and len(parts) == 3:
                joined[f"{block}.qkv.{kind}"] = torch.cat(parts)
        if not biased:
            joined[f"{block}.qkv.bias"] = found[name].new_zeros(3 * len(found[name]))
    return joined
