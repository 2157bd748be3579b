"""What happens inside a backbone while a method predicts, recorded from torch's own calls: no backbone needs a hook.

Grad-CAM weighs a convolutional network's last feature maps by how much they speak for a class (Selvaraju et al. 2020).
They are coarse; a saliency map has a value for every pixel, how much it moves the class (Simonyan et al. 2014).
In a vision transformer, the class token's attention in the last block says which patches it gathers its answer from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode

from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task
from promptfed.core.protocols import Backbone, Batch, Tokens
from promptfed.core.tree import Tree

_RECTIFIERS = (F.relu, torch.relu, torch.Tensor.relu)
_SOFTMAXES = (F.softmax, torch.softmax, torch.Tensor.softmax)


@dataclass(frozen=True)
class Inspection:
    """Logits [B, classes], and of the backbone's call: its images, its prompt tokens, and its last layers."""

    logits: Tensor
    plain: Tensor  # the images before any prompt [B, 3, H, W]
    images: Tensor  # as the backbone got them, a leaf one can differentiate by
    prompts: int  # tokens beside the patches in the last block
    maps: Tensor | None  # the last feature maps with a place, after ReLU [B, channels, h, w]
    attention: Tensor | None  # [B, heads, queries, tokens]
    features: Callable[[], Tensor]  # computes what the classifier saw [B, D]

    @property
    def prompted(self) -> bool:
        """Say whether the method adds anything to its images."""
        return self.prompts > 0 or not torch.equal(self.plain, self.images)


class _Watching(TorchFunctionMode):
    """Keeps the last feature maps, by which one can differentiate, and the last attention weights."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: Tensor | None = None
        self.attention: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Let the call happen, and keep what it returned if it is of interest."""
        out = func(*args, **(kwargs or {}))
        if func in _RECTIFIERS and out.dim() == 4:
            self.maps = out
        elif func in _SOFTMAXES and out.dim() == 4:
            self.attention = out.detach()
        return out


@dataclass
class _Tapped:
    """A backbone that is watched; with `bare` it gets those images and no prompt tokens, whatever it is called with."""

    backbone: Backbone
    bare: Tensor | None = None
    calls: list[tuple[Tensor, Tokens | None, _Watching, Callable[[], Tensor]]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backbone, name)

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the backbone's features."""
        x, tokens = self._given(x, tokens)
        with self._watch(weights, x, tokens):
            return self.backbone.features(weights, x, tokens=tokens, noise=noise)

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the backbone's logits."""
        x, tokens = self._given(x, tokens)
        with self._watch(weights, x, tokens):
            return self.backbone(weights, x, tokens=tokens, noise=noise)

    def _watch(self, weights: Tree, x: Tensor, tokens: Tokens | None) -> _Watching:
        again = partial(self.backbone.features, weights, x, tokens=tokens)
        self.calls.append((x, tokens, watching := _Watching(), again))
        return watching

    def _given(self, x: Tensor, tokens: Tokens | None) -> tuple[Tensor, Tokens | None]:
        """Return the images as a leaf, and the tokens; if `bare`, the plain images and no tokens."""
        x, tokens = (x, tokens) if self.bare is None else (self.bare, None)
        return x.detach().requires_grad_(), tokens


def look(method: Method, task: Task, params: Tree, batch: Batch, *, bare: bool = False) -> Inspection:
    """Let a method predict and return what its backbone's last call saw; `bare` takes the prompt away."""
    tapped = _Tapped(task.backbone, batch["x"] if bare else None)
    watched: Any = tapped
    with torch.enable_grad():
        task = replace(task, backbone=watched, captured={})
        logits = method.predict(task, method.prepare(task, params), batch)
    if not tapped.calls:
        raise PromptFedError(f"Method {method.name} does not show its images to the backbone when it predicts.")
    images, tokens, watching, features = tapped.calls[-1]
    last = tokens if tokens is None or isinstance(tokens, Tensor) else tokens[-1]
    count = 0 if last is None else last.shape[-2]
    return Inspection(logits, batch["x"], images, count, watching.maps, watching.attention, features)


def grad_cam(seen: Inspection, classes: Tensor) -> Tensor:
    """Return maps [B, h, w] of where each image speaks for its class of `classes` [B]: Σ_k α_k A_k, if above zero.

    A are the last feature maps and α_k the mean over places of the gradient of the class's logit by A_k.
    """
    if seen.maps is None:
        raise PromptFedError("Grad-CAM needs a convolutional network, such as cnn; draw attention instead.")
    chosen = seen.logits.gather(-1, classes[:, None]).sum()
    (slopes,) = torch.autograd.grad(chosen, seen.maps)
    return (slopes.mean((-2, -1), keepdim=True) * seen.maps).sum(-3).clamp(min=0).detach()


def pixel_saliency(seen: Inspection, classes: Tensor) -> Tensor:
    """Return maps [B, H, W] of how much each pixel moves its class's logit: the largest |∂y/∂x| of the colours."""
    chosen = seen.logits.gather(-1, classes[:, None]).sum()
    (slopes,) = torch.autograd.grad(chosen, seen.images)
    return slopes.abs().amax(-3).detach()


def class_attention(seen: Inspection) -> tuple[Tensor, Tensor]:
    """Return what share of the class token's attention each patch gets [B, h, w], and the prompt tokens together [B].

    It is the last block's, averaged over the heads.
    """
    if seen.attention is None:
        raise PromptFedError("Attention needs a vision transformer, such as vit-tiny or vit; draw grad-cam instead.")
    shares = seen.attention[:, :, 0].mean(1)  # [B, class token + prompts + patches]
    patches = shares[:, 1 + seen.prompts :]
    height, width = seen.images.shape[-2:]
    rows = round((patches.shape[-1] * height / width) ** 0.5)
    if rows * (patches.shape[-1] // max(rows, 1)) != patches.shape[-1]:
        raise PromptFedError(f"The backbone's {patches.shape[-1]} patches do not form a grid over the image.")
    return patches.unflatten(-1, (rows, -1)), shares[:, 1 : 1 + seen.prompts].sum(-1)


def enlarged(maps: Tensor, height: int, width: int) -> Tensor:
    """Return maps [B, h, w] at the images' size, each with its largest value 1 (a map of zeros stays)."""
    large = F.interpolate(maps[:, None], (height, width), mode="bilinear", align_corners=False)[:, 0]
    return large / large.amax((-2, -1), keepdim=True).clamp(min=torch.finfo(large.dtype).tiny)


def share_on(maps: Tensor, mask: Tensor) -> Tensor:
    """Return what share of each map [B, H, W] lies where `mask` [B, H, W] is 1; nothing of a map of zeros does."""
    return (maps * mask).sum((-2, -1)) / maps.sum((-2, -1)).clamp(min=torch.finfo(maps.dtype).tiny)
