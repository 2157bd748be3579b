"""Tiny dual encoders in CLIP's own layout, written by transformers, with a small tokenizer of the same kind."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

from promptfed.backbones.tokenizer import END, LAST, START, letters
from support.tiny_hub import Model, mixed

MERGES = [
    "p h", "o t", "ph ot", f"phot o{LAST}", f"o f{LAST}", "a t", f"a t{LAST}", "c at", f"c at{LAST}", f"d o{LAST}",
    "d o", f"do g{LAST}", "c a", f"ca r{LAST}", "r e", f"re d{LAST}", "t r", "tr e", f"tre e{LAST}",
]  # fmt: skip
PIECES = [*letters().values(), *(letter + LAST for letter in letters().values())]
VOCABULARY = {
    piece: number for number, piece in enumerate([*PIECES, *(merge.replace(" ", "") for merge in MERGES), START, END])
}
SIZES: dict[str, Any] = {"intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def clip(image: dict[str, Any] | None = None, words: dict[str, Any] | None = None) -> Model:
    """Return a CLIP with an image tower of width 16, a text tower of width 12 and 10 features, no two weights alike."""
    ends = {"bos_token_id": VOCABULARY[START], "eos_token_id": VOCABULARY[END]}
    vision = SIZES | {"hidden_size": 16, "image_size": 16, "patch_size": 4} | (image or {})
    text = SIZES | {"hidden_size": 12, "vocab_size": len(VOCABULARY)} | ends | (words or {})
    return mixed(CLIPModel(CLIPConfig(vision_config=vision, text_config=text, projection_dim=10)))


def saved(model: Model, folder: Path) -> str:
    """Write the model and the tokenizer as the hub would keep them; return the folder."""
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return str(folder)


def write_tokenizer(folder: Path) -> None:
    """Write vocab.json and merges.txt."""
    (folder / "vocab.json").write_text(json.dumps(VOCABULARY), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES, ""]), encoding="utf-8")


def theirs() -> Any:
    """Return the tokenizer of transformers with the same vocabulary."""
    return CLIPTokenizer(vocab=VOCABULARY, merges=[tuple(merge.split()) for merge in MERGES])


def said(texts: list[str]) -> torch.Tensor:
    """Return the 77 tokens of every text, as transformers gives them to a model."""
    found = theirs()(texts, padding="max_length", max_length=77, return_tensors="pt")["input_ids"]
    assert isinstance(found, torch.Tensor)
    return found
