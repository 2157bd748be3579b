"""Prompts before class names: context vectors in place of a text tower's words; images matched with them."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core.errors import PromptFedError
from promptfed.core.method import Task, dual
from promptfed.core.tree import Tree

PLACE = "{}"  # in a template, where the class's name stands
SPREAD = 0.02  # of fresh context vectors, as in CoOp


def init_context(width: int, count: int, generator: torch.Generator, classes: int = 0) -> Tensor:
    """Return `count` vectors N(0, 0.02²) for all classes together [s, W], or for each its own [classes, s, W]."""
    shape = (classes, count, width) if classes else (count, width)
    return SPREAD * torch.randn(shape, generator=generator)


def said(task: Task, *templates: str) -> Tensor:
    """Return the unit features [classes, D] of the classes' names in a template; of several ones' mean, unit again.

    A template is a sentence such as "a photo of a {}."; "{}" alone is the bare name.
    """
    for template in templates:
        if PLACE not in template:
            raise PromptFedError(f'The template "{template}" has no place for a class name; write {PLACE} there.')
    names = [name.replace("_", " ") for name in task.classes]
    each = [dual(task).sentences([template.replace(PLACE, name) for name in names]) for template in templates]
    return each[0] if len(each) == 1 else F.normalize(torch.stack(each).mean(0), dim=-1)


def match(features: Tensor, text: Tensor, scale: Tensor) -> Tensor:
    """Return the scaled cosines of image features [..., B, D] with unit text features [..., classes, D]."""
    return scale * F.normalize(features, dim=-1) @ text.mT


def match_each(features: Tensor, text: Tensor, scale: Tensor) -> Tensor:
    """Return scaled cosines [..., B, classes] where every image has text features of its own [..., B, classes, D]."""
    return match(features.unsqueeze(-2), text, scale).squeeze(-2)


def init_map(name: str, shape: tuple[int, int], generator: torch.Generator) -> Tree:
    """Return `name.weight` [out, in] and `name.bias` [out], uniform in ±1/√in: an adapter behind an image tower."""
    bound = 1 / math.sqrt(shape[1])
    weight = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    return {
        f"{name}.weight": weight,
        f"{name}.bias": torch.empty(shape[0]).uniform_(-bound, bound, generator=generator),
    }
