"""Finished runs of RELIC and its kin on a painter, whose pictures are the words themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from promptfed.backbones import BACKBONES
from promptfed.backbones.painter import Painter
from promptfed.runs.runner import run

SIDE = 8
COLOURS = np.array([[220, 40, 40], [40, 220, 40], [40, 40, 220]])


@contextmanager
def painting() -> Iterator[None]:
    """Let recipes name the painter."""
    with mock.patch.dict(BACKBONES, {"painter": Painter}):
        yield


def write_colours(path: Path) -> Path:
    """Write an .npz file: 8 noisy training images of each of three colours, the classes; of 4 to test one is white."""
    labels = np.arange(24) % 3
    noise = np.random.default_rng(0).integers(-30, 31, (36, SIDE, SIDE, 3))
    images = np.clip(COLOURS[np.arange(36) % 3][:, None, None] + noise, 0, 255).astype(np.uint8)
    images[-3:] = 255  # what the painter's word is at first
    np.savez(path, x_train=images[:24], y_train=labels, x_test=images[24:], y_test=labels[:12])
    return path


def trained(method: str, parent: Path, *more: str, backbone: str = "painter") -> Path:
    """Train for two rounds on three clients, one colour each; return the run folder."""
    parent.mkdir(parents=True, exist_ok=True)
    images = write_colours(parent / "colours.npz")
    words = (
        f"data.name=npz:{images}",
        f"backbone.name={backbone}",
        "clients=3",
        "rounds=2",
        "partition.name=disjoint",
        "partition.classes_per_client=1",
        "device=cpu",
        *more,
    )
    with painting():
        return run(method, out=parent / method, overrides=words).folder


def inverted(method: str, parent: Path, *more: str) -> Path:
    """Train a word so hard that a client's is soon near its colour; return the run folder."""
    return trained(method, parent, "method.repeats=3", "method.batch=4", "method.lr=0.1", "method.first=2", *more)


def classified(method: str, parent: Path, *more: str) -> Path:
    """Train a small classifier; return the run folder."""
    small = ("backbone.width=8", "backbone.depth=1", "backbone.heads=2", "backbone.patch=4")
    return trained(method, parent, *small, *more, backbone="vit-tiny")


def painted(word: Tensor) -> Tensor:
    """Return the picture [3, SIDE, SIDE] that the painter makes of a word [1, 12]."""
    return torch.nn.functional.interpolate(word.view(1, 3, 2, 2), (SIDE, SIDE))[0].clamp(-1, 1)
