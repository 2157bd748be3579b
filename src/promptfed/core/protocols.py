"""What a method is given: a backbone, one client's data in batches, and randomness. Each is a protocol.

Client-side code speaks only of trailing dimensions: the same code serves one site and a stack of simulated clients,
whose tensors all have a leading C.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from promptfed.core.tree import Tree

Batch = Tree
"""x [B, 3, H, W], y [B], index [B] (within the client's data), mask [B], active [], the facts, and the draws.

In training there may be a `rate` [], by which the round's schedule multiplies every learning rate, and `mask` may hold
other weights than 1, by which examples count; it is 0 where there is no example."""

Change = Callable[[Tree, Batch], Batch]
"""A change to every batch: (tensors, batch) -> batch. Tensors come as an argument, never from a closure."""

Sorter = Callable[[Batch], Tree]
"""Sorts a batch's images by K domains: `shares` [B, K] of each, and `logits` [B, K, classes] as if of that one only."""

_NOTHING: Tree = {}
Tokens = Tensor | Sequence[Tensor]
"""Prompt tokens [..., K, D], per client or per sample; a sequence gives every layer its own (VPT-deep)."""


class Rng(Protocol):
    """Gives the generator of a purpose: this client's own, or with `shared=True` the same on every client."""

    def __call__(self, purpose: str, shared: bool = False) -> torch.Generator:
        """Return the generator."""
        ...


@dataclass(frozen=True)
class Draw:
    """Randomness a method wants in its batches: `shape` numbers for every sample, or for the batch as a whole."""

    shape: tuple[int, ...] = ()
    kind: Literal["uniform", "normal"] = "uniform"
    per: Literal["sample", "batch"] = "sample"


class Backbone(Protocol):
    """A network whose trained weights are an argument; weights [C, ...] serve a stack of clients.

    A pretrained network uses its own frozen weight wherever `weights` has none of that name.
    """

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the images' channels, height and width."""
        ...

    @property
    def statistics(self) -> tuple[tuple[float, float, float], tuple[float, float, float]] | None:
        """Return the mean and deviation of the pixels it was pretrained on; None: the data set's own."""
        ...

    @property
    def token_width(self) -> int:
        """Return the width of a prompt token; an error where there are no tokens."""
        ...

    @property
    def layers(self) -> int:
        """Return how many layers take prompt tokens; an error where there are no tokens."""
        ...

    @property
    def fingerprint(self) -> str:
        """Return what changes whenever its frozen weights or the way it uses them do; empty if it has none."""
        ...

    def to(self, device: torch.device) -> "Backbone":
        """Return it with its frozen weights on `device`."""
        ...

    def init(self, rng: Rng) -> Tree:
        """Return the weights training starts from, the classifier's under `head.weight` and `head.bias`."""
        ...

    def head(self, rng: Rng) -> Tree:
        """Return a fresh classifier alone: `head.weight` and `head.bias`."""
        ...

    def draws(self) -> dict[str, Draw]:
        """Return the randomness its training wants (dropout)."""
        ...

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return what the classifier sees [..., B, D]; `noise` (a training batch's draws) turns dropout on."""
        ...

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the logits [..., B, classes]."""
        ...


class DualEncoder(Backbone, Protocol):
    """An image tower and a text tower whose features lie in one space; `features` are the image tower's, not scaled."""

    @property
    def context_width(self) -> int:
        """Return the width of a context token of the text tower."""
        ...

    @property
    def scale(self) -> Tensor:
        """Return what cosines are multiplied by to become logits: exp of CLIP's logit_scale, a scalar."""
        ...

    @property
    def zero_shot(self) -> Tensor:
        """Return the unit features [classes, D] of "a photo of a {class}."."""
        ...

    def text(
        self,
        context: Tensor | str,
        *,
        per_class: bool,
        deep: Sequence[Tensor] = (),
        weights: Tree = _NOTHING,
        length: Tensor | None = None,
    ) -> Tensor:
        """Return the unit features [..., classes, D] of "{context} {class}.".

        The context is [..., s, W], or with `per_class` [..., classes, s, W]; it takes the place of word embeddings. A
        text stands for its own words. Contexts of `deep` are like it and take its place in the blocks after the first.
        Of `weights`, companions of the text tower's matrices are used, called text.*: see `AdaptableBackbone`. Of a
        context the first `length` [...] tokens count, all without it, and the names follow right behind them.
        """
        ...

    def sentences(self, texts: Sequence[str]) -> Tensor:
        """Return the unit features [texts, D] of sentences as they are; computed once, they are kept."""
        ...

    def words(self, said: str) -> Tensor:
        """Return the embeddings [n, W] of a text's tokens, on the CPU, to start context tokens from."""
        ...

    def named(self, names: Sequence[str]) -> "DualEncoder":
        """Return the same towers with other classes' names."""
        ...


class DenseBackbone(Backbone, Protocol):
    """A network of patches, which can be had one by one."""

    def patches(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, project: bool = True) -> Tensor:
        """Return the class token and all patches [..., B, 1 + M, D], as `features` has the class token alone.

        Without `project` they are as before the map into the space of texts, if there is one.
        """
        ...

    def grown(
        self, weights: Tree, x: Tensor, *, tokens: Mapping[int, Tensor], nearest: int = 0, upto: int = 0
    ) -> Tensor:
        """Return features [..., B, D] of a sequence that grows by tokens.

        Before block `number` its tokens [..., K, width], or per sample [..., B, K, width], enter right behind the class
        token, and stay. What is read off is the mean of the class token and the `nearest` tokens behind it, after the
        last block or after `upto` blocks.
        """
        ...


class AdaptableBackbone(Backbone, Protocol):
    """A frozen network beside whose matrices, one for all clients, `weights` may have small ones of each client.

    NAME.lora_a [r, in] and NAME.lora_b [out, r] add B A x to what matrix NAME gives, be it block3.qkv, block3.q (k, v),
    block3.out, block3.mlp1 or block3.mlp2; NAME.rest [out, in] adds R x. block3.side.down.weight and .bias, up and
    maybe mid add to a block's output up(relu(mid(relu(down(norm1(z)))))). The text tower's names begin with "text."
    """

    @property
    def matrices(self) -> Mapping[str, tuple[int, int]]:
        """Return the outputs and inputs of every matrix that may have a pair."""
        ...


class TextToImage(Backbone, Protocol):
    """A frozen model that draws what a text says; its `features` are a row per image, which `unpack` takes apart."""

    @property
    def word_width(self) -> int:
        """Return the width W of a word's embedding."""
        ...

    @property
    def visual_width(self) -> int:
        """Return the number V of visual features of an image."""
        ...

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """Return the channels, height and width of an image's latents."""
        ...

    @property
    def times(self) -> int:
        """Return the number of noise levels."""
        ...

    def unpack(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents of images and their mirror images [..., B, 2, c, h, w], and visual features [..., B, V]."""
        ...

    def word(self, text: str) -> Tensor:
        """Return the embedding [W] of a text that is one token."""
        ...

    def context(self, templates: Sequence[str]) -> Tensor:
        """Return the mean embedding of each template's own words [T, W]."""
        ...

    def encode(self, templates: Sequence[str], chosen: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the text's states [..., B, L, W] and, of these, the pseudo-word's own [..., B, W].

        `chosen` [..., B] says which template each sample has, `words` [..., B, v, W] the vectors of its pseudo-word.
        """
        ...

    def noised(self, latents: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents [..., B, c, h, w] with noise as of `time` [..., B], and what `denoise` should find in them."""
        ...

    def denoise(self, noisy: Tensor, time: Tensor, states: Tensor) -> Tensor:
        """Return what the model finds in noisy latents [..., B, c, h, w] given a text's states [..., B, L, W]."""
        ...

    def sample(self, states: Tensor, start: Tensor, *, steps: int = 30, guidance: float = 7.5) -> Tensor:
        """Return images [..., B, 3, H, W] in −1 … 1 of texts' states; `start` [..., B, c, h, w] is pure noise."""
        ...


class Batches(Protocol):
    """The batches of one local training, as a function of the step, so that the step can be captured once."""

    @property
    def steps(self) -> int:
        """Return the number of steps of the longest client."""
        ...

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the steps of each stacked client; empty for a single one."""
        ...

    @property
    def ragged(self) -> bool:
        """Say whether some stacked client has fewer steps than another."""
        ...

    @property
    def tensors(self) -> Tree:
        """Return all that changes from call to call; "plan.*" tensors have the step as their first dimension."""
        ...

    @property
    def key(self) -> Hashable:
        """Return all else a batch depends on."""
        ...

    @property
    def once(self) -> frozenset[str]:
        """Return the names of what a batch has once, not for each of its examples."""
        ...

    def at(self, tensors: Tree, step: Tensor) -> Batch:
        """Return batch number `step`, computed from `tensors` alone."""
        ...

    def __iter__(self) -> Iterator[Batch]: ...


class Data(Protocol):
    """One client's examples in one round; stacked, every tensor gains [C]."""

    @property
    def round(self) -> int:
        """Return the round's number, a plain int: `fit` may branch on it."""
        ...

    @property
    def facts(self) -> Tree:
        """Return what a client knows of itself: client [], size [], counts [classes], domain []."""
        ...

    @property
    def rate(self) -> Tensor:
        """Return what the run's schedule multiplies this round's learning rates by [], already so in `local`."""
        ...

    @property
    def capacity(self) -> int:
        """Return the rows a bank of per-example values needs: the most examples of any client."""
        ...

    def batches(
        self,
        purpose: str = "train",
        *,
        size: int,
        epochs: int = 1,
        steps: int | None = None,
        ordered: bool = False,
        drop_last: bool = False,
    ) -> Batches:
        """Return the batches of `epochs` passes (or exactly `steps` steps), reshuffled every pass unless `ordered`.

        With `drop_last` an incomplete last batch is left out, unless it is the client's only one.
        """
        ...

    def draw(self, name: str, shape: tuple[int, ...] = (), kind: Literal["uniform", "normal"] = "uniform") -> Tensor:
        """Return random numbers for this round's `fit`, outside of any batch; another `name` gives others."""
        ...

    def map(self, change: Change, tensors: Tree) -> "Data":
        """Return the same data with every batch passed through `change(tensors, batch)`."""
        ...
