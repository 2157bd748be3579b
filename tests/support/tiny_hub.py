"""Tiny checkpoints in the model hub's own layout, written by transformers, and their features worked out by hand."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import (
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    ViTConfig,
    ViTModel,
)

Model = Any  # a ViTModel or a Dinov2Model
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "patch_size": 4,
    "image_size": 16,
}


def vit(**changes: Any) -> Model:
    """Return a ViT of width 16, 3 layers, 4 × 4 patches, with no two weights alike."""
    return mixed(ViTModel(ViTConfig(**SIZES | {"intermediate_size": 40} | changes)))


def dinov2(**changes: Any) -> Model:
    """Return a DINOv2 of the same size."""
    return mixed(Dinov2Model(Dinov2Config(**SIZES | {"mlp_ratio": 2} | changes)))


def registered(**changes: Any) -> Model:
    """Return a DINOv2 with three registers."""
    config = Dinov2WithRegistersConfig(**SIZES | {"mlp_ratio": 2, "num_register_tokens": 3} | changes)
    return mixed(Dinov2WithRegistersModel(config))


def mixed(model: Model) -> Model:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.2 * torch.randn(value.shape, generator=generator))
    return model.eval()


def saved(model: Model, folder: Path) -> str:
    """Write the model as the hub would keep it; return the folder."""
    model.save_pretrained(folder)
    return str(folder)


def load_vit(folder: Path) -> Model:
    """Return the ViT that transformers finds in a folder."""
    return ViTModel.from_pretrained(folder, add_pooling_layer=False).float().eval()


def by_hand(model: Model, x: Tensor, prompts: list[Tensor]) -> Tensor:
    """Run embeddings, layers and norm one after the other; prompts enter behind the class token and are replaced."""
    is_vit = isinstance(model, ViTModel)
    z = model.embeddings(x, interpolate_pos_encoding=True) if is_vit else model.embeddings(x)
    for number, layer in enumerate(model.layers if is_vit else model.encoder.layer):
        if number < len(prompts):
            count = prompts[number - 1].shape[-2] if number else 0
            z = torch.cat([z[:, :1], prompts[number].expand(len(x), -1, -1), z[:, 1 + count :]], 1)
        z = layer(z)
    classes: Tensor = model.layernorm(z)[:, 0]
    return classes
