"""Dual encoders from folders in the model hub's CLIP layout: their architecture, and both towers' weights.

The image tower may also be a DINOv2, with `vision_config.model_type` saying so.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from promptfed.backbones import checkpoint, text, tokenizer, transformer
from promptfed.backbones.text import TextArch
from promptfed.backbones.tokenizer import Tokenizer
from promptfed.backbones.transformer import Arch, Statistics
from promptfed.core.errors import PromptFedError, choice
from promptfed.core.tree import Tree

EMBEDDED = Path(__file__).parent / "embedded_clip"
PIXELS: Statistics = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
TENSORS = ["model*.safetensors", "model.safetensors.index.json"]

# what a config.json leaves out has these values
SHARED: dict[str, Any] = {"num_hidden_layers": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
IMAGE: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "num_channels": 3,
}
TEXT: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "vocab_size": 49408,
    "max_position_embeddings": 77,
}

PARTS = {
    "vision_model.embeddings.class_embedding": "image.cls",
    "vision_model.embeddings.patch_embedding.weight": "image.patch.weight",
    "vision_model.embeddings.position_embedding.weight": "image.position",
    "vision_model.pre_layrnorm": "image.prenorm",
    "vision_model.post_layernorm": "image.norm",
    "visual_projection.weight": "image.projection.weight",
    "text_model.embeddings.token_embedding.weight": "text.token",
    "text_model.embeddings.position_embedding.weight": "text.position",
    "text_model.final_layer_norm": "text.norm",
    "text_projection.weight": "text.projection.weight",
    "logit_scale": "logit_scale",
}
BLOCK = re.compile(r"(vision|text)_model\.encoder\.layers\.(\d+)\.(.+)\.(weight|bias)")
BLOCK_PARTS = {
    "layer_norm1": "norm1",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.out_proj": "out",
    "layer_norm2": "norm2",
    "mlp.fc1": "mlp1",
    "mlp.fc2": "mlp2",
}


@dataclass(frozen=True)
class ClipArch:
    """The architectures of the two towers."""

    image: Arch
    text: TextArch


@dataclass(frozen=True)
class Towers:
    """The weights of the two towers, the logarithm of what cosines are multiplied by, and the tokenizer."""

    image: Tree
    text: Tree
    logit_scale: Tensor
    tokenizer: Tokenizer


@cache
def read_arch(weights: str) -> ClipArch:
    """Return the architecture of the dual encoder called `weights`, without reading its weights."""
    folder = _folder(weights, checkpoint.CONFIGS)
    config = checkpoint.read_json(folder / "config.json")
    if config.get("model_type") != "clip":
        raise choice("model_type", str(config.get("model_type")), ["clip"], str(folder / "config.json"))
    towers = [config.get(f"{tower}_config") or config.get(f"{tower}_config_dict") for tower in ("vision", "text")]
    image, words = (tower if isinstance(tower, dict) else {} for tower in towers)
    projection = checkpoint.count(folder, "projection_dim", config.get("projection_dim", 512))
    return ClipArch(_image_arch(folder, image, projection), _text_arch(folder, words, projection))


def read_towers(weights: str) -> Towers:
    """Return the numbers of the dual encoder called `weights`, in float32, and its tokenizer."""
    form, wanted = read_arch(weights), [*checkpoint.CONFIGS, *tokenizer.FILES]
    folder = _folder(weights, [*wanted, *TENSORS])
    if not any(folder.glob("model*.safetensors*")):
        folder = _folder(weights, [*wanted, "pytorch_model.bin"])
    found = checkpoint.fused(checkpoint.read_tensors(folder, _our_name))
    if "image.cls" in found and found["image.cls"].dim() == 1:
        found["image.cls"] = found["image.cls"][None]

    def tower(prefix: str, shapes: dict[str, tuple[int, ...]]) -> Tree:
        own = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
        return checkpoint.fitted(folder, own, shapes)

    image, words = tower("image.", transformer.shapes(form.image)), tower("text.", text.shapes(form.text))
    scale = checkpoint.fitted(folder, found, {"logit_scale": ()})["logit_scale"]
    spelled = tokenizer.read_tokenizer(folder)
    if max(spelled.vocabulary.values()) >= form.text.vocabulary:
        raise PromptFedError(
            f"The tokenizer in {folder} has more tokens than the text tower's vocab_size={form.text.vocabulary}."
        )
    return Towers(image, words, scale, spelled)


def _folder(weights: str, patterns: list[str]) -> Path:
    place = checkpoint.find(weights, patterns, EMBEDDED)
    if place.is_file():
        raise PromptFedError(f'backbone.weights="{weights}" is a file; a dual encoder is a folder in CLIP\'s layout.')
    return place


def _image_arch(folder: Path, given: dict[str, Any], projection: int) -> Arch:
    if given.get("model_type", "clip_vision_model") != "clip_vision_model":
        return replace(checkpoint.vit_arch(folder, given), projection=projection)
    config = SHARED | IMAGE | given
    checkpoint.require(folder, config, {"hidden_act": ("quick_gelu", "gelu")})
    patch, grid = checkpoint.patches(folder, config)
    width, depth, heads = checkpoint.sizes(folder, config)
    return Arch(
        width=width,
        depth=depth,
        heads=heads,
        patch=patch,
        mlp=checkpoint.count(folder, "intermediate_size", config["intermediate_size"]),
        grid=grid,
        eps=checkpoint.positive(folder, "layer_norm_eps", config["layer_norm_eps"]),
        quick_gelu=config["hidden_act"] == "quick_gelu",
        pre_norm=True,
        patch_bias=False,
        projection=projection,
        statistics=checkpoint.statistics(folder, PIXELS),
    )


def _text_arch(folder: Path, given: dict[str, Any], projection: int) -> TextArch:
    config = SHARED | TEXT | given
    checkpoint.require(folder, config, {"hidden_act": ("quick_gelu", "gelu")})
    width, depth, heads = checkpoint.sizes(folder, config)
    keys = ("intermediate_size", "vocab_size", "max_position_embeddings")
    mlp, vocabulary, positions = (checkpoint.count(folder, key, config[key]) for key in keys)
    return TextArch(
        width=width,
        depth=depth,
        heads=heads,
        mlp=mlp,
        vocabulary=vocabulary,
        positions=positions,
        projection=projection,
        eps=checkpoint.positive(folder, "layer_norm_eps", config["layer_norm_eps"]),
        quick_gelu=config["hidden_act"] == "quick_gelu",
    )


def _our_name(theirs: str, path: Path) -> str:
    """Return our name for a tensor, or an empty text for one without use here, such as a list of positions."""
    if theirs in PARTS:
        return PARTS[theirs]
    stem, _, kind = theirs.rpartition(".")
    if stem in PARTS:
        return f"{PARTS[stem]}.{kind}"
    match = BLOCK.fullmatch(theirs)
    if match is None:  # perhaps of another image tower
        plain = theirs.removeprefix("vision_model.")
        name = checkpoint.vit_name(plain, path) if plain != theirs else ""
        return f"image.{name}" if name else ""
    tower, number, part, kind = match.groups()
    ours = BLOCK_PARTS.get(part)
    return "" if ours is None else f"{'image' if tower == 'vision' else 'text'}.block{number}.{ours}.{kind}"
