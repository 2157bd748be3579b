"""The forward of CLIP's text tower, whose words may be given as embeddings; its weights are frozen.

A text is [start][context][ending]: the ending of a class is its name, a full stop and the end token, where features are
read off. Attention looks back only, so whatever follows the end token may be cut off, and the states of a context
that all classes share are computed once.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from promptfed import tree
from promptfed.backbones.init import affine
from promptfed.backbones.transformer import quick_gelu
from promptfed.errors import PromptFedError
from promptfed.tree import Tree


@dataclass(frozen=True)
class TextArch:
    """The form of a text tower with pre-norm blocks and causal attention."""

    width: int
    depth: int
    heads: int
    mlp: int  # the width of the hidden layer of a block's MLP
    vocabulary: int
    positions: int
    projection: int  # the number of features
    eps: float = 1e-5
    quick_gelu: bool = True


def shapes(arch: TextArch) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by name."""
    width = arch.width
    found: dict[str, tuple[int, ...]] = {"token": (arch.vocabulary, width), "position": (arch.positions, width)}
    for number in range(arch.depth):
        block = f"block{number}"
        for name, outputs, inputs in (
            ("qkv", 3 * width, width), ("out", width, width), ("mlp1", arch.mlp, width), ("mlp2", width, arch.mlp),
        ):  # fmt: skip
            found[f"{block}.{name}.weight"], found[f"{block}.{name}.bias"] = (outputs, inputs), (outputs,)
        for name in ("norm1", "norm2"):
            found[f"{block}.{name}.weight"] = found[f"{block}.{name}.bias"] = (width,)
    found["norm.weight"] = found["norm.bias"] = (width,)
    found["projection.weight"] = arch.projection, width
    return found


def fresh(arch: TextArch, generator: torch.Generator) -> Tree:
    """Return random weights: PyTorch's own distributions for maps, small normal numbers for tokens and positions."""
    weights: Tree = {}
    for name, shape in shapes(arch).items():
        if name in ("token", "position"):
            weights[name] = 0.02 * torch.randn(shape, generator=generator)
        elif len(shape) == 2:
            made = affine(name.removesuffix(".weight"), shape, generator)
            weights |= {part: value for part, value in made.items() if part in shapes(arch)}
        elif name not in weights:
            weights[name] = torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
    return weights


def spell(weights: Tree, start: int, endings: list[list[int]]) -> Tree:
    """Return the tower's weights with the words that classes need in place of all others.

    They are the embeddings `start` [W] and `ending` [classes, M, W], and `end` [classes]: where in its ending a class
    has its end token. What follows that is never looked at.
    """
    longest = max(len(ending) for ending in endings)
    padded = torch.tensor([ending + ending[-1:] * (longest - len(ending)) for ending in endings])
    end = torch.tensor([len(ending) - 1 for ending in endings])
    words = {"start": weights["token"][start], "ending": weights["token"][padded], "end": end}
    return tree.drop(weights, ["token"]) | words


def features(arch: TextArch, spelled: Tree, context: Tensor, *, chunk: int) -> Tensor:
    """Return the unit features [..., classes, D] of contexts [..., 1 or classes, s, W] before every class's ending.

    More than `chunk` texts are computed in parts, and a part once more when its gradient is: memory stays bounded.
    """
    classes, longest = spelled["ending"].shape[:2]
    length = 1 + context.shape[-2] + longest
    if length > arch.positions:
        raise PromptFedError(
            f"A context of {context.shape[-2]} tokens and the longest class name make {length} tokens; "
            f"the text tower has positions for {arch.positions}."
        )
    lead = context.shape[:-3]
    flat = context.reshape(math.prod(lead), *context.shape[-3:])
    if len(flat) * classes <= chunk:
        return _part(arch, spelled, flat).view(*lead, classes, -1)
    again = torch.is_grad_enabled() and context.requires_grad
    rows = []
    for some in flat.split(max(1, chunk // classes)):
        parts = []
        for first in range(0, classes, chunk):
            chosen = slice(first, first + chunk)
            own = some if some.shape[1] == 1 else some[:, chosen]
            said = spelled | {name: spelled[name][chosen] for name in ("ending", "end")}
            if again:
                made = checkpoint(_part, arch, said, own, use_reentrant=False, preserve_rng_state=False)
            else:
                made = _part(arch, said, own)
            parts.append(made)
        rows.append(torch.cat(parts, 1))
    return torch.cat(rows).view(*lead, classes, -1)


def _part(arch: TextArch, spelled: Tree, context: Tensor) -> Tensor:
    """Return the unit features [N, classes, D] of contexts [N, 1 or classes, s, W] in float32."""
    ending, end, position = spelled["ending"], spelled["end"], spelled["position"]
    each = context.shape[:2]
    before = torch.cat([spelled["start"].expand(*each, 1, -1), context.to(ending.dtype)], -2)
    count, total = before.shape[-2], before.shape[-2] + ending.shape[-2]
    if each[1] == 1:  # the classes' endings are branches of one stem
        stem = before[:, 0] + position[:count]
        branches = (ending + position[count:total]).expand(each[0], *ending.shape)
        z = _blocks(arch, spelled, [stem, branches])
    else:
        whole = torch.cat([before, ending.expand(each[0], *ending.shape)], -2) + position[:total]
        z, end = _blocks(arch, spelled, [whole.flatten(0, 1)]).view(whole.shape), end + count
    z = z.take_along_dim(end[None, :, None, None], -2).squeeze(-2)
    z = F.layer_norm(z, (arch.width,), spelled["norm.weight"], spelled["norm.bias"], arch.eps)
    return F.normalize(F.linear(z, spelled["projection.weight"]).float(), dim=-1)


def _blocks(arch: TextArch, weights: Tree, parts: list[Tensor]) -> Tensor:
    """Return the last of the parts after all blocks: a stem [N, T, W], and maybe its branches [N, K, M, W]."""
    for number in range(arch.depth):
        parts = _block(arch, weights, f"block{number}", parts)
    return parts[-1]


def _block(arch: TextArch, weights: Tree, block: str, parts: list[Tensor]) -> list[Tensor]:
    def linear(name: str, z: Tensor) -> Tensor:
        return F.linear(z, weights[f"{block}.{name}.weight"], weights[f"{block}.{name}.bias"])

    def norm(name: str, z: Tensor) -> Tensor:
        return F.layer_norm(
            z, (arch.width,), weights[f"{block}.{name}.weight"], weights[f"{block}.{name}.bias"], arch.eps
        )

    def heads(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = linear("qkv", norm("norm1", z)).unflatten(-1, (3, arch.heads, -1)).movedim((-3, -2), (0, -3))
        query, key, value = found.unbind(0)  # each [..., heads, T, d]
        return query, key, value

    def finished(z: Tensor, mixed: Tensor) -> Tensor:
        z = z + linear("out", mixed.movedim(-3, -2).flatten(-2))
        hidden = linear("mlp1", norm("norm2", z))
        return z + linear("mlp2", quick_gelu(hidden) if arch.quick_gelu else F.gelu(hidden))

    stem, *branches = parts
    query, key, value = heads(stem)
    made = [finished(stem, F.scaled_dot_product_attention(query, key, value, is_causal=True))]
    return made + [finished(branch, _look_back(*heads(branch), key, value)) for branch in branches]


def _look_back(query: Tensor, key: Tensor, value: Tensor, stem_key: Tensor, stem_value: Tensor) -> Tensor:
    """Return what tokens of branches [N, K, heads, M, d] gather from their stem [N, heads, T, d] and before."""

    def joined(stem: Tensor, own: Tensor) -> Tensor:
        return torch.cat([stem[:, None].expand(-1, own.shape[1], -1, -1, -1), own], -2).flatten(0, 1)

    keys, values = joined(stem_key, key), joined(stem_value, value)
    tokens, seen = query.shape[-2], keys.shape[-2]
    mask = torch.ones(tokens, seen, dtype=torch.bool, device=query.device).tril(seen - tokens)
    return F.scaled_dot_product_attention(query.flatten(0, 1), keys, values, attn_mask=mask).view(query.shape)
