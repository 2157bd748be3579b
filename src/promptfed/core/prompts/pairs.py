"""Small matrices beside frozen ones: which ones have them, and what they start from."""

import math
from collections.abc import Collection, Mapping
from typing import Literal

import torch

from promptfed.core.errors import choice
from promptfed.core.method import Task, adaptable
from promptfed.core.tree import Tree

TEXT = "text."
Towers = Literal["image", "text", "both"]


def chosen(
    task: Task, parts: Collection[str], towers: Towers = "both", blocks: Collection[int] = ()
) -> dict[str, tuple[int, int]]:
    """Return the outputs and inputs of the matrices called `parts`, such as q and v, in all `blocks` or some."""
    every, parts = adaptable(task).matrices, dict.fromkeys(parts)  # of a text such as "qv", the letters
    known = dict.fromkeys(name.rpartition(".")[2] for name in every)
    for part in parts:
        if part not in known:
            raise choice("matrix", part, known, "the backbone")
    wanted = {}
    for name, shape in every.items():
        block, _, part = name.removeprefix(TEXT).partition(".")
        there = towers == "both" or (towers == "text") == name.startswith(TEXT)
        if there and part in parts and (not blocks or int(block.removeprefix("block")) in blocks):
            wanted[name] = shape
    return wanted


def init_pairs(matrices: Mapping[str, tuple[int, int]], rank: int, generator: torch.Generator) -> Tree:
    """Return NAME.lora_a [r, in], uniform in ±1/√in, and NAME.lora_b [out, r], zero: together they change nothing."""
    pairs: Tree = {}
    for name, (outputs, inputs) in matrices.items():
        bound = 1 / math.sqrt(inputs)  # Kaiming's with a slope of √5, as in LoRA's code
        pairs[f"{name}.lora_a"] = torch.empty(rank, inputs).uniform_(-bound, bound, generator=generator)
        pairs[f"{name}.lora_b"] = torch.zeros(outputs, rank)
    return pairs


def scaled_pairs(params: Tree, scale: float) -> Tree:
    """Return the tree with every B times `scale`: a backbone has no scale of its own."""
    return {name: scale * value if name.endswith(".lora_b") else value for name, value in params.items()}
