"""Maths blind to leading dimensions: weights without one serve a single client, weights [C, ...] a stack of clients."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core.kernels import convolved, dropped, few_rows, patches

LEAST = 1e-4  # less than any example counts: a batch without examples has a mean of 0


def spread(weight: Tensor, trailing: int, like: Tensor) -> Tensor:
    """Shape a weight [lead, ...trailing] so that it broadcasts against `like` [lead, anything, ...trailing]."""
    lead = weight.dim() - trailing
    middle = like.dim() - lead - trailing
    return weight.reshape(*weight.shape[:lead], *(1,) * middle, *weight.shape[lead:])


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Affine map: x [lead, ..., I], weight [lead, O, I], bias [lead, O] -> [lead, ..., O]."""
    lead = weight.dim() - 2
    if lead == 0:
        return F.linear(x, weight, bias)
    if _lone(weight, 2):
        alone = F.linear(x.reshape(-1, x.shape[-1]), weight.view(weight.shape[-2:]), bias.view(-1))
        return alone.view(*x.shape[:-1], -1)
    flat = x.reshape(*x.shape[:lead], -1, x.shape[-1])
    if lead > 1:
        out = flat @ weight.mT + bias.unsqueeze(-2)
    elif flat.shape[-2] < weight.shape[-2]:
        out = few_rows.linear(flat, weight, bias)
    else:
        out = torch.baddbmm(bias.unsqueeze(-2), flat, weight.mT)
    return out.reshape(*x.shape[:-1], -1)


def low_rank(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Map through a matrix of low rank, b a: x [lead, ..., I], a [lead, r, I], b [lead, O, r] -> [lead, ..., O]."""
    return linear(linear(x, a, a.new_zeros(a.shape[:-1])), b, b.new_zeros(b.shape[:-1]))


def _lone(weight: Tensor, trailing: int) -> bool:
    """Say whether a stack is of one client: torch's own layers take fewer kernels for it than a stack needs."""
    return weight.shape[: weight.dim() - trailing].numel() == 1


def conv2d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolution without padding: x [lead, B, I, H, W], weight [lead, O, I, k, k] -> [lead, B, O, H', W'].

    A weight without `lead` serves all images alike, whatever dimensions x has before I.
    A stack of clients is one batched matrix product over image patches: grouped convolutions of this size leave a GPU
    mostly idle. The result keeps its channels last in memory, which the next patch extraction reads contiguously.
    """
    if weight.dim() == 4:
        folded = x.flatten(0, -4) if x.dim() > 4 else x
        out = F.conv2d(folded, weight, bias)
        return out.unflatten(0, x.shape[:-3]) if x.dim() > 4 else out
    return patches.conv2d(x, weight, bias)


def max_pool2d(x: Tensor, size: int = 2) -> Tensor:
    """Largest value of every size×size window: x [..., O, H, W]."""
    folded = x.flatten(0, -4) if x.dim() > 4 else x
    return F.max_pool2d(folded, size).unflatten(0, x.shape[:-3]) if x.dim() > 4 else F.max_pool2d(folded, size)


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, pool: int = 1) -> Tensor:
    """Convolution, the largest value of every pool×pool window, and ReLU: shapes as in `conv2d` and `max_pool2d`."""
    if pool <= 2 and convolved.fits(x, weight):
        return convolved.conv2d(x, weight, bias, pool)
    x = conv2d(x, weight, bias)
    # after the pooling: the same numbers, a quarter of the work
    return torch.relu(max_pool2d(x, pool) if pool > 1 else x)


def dropout(x: Tensor, noise: Tensor, rate: float) -> Tensor:
    """Return x, flattened to noise [..., B, D], with zeros where the noise is below the rate, and the rest enlarged."""
    return (dropped.dropped if dropped.fits(x, noise) else dropped.written)(x, noise, rate)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """Normalise the last dimension: x [lead, ..., D], weight and bias [lead, D]."""
    if _lone(weight, 1):
        return F.layer_norm(x, weight.shape[-1:], weight.view(-1), bias.view(-1), eps)
    plain = F.layer_norm(x, weight.shape[-1:], eps=eps)
    return torch.addcmul(spread(bias, 1, x), plain, spread(weight, 1, x))


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Scaled dot-product attention over [..., heads, T, d].

    Written out, since the fused float32 kernels are slower for the short sequences of small images.
    """
    scale: float = query.shape[-1] ** -0.5
    return (query @ key.mT * scale).softmax(-1) @ value


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy, an example counting as `mask` says: logits [..., B, K], labels and mask [..., B] -> [...]."""
    each = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)
    return (each * mask).sum(-1) / mask.sum(-1).clamp(min=LEAST)
