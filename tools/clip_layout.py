"""Dual encoders written as folders in the model hub's CLIP layout."""

import json
from pathlib import Path

from safetensors.torch import save_file

from promptfed.backbones.checkpoint import HALVES
from promptfed.backbones.clip_checkpoint import BLOCK_PARTS, PARTS, ClipArch
from promptfed.backbones.text import TextArch
from promptfed.backbones.tokenizer import END, START, Tokenizer
from promptfed.backbones.transformer import Arch
from promptfed.core import tree
from promptfed.core.tree import Tree
from promptfed.data.shops import SIDE


def hub_tensors(weights: Tree) -> Tree:
    """Return weights (`image.*`, `text.*`, `logit_scale`) in half precision under the model hub's names for a CLIP."""
    outer = {ours: theirs for theirs, ours in PARTS.items()}
    inner = {ours: theirs for theirs, ours in BLOCK_PARTS.items()}
    made: Tree = {}
    for name, value in weights.items():
        stem, _, kind = name.rpartition(".")
        if name in outer:
            made[outer[name]] = value
        elif stem in outer:
            made[f"{outer[stem]}.{kind}"] = value
        else:
            tower, block, part = stem.split(".")
            layer = f"{'vision' if tower == 'image' else 'text'}_model.encoder.layers.{block.removeprefix('block')}"
            thirds = zip("qkv", value.chunk(3), strict=True) if part == "qkv" else [(part, value)]
            made |= {f"{layer}.{inner[one]}.{kind}": own for one, own in thirds}
    return tree.map(lambda value: value.half().contiguous(), made)


def write(folder: Path, arch: ClipArch, weights: Tree, tokenizer: Tokenizer) -> None:
    """Write the model hub's CLIP layout."""
    patch = arch.image.patch
    shaped = {
        "image.cls": weights["image.cls"][0],
        "image.patch.weight": weights["image.patch.weight"].unflatten(1, (3, patch, patch)),
    }
    image = {"model_type": "clip_vision_model", "image_size": SIDE, "patch_size": patch, "num_channels": 3}
    write_folder(folder, image | tower_config(arch.image), arch.text, hub_tensors(weights | shaped), tokenizer)
    pixels = {"image_mean": HALVES[0], "image_std": HALVES[1], "size": {"height": SIDE, "width": SIDE}}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels, indent=1) + "\n", encoding="utf-8")


def write_folder(folder: Path, image: dict[str, object], arch: TextArch, tensors: Tree, tokenizer: Tokenizer) -> None:
    """Write tensors by their names on the hub, the tokenizer, and the configuration with `image` as that of images."""
    config = {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": arch.projection,
        "vision_config": image,
        "text_config": {
            "model_type": "clip_text_model",
            "vocab_size": arch.vocabulary,
            "max_position_embeddings": arch.positions,
            "bos_token_id": tokenizer.vocabulary[START],
            "eos_token_id": tokenizer.vocabulary[END],
            "pad_token_id": tokenizer.vocabulary[END],
        }
        | tower_config(arch),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes it for its owner alone
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (folder / "vocab.json").write_text(json.dumps(tokenizer.vocabulary, indent=0) + "\n", encoding="utf-8")
    merges = ["#version: 0.2", *(" ".join(pair) for pair in tokenizer.ranks)]
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")


def tower_config(arch: Arch | TextArch) -> dict[str, object]:
    """Return what the configurations of both towers have in common."""
    return {
        "hidden_size": arch.width,
        "num_hidden_layers": arch.depth,
        "num_attention_heads": arch.heads,
        "intermediate_size": arch.mlp,
        "hidden_act": "quick_gelu" if arch.quick_gelu else "gelu",
        "layer_norm_eps": arch.eps,
        "projection_dim": arch.projection,
    }
