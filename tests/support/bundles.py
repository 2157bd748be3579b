"""Small runs to bundle, and what a bundle answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from promptfed.analysis import predict
from promptfed.core.errors import PromptFedError
from promptfed.runs import runner
from support.tiny_runs import tiny

CLIENTS = 4
FAST = ("device=cpu", "rounds=2", "evaluate.after=false")
SMALL = ("fedavg", "pfedpt", "fedbabu", "fedrep", "fedrod", "fedmtl", "moon")  # on a tiny backbone that is trained
FROZEN = {
    "pfedpg": "vit",
    "head-probe": "vit",
    "vit-full": "vit",
    "promptfl": "clip",
    "fedapt": "clip",
    "fed-cocoop": "clip",
    "clip-zs": "clip",
}


def train(base: Path, name: str, *more: str) -> Path:
    """Return the folder of a finished run, trained unless it is there."""
    method, folder = name.removesuffix("+pt"), base / name
    words = [*tiny(base / "small.npz"), *FAST, *(["prompt.kind=frame", "prompt.size=1"] if method != name else [])]
    if name in FROZEN:
        words = [f"data.name=npz:{base / 'large.npz'}", f"clients={CLIENTS}", "partition.name=iid", *FAST, "rounds=1"]
        words = [*words, f"backbone.name={FROZEN[name]}", *(["method.epochs=1"] if name != "clip-zs" else [])]
    if not folder.exists():
        runner.run(method, out=folder, overrides=(*words, *more))
    return folder


def noise(count: int, shape: tuple[int, int]) -> Any:
    return np.random.default_rng(7).integers(0, 256, (count, *shape, 3), np.uint8)


def answers(source: Path, client: int | None, count: int = 5) -> torch.Tensor:
    model = predict.load(source, client, "cpu")
    return predict.probabilities(model, noise(count, model.shape))


def fails(source: Path, client: int | None = 0) -> str:
    with pytest.raises(PromptFedError) as raised:
        answers(source, client)
    return str(raised.value)
