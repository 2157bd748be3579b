"""The model a site keeps after a run, in two files of its run folder that work wherever they are copied to.

model.safetensors    the model's tree; written last, so where it is the run is finished
model.json           what else it takes to use it: the recipe, the classes, the images it expects
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_json
from promptfed.core.tree import Tree
from promptfed.data.dataset import Dataset
from promptfed.federation.store import read_tree, write_tree
from promptfed.runs import config
from promptfed.runs.config import Recipe

FORMAT = 1
MODEL, ABOUT = "model.safetensors", "model.json"
KEYS = ("recipe", "shape", "mean", "std", "facts", "round", "classes")


@dataclass(frozen=True)
class SiteModel:
    """A site's model as its files have it, on the CPU; only the frozen backbone is missing."""

    params: Tree
    recipe: Recipe
    classes: tuple[str, ...]
    shape: tuple[int, int]  # of the images: height, width
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    facts: Tree
    round: int


def write_model(
    folder: Path, params: Tree, recipe: Recipe, dataset: Dataset, facts: Mapping[str, Tensor], finished: int
) -> None:
    """Write a site's model after `finished` rounds."""
    about = {
        "format": FORMAT,
        "round": finished,
        "classes": dataset.classes,
        "shape": dataset.sides,
        "mean": dataset.mean,
        "std": dataset.std,
        "facts": {name: value.tolist() for name, value in facts.items()},
        "recipe": recipe.to_toml(),
    }
    write_json(folder / ABOUT, about)
    write_tree(folder / MODEL, params, sealed=True)


def read_model(folder: Path) -> SiteModel:
    """Read a site's model, or say what is wrong with its files."""
    about = _about(folder / ABOUT)
    height, width = about["shape"]
    return SiteModel(
        params=read_tree(folder / MODEL),
        recipe=config.single(config.expand(tomllib.loads(about["recipe"]), (), str(folder / ABOUT))),
        classes=tuple(about["classes"]),
        shape=(height, width),
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
        facts={name: torch.tensor(value) for name, value in about["facts"].items()},
        round=about["round"],
    )


def _about(path: Path) -> dict[str, Any]:
    """Read model.json, or say what is wrong with it."""
    if not path.is_file():
        raise PromptFedError(f"{path} is missing, and with it the class names; copy it from the site too.")
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise PromptFedError(f"{path} has format {about['format']}; this version reads {FORMAT}.")
        if not about["classes"]:
            raise PromptFedError(f"{path} names no classes.")
        return {key: about[key] for key in KEYS}
    except (ValueError, KeyError, TypeError) as error:
        raise PromptFedError(f"{path} is damaged: it does not describe a model.") from error
