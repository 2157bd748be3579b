"""Tiny text-to-image models with random weights, in memory and as folders in diffusers' layout."""

import os
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from promptfed.backbones.diffusion import Diffusion, LoadedDiffusion
from promptfed.backbones.pipeline import Pipeline, fresh_pipeline, write_pipeline
from promptfed.core.prompts.templates import OBJECT

CPU = torch.device("cpu")
SIDE = 8  # pixels; latents are 4 × 4


def tiny(**changes: Any) -> Pipeline:
    """Return a model of width 16 for 8 × 8 images that knows the templates' words, "flower", "sunflower", "thing"."""
    return fresh_pipeline(
        [*OBJECT, "flower", "sunflower", "thing"],
        unet={
            "sample_size": SIDE // 2,
            "block_out_channels": (8, 16),
            "layers_per_block": 1,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
            "norm_num_groups": 4,
            "attention_head_dim": 4,
        },
        vae={
            "sample_size": SIDE,
            "block_out_channels": (8, 8),
            "layers_per_block": 1,
            "latent_channels": 4,
            "norm_num_groups": 4,
            "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
            "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
        },
        text={"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"context": 20, "times": 100} | changes,
    )


def loaded(**changes: Any) -> LoadedDiffusion:
    """Return a tiny model on the CPU."""
    return Diffusion((3, SIDE, SIDE), 2).loaded(tiny(**changes), CPU)


def saved(folder: Path, **changes: Any) -> str:
    """Write a tiny model as the hub would keep it; return the folder."""
    write_pipeline(tiny(**changes), folder)
    return str(folder)
