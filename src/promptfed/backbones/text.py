"""The forward of CLIP's text tower, whose words may be given as embeddings; its weights are frozen.

A text is [start][context][ending]: the ending of a class is its name, a full stop and the end token, where features are
read off. Attention looks back only, so whatever follows the end token may be cut off, and the states of a context
that all classes share are computed once. The last block computes the end tokens alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from promptfed.backbones import companions
from promptfed.backbones.init import affine
from promptfed.backbones.transformer import quick_gelu
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree

STEEP = 1.702  # of quick GELU
SHARE = 0.25  # of the memory, for the texts' states; the rest is for images, features and everything else
MANY = 64  # classes; fewer are not worth two passes
_NOTHING: Tree = {}
CPU_MEMORY = 8 << 30  # what a CPU is taken to have: more would be no faster there


@dataclass(frozen=True)
class TextArch:
    """The architecture of a text tower with pre-norm blocks and causal attention."""

    width: int
    depth: int
    heads: int
    mlp: int  # the width of the hidden layer of a block's MLP
    vocabulary: int
    positions: int
    projection: int  # the number of features
    eps: float = 1e-5
    quick_gelu: bool = True
    silu: bool = False  # in the place of either GELU, see `with_silu`


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


def with_silu(arch: TextArch, weights: Tree) -> tuple[TextArch, Tree]:
    """Return the same function with SiLU in the place of quick GELU, x σ(1.702 x) = silu(1.702 x) / 1.702.

    The factors go into the weights around it. SiLU is one kernel each way and keeps one tensor for its gradient; a
    third of a step's traffic with memory would be quick GELU's.
    """
    if not arch.quick_gelu or arch.silu:
        return arch, weights
    factors = {"mlp1.weight": STEEP, "mlp1.bias": STEEP, "mlp2.weight": 1 / STEEP}
    scaled = {
        name: value * factors[part] for name, value in weights.items() if (part := name.partition(".")[2]) in factors
    }
    return replace(arch, silu=True), weights | scaled


@dataclass(frozen=True)
class TextGroup:
    """Some classes, whose names are about as long: their numbers among all [n], and their words."""

    rows: Tensor
    words: Tree


def grouped(spelled: Tree) -> tuple[TextGroup, ...]:
    """Return many classes in two groups, short names and long ones, if that spares a token a class; or all in one.

    A text is as long as the longest name of its group, and one long name among hundreds would stretch them all.
    """
    order = spelled["end"].argsort(stable=True)
    lengths = (spelled["end"][order] + 1).tolist()
    spared = [short * (lengths[-1] - lengths[short - 1]) for short in range(1, len(lengths))]
    if len(lengths) < MANY or max(spared) < len(lengths):
        return (TextGroup(torch.arange(len(lengths), device=order.device), tree.pick(spelled, ["ending", "end"])),)
    groups = []
    for rows in order.tensor_split([spared.index(max(spared)) + 1]):
        end = spelled["end"][rows]
        groups.append(TextGroup(rows, {"ending": spelled["ending"][rows, : int(end.max()) + 1], "end": end}))
    return tuple(groups)


def features(
    arch: TextArch,
    spelled: Tree,
    context: Tensor,
    *,
    chunk: int = 0,
    deep: Sequence[Tensor] = (),
    beside: Tree = _NOTHING,
) -> Tensor:
    """Return the unit features [..., classes, D] of contexts [..., 1 or classes, s, W] before every class's ending.

    More than `chunk` texts are computed in parts, and each part again for its gradient: memory stays bounded.
    With 0 there are parts only where all texts at once would take too much of the device's memory.
    Contexts of `deep` are like the first; each takes the place of the one before it in the next block. `beside` are
    companions of the blocks' matrices; those of a stack of clients [C, ...] are for contexts [C, ...].
    """
    classes, longest = spelled["ending"].shape[:2]
    length = 1 + context.shape[-2] + longest
    if length > arch.positions:
        raise PromptFedError(
            f"A context of {context.shape[-2]} tokens and the longest class name make {length} tokens; "
            f"the text tower has positions for {arch.positions}."
        )
    if len(deep) >= arch.depth:
        raise PromptFedError(f"There are contexts for {1 + len(deep)} layers, but the text tower has {arch.depth}.")
    lead = context.shape[:-3]
    flat = [one.reshape(math.prod(lead), *one.shape[-3:]) for one in (context, *deep)]
    count, shared = len(flat[0]), flat[0].shape[1] == 1
    again = torch.is_grad_enabled() and any(one.requires_grad for one in (*flat, *beside.values()))
    chunk = chunk or _roomy(arch, spelled["ending"], longest if shared else length, kept=again)
    if count * classes <= chunk:
        return _part(arch, spelled, flat, beside).view(*lead, classes, -1)
    # companions of a stack of clients need all of its texts at once
    each, most = (count, max(1, chunk // count)) if companions.stacked(beside) else (max(1, chunk // classes), chunk)
    rows = []
    for some in zip(*(one.split(each) for one in flat), strict=True):
        parts = []
        for first in range(0, classes, most):
            chosen = slice(first, first + most)
            own = [one if shared else one[:, chosen] for one in some]
            said = spelled | {name: spelled[name][chosen] for name in ("ending", "end")}
            if again:
                made = checkpoint(_part, arch, said, own, beside, use_reentrant=False, preserve_rng_state=False)
            else:
                made = _part(arch, said, own, beside)
            parts.append(made)
        rows.append(torch.cat(parts, 1))
    return torch.cat(rows).view(*lead, classes, -1)


def _roomy(arch: TextArch, like: Tensor, tokens: int, *, kept: bool) -> int:
    """Return how many texts of so many tokens fit into the share of memory that is theirs.

    For its gradient a block keeps of every token: queries, keys, values, what it has gathered, the state before each
    norm, and the hidden layer before and after its activation. Without a gradient there is one block's worth at a time.
    """
    numbers = (6 * arch.width + 2 * arch.mlp) * (arch.depth if kept else 2)
    whole = torch.cuda.get_device_properties(like.device).total_memory if like.is_cuda else CPU_MEMORY
    return max(1, int(whole * SHARE) // (tokens * numbers * like.element_size()))


def _part(arch: TextArch, spelled: Tree, contexts: Sequence[Tensor], beside: Tree = _NOTHING) -> Tensor:
    """Return the unit features [N, classes, D] of contexts [N, 1 or classes, s, W], layer by layer, in float32."""
    context, spelled = contexts[0], spelled | beside
    ending, end, position = spelled["ending"], spelled["end"], spelled["position"]
    each = context.shape[:2]
    before = torch.cat([spelled["start"].expand(*each, 1, -1), context.to(ending.dtype)], -2)
    count, total = before.shape[-2], before.shape[-2] + ending.shape[-2]
    if each[1] == 1:  # the classes' endings are branches of one stem
        stem = before[:, 0] + position[:count]
        branches = (ending + position[count:total]).expand(each[0], *ending.shape)
        *stems, last = _blocks(arch, spelled, [stem, branches], contexts)
    else:
        whole = torch.cat([before, ending.expand(each[0], *ending.shape)], -2) + position[:total]
        stems, last = [], _blocks(arch, spelled, [whole.flatten(0, 1)], contexts)[0].view(whole.shape)
        end = end + count
    z = _last_block(arch, spelled, stems, last, end)
    z = F.layer_norm(z, (arch.width,), spelled["norm.weight"], spelled["norm.bias"], arch.eps)
    return F.normalize(F.linear(z, spelled["projection.weight"]).float(), dim=-1)


def _blocks(arch: TextArch, weights: Tree, parts: list[Tensor], contexts: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts after all blocks but the last: a stem [N, T, W], and maybe its branches [N, K, M, W].

    A block's own context stands in the stem before the block, that of the last one too.
    """
    for number in range(arch.depth - 1):
        block = _Block(arch, weights, f"block{number}")
        stem, *branches = _with_context(parts, contexts, number)
        query, key, value = block.heads(stem)
        parts = [block.finished(stem, F.scaled_dot_product_attention(query, key, value, is_causal=True))]
        parts += [block.finished(branch, _look_back(*block.heads(branch), key, value)) for branch in branches]
    return _with_context(parts, contexts, arch.depth - 1)


def _with_context(parts: list[Tensor], contexts: Sequence[Tensor], number: int) -> list[Tensor]:
    """Put a block's own context, if it has one, in the place of the context of the block before it."""
    if not 0 < number < len(contexts):
        return parts
    stem, own = parts[0], contexts[number].flatten(0, 1).to(parts[0].dtype)
    return [torch.cat([stem[:, :1], own, stem[:, 1 + own.shape[1] :]], 1), *parts[1:]]


def _last_block(arch: TextArch, weights: Tree, stems: list[Tensor], texts: Tensor, end: Tensor) -> Tensor:
    """Return the end tokens [N, K, W] of texts [N, K, T, W] after the last block; they may have one stem in common.

    Features are read off there, so of all other tokens only keys and values are needed.
    """
    block, place = _Block(arch, weights, f"block{arch.depth - 1}"), end[None, :, None, None]
    plain, own = block.normed(texts), texts.take_along_dim(place, -2)
    (query,), (key, value) = block.mapped(plain.take_along_dim(place, -2), 0, 1), block.mapped(plain, 1, 3)
    seen = torch.arange(texts.shape[-2], device=end.device) <= end[:, None]  # [K, T]
    for stem in stems:
        earlier = block.mapped(block.normed(stem), 1, 3)
        key, value = (_joined(first, rest) for first, rest in zip(earlier, (key, value), strict=True))
        seen = torch.cat([seen.new_ones(len(seen), stem.shape[-2]), seen], -1)
    scores = query @ key.mT / math.sqrt(query.shape[-1])  # one query a text: written out, there is nothing to fuse
    mixed = scores.masked_fill(~seen[:, None, None], -math.inf).softmax(-1) @ value
    return block.finished(own, mixed).squeeze(-2)


@dataclass(frozen=True)
class _Block:
    """One block's maps."""

    arch: TextArch
    weights: Tree
    name: str

    def _w(self, name: str) -> Tensor:
        return self.weights[f"{self.name}.{name}"]

    @cached_property
    def _own(self) -> Tree:
        own = f"{self.name}."
        return {name.removeprefix(own): value for name, value in self.weights.items() if name.startswith(own)}

    def _linear(self, name: str, z: Tensor) -> Tensor:
        # where SiLU takes the place of quick GELU, the matrices around it have a factor
        factor = {"mlp1": STEEP, "mlp2": 1 / STEEP}.get(name, 1.0) if self.arch.silu else 1.0
        return companions.by_client(self._own, z, lambda x: companions.linear(self._own, name, x, factor))

    def normed(self, z: Tensor, name: str = "norm1") -> Tensor:
        """Return what a block's attention (norm1) or MLP (norm2) sees."""
        return F.layer_norm(z, (self.arch.width,), self._w(f"{name}.weight"), self._w(f"{name}.bias"), self.arch.eps)

    def mapped(self, plain: Tensor, first: int, stop: int) -> tuple[Tensor, ...]:
        """Return those from `first` to `stop` of queries, keys and values, each [..., heads, T, d]."""
        flat = companions.by_client(self._own, plain, lambda x: companions.attention(self._own, x, first, stop))
        found: Tensor = flat.unflatten(-1, (stop - first, self.arch.heads, -1)).movedim((-3, -2), (0, -3))
        return found.unbind(0)

    def heads(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of tokens z."""
        query, key, value = self.mapped(self.normed(z), 0, 3)
        return query, key, value

    def finished(self, z: Tensor, mixed: Tensor) -> Tensor:
        """Return z after attention has gathered `mixed` [..., heads, T, d], and after the MLP."""
        aside = companions.by_client(self._own, z, lambda x: companions.aside(self._own, self.normed(x)))
        z = z + self._linear("out", mixed.movedim(-3, -2).flatten(-2))
        hidden = self._linear("mlp1", self.normed(z, "norm2"))
        bend = F.silu if self.arch.silu else quick_gelu if self.arch.quick_gelu else F.gelu
        z = z + self._linear("mlp2", bend(hidden))
        return z if aside is None else z + aside


def _look_back(query: Tensor, key: Tensor, value: Tensor, stem_key: Tensor, stem_value: Tensor) -> Tensor:
    """Return what tokens of branches [N, K, heads, M, d] gather from their stem [N, heads, T, d] and before."""
    keys, values = _joined(stem_key, key).flatten(0, 1), _joined(stem_value, value).flatten(0, 1)
    tokens, seen = query.shape[-2], keys.shape[-2]
    mask = torch.ones(tokens, seen, dtype=torch.bool, device=query.device).tril(seen - tokens)
    return F.scaled_dot_product_attention(query.flatten(0, 1), keys, values, attn_mask=mask).view(query.shape)


def _joined(stem: Tensor, own: Tensor) -> Tensor:
    """Put the stem's [N, heads, T, d] before every branch's own [N, K, heads, M, d]."""
    return torch.cat([stem[:, None].expand(-1, own.shape[1], -1, -1, -1), own], -2)
