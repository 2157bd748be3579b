"""A frozen pretrained dual encoder, CLIP: images and texts in one space, with room for context tokens in the texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from promptfed.backbones import clip_checkpoint, companions, text, transformer
from promptfed.backbones.clip_checkpoint import ClipArch
from promptfed.backbones.init import affine
from promptfed.backbones.lexicon import Hashed, Lexicon
from promptfed.backbones.pretrained import LoadedViT, ViT, fingerprint, fit_positions
from promptfed.backbones.text import TextArch
from promptfed.backbones.tokenizer import END, START
from promptfed.backbones.transformer import Arch, Statistics
from promptfed.core import tree
from promptfed.core.options import Whole
from promptfed.core.protocols import Draw, Rng, Tokens
from promptfed.core.tree import Tree

OPENING = "a photo of a"
_NOTHING: Tree = {}


@dataclass(frozen=True)
class CLIP:
    """A frozen pretrained CLIP: embedded, from the model hub by name, or from a folder."""

    name: ClassVar[str] = "clip"
    shape: tuple[int, int, int]
    classes: int
    names: tuple[str, ...]  # of the classes, as the text tower reads them
    weights: str = "embedded"  # or a name on the hub, or a folder in the hub's layout
    size: Whole = 0  # images are resized to this many pixels per side; 0: as they come
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # of the forward; auto: bf16 on a GPU, fp32 on a CPU
    chunk: Whole = 0  # texts at a time: fewer need less memory; 0: as many as a quarter of it holds

    @classmethod
    def random(
        cls,
        shape: tuple[int, int, int],
        names: tuple[str, ...],
        arch: ClipArch,
        *,
        seed: int = 0,
        size: int = 0,
        precision: Literal["auto", "fp32", "bf16"] = "auto",
        chunk: int = 0,
    ) -> "LoadedCLIP":
        """Return a dual encoder with random weights on the CPU: for tests and for measuring speed, without files.

        Every word of a class's name is one token.
        """
        made = cls(shape, len(names), names, "random", size, precision, chunk)
        image_arch = replace(arch.image, grid=made.grid_of(arch.image))
        generator = torch.Generator().manual_seed(seed)
        image = transformer.fresh(image_arch, generator)
        for name in ("cls", "position"):  # zeros would make all patches of one colour alike
            image[name] = 0.02 * torch.randn(image[name].shape, generator=generator)
        words = text.fresh(arch.text, generator)
        start, end = arch.text.vocabulary - 2, arch.text.vocabulary - 1
        lexicon = Lexicon(Hashed(start), words.pop("token"), start, end)
        spelled = made._spelled(words, torch.tensor(100.0).log(), lexicon)
        return made.loaded(made._image(image_arch, image), arch.text, spelled, lexicon, torch.device("cpu"))

    @property
    def arch(self) -> ClipArch:
        """Return the architecture of both towers, read from the configuration alone."""
        return clip_checkpoint.read_arch(self.weights)

    @property
    def statistics(self) -> Statistics | None:
        """Return the mean and deviation of the pixels it was pretrained on."""
        return self.arch.image.statistics

    @property
    def token_width(self) -> int:
        """Return the width of a prompt token of the image tower."""
        return self.arch.image.width

    @property
    def layers(self) -> int:
        """Return how many layers of the image tower take prompt tokens."""
        return self.arch.image.depth

    @property
    def context_width(self) -> int:
        """Return the width of a context token of the text tower."""
        return self.arch.text.width

    def to(self, device: torch.device) -> "LoadedCLIP":
        """Read the weights, spell the classes' names, and return the dual encoder on `device`."""
        arch = self.arch
        grid = self.grid_of(arch.image)
        towers = clip_checkpoint.read_towers(self.weights)
        position = fit_positions(towers.image["position"], arch.image.grid, grid)
        image = self._image(replace(arch.image, grid=grid), towers.image | {"position": position})
        words, vocabulary = dict(towers.text), towers.tokenizer.vocabulary
        lexicon = Lexicon(towers.tokenizer, words.pop("token"), vocabulary[START], vocabulary[END])
        spelled = self._spelled(words, towers.logit_scale, lexicon)
        return self.loaded(image, arch.text, spelled, lexicon, device)

    def _vit(self) -> ViT:
        return ViT(self.shape, self.classes, self.weights, self.size, self.precision)

    def grid_of(self, arch: Arch) -> tuple[int, int]:
        """Return the rows and columns of patches."""
        return self._vit().grid_of(arch)

    def _image(self, arch: Arch, weights: Tree) -> LoadedViT:
        return self._vit().loaded(arch, weights, torch.device("cpu"))

    def _spelled(self, weights: Tree, logit_scale: Tensor, lexicon: Lexicon) -> Tree:
        """Return the text tower with all words that are needed, and none else."""
        opening = {"opening": lexicon.words(OPENING), "logit_scale": logit_scale}
        return weights | lexicon.spell(_endings(self.names), len(weights["position"])) | opening

    def loaded(
        self, image: LoadedViT, arch: TextArch, spelled: Tree, lexicon: Lexicon, device: torch.device
    ) -> "LoadedCLIP":
        """Return the network with these towers on `device`."""
        image = image.to(device)
        quick, words = text.with_silu(arch, spelled)
        frozen = _placed(words, device, image.frozen["cls"].dtype)
        return LoadedCLIP(
            self.shape,
            self.classes,
            self.names,
            self.weights,
            self.size,
            self.precision,
            self.chunk,
            image=image,
            text_arch=arch,
            quick_arch=quick,
            lexicon=lexicon,
            spelled=spelled,
            frozen=frozen,
            scale=spelled["logit_scale"].exp().to(device),
            **_texts(quick, frozen, self.chunk),
        )


def _endings(names: Sequence[str]) -> list[str]:
    """Return what stands at the end of every class's text."""
    return [f"{name.replace('_', ' ')}." for name in names]


def _kept(where: dict[Any, Tensor], name: object, made: Tensor) -> Tensor:
    """Return what was made, and keep it if it has numbers: whoever asks for shapes alone gets none."""
    if tree.has_numbers(made):
        where[name] = made
    return made


def _placed(words: Tree, device: torch.device, kind: torch.dtype) -> Tree:
    return {name: value.to(device, kind if value.is_floating_point() else None) for name, value in words.items()}


def _texts(arch: TextArch, frozen: Tree, chunk: int) -> dict[str, Any]:
    """Return the fields of a loaded one that depend on the classes' names."""
    with torch.no_grad():
        zero_shot = text.features(arch, frozen, frozen["opening"][None], chunk=chunk)
    groups = text.grouped(frozen)
    places = torch.cat([group.rows for group in groups]).argsort()
    return {"zero_shot": zero_shot, "groups": groups, "places": places}


@dataclass(frozen=True, kw_only=True)
class LoadedCLIP(CLIP):
    """A pretrained dual encoder with its weights.

    The text tower is `spelled` as read, built as `text_arch`, and `frozen` as on the device, built as `quick_arch`.
    """

    image: LoadedViT
    text_arch: TextArch
    quick_arch: TextArch
    lexicon: Lexicon = field(compare=False, repr=False)  # all words, those that no class needs too
    spelled: Tree = field(compare=False, repr=False)
    frozen: Tree = field(compare=False, repr=False)
    groups: tuple[text.TextGroup, ...] = field(compare=False, repr=False)  # classes whose texts are computed together
    places: Tensor = field(compare=False, repr=False)  # of all classes, group after group
    scale: Tensor = field(compare=False, repr=False)  # cosines times this are logits
    zero_shot: Tensor = field(compare=False, repr=False)  # the unit features [classes, D] of "a photo of a {class}."
    known: dict[tuple[str, ...], Tensor] = field(default_factory=dict, compare=False, repr=False)  # see `sentences`
    opened: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)  # openings as embeddings

    @property
    def arch(self) -> ClipArch:
        """Return the architecture of both towers, the image's positions fitted to the images."""
        return ClipArch(self.image.arch, self.text_arch)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the image tower's weights, its architecture, and the size and precision it is used in."""
        return fingerprint({}, self.image.fingerprint, self.image.arch)

    def to(self, device: torch.device) -> "LoadedCLIP":
        """Return it on another device."""
        return self.loaded(self.image, self.text_arch, self.spelled, self.lexicon, device)

    def named(self, names: Sequence[str]) -> "LoadedCLIP":
        """Return the same towers with other classes' names; their weights are shared."""
        words = self.lexicon.spell(_endings(names), self.text_arch.positions)
        device, kind = self.zero_shot.device, self.frozen["start"].dtype
        frozen = self.frozen | _placed(words, device, kind)
        return replace(
            self,
            classes=len(names),
            names=tuple(names),
            image=replace(self.image, classes=len(names)),
            spelled=self.spelled | words,
            frozen=frozen,
            **_texts(self.quick_arch, frozen, self.chunk),
        )

    def init(self, rng: Rng) -> Tree:
        """Return the pretrained image tower, its projection included, and a fresh classifier."""
        return self.image.pretrained | self.head(rng)

    def head(self, rng: Rng) -> Tree:
        """Return a fresh classifier of the projected features."""
        return affine("head", (self.classes, self.text_arch.projection), rng("head", shared=True))

    def draws(self) -> dict[str, Draw]:
        """Return nothing: there is no dropout."""
        return {}

    def features(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the projected features [..., B, D] of images in float32, not normalised.

        A weight that `weights` has takes the place of the frozen one and is used in the forward's precision.
        """
        return self.image.features(weights, x, tokens=tokens)

    def __call__(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, noise: Tree | None = None) -> Tensor:
        """Return the logits [..., B, classes] of the classifier in `weights`; the text tower has no part in them."""
        return self.image(weights, x, tokens=tokens)

    def patches(self, weights: Tree, x: Tensor, *, tokens: Tokens | None = None, project: bool = True) -> Tensor:
        """Return the class token and all patches of the image tower [..., B, 1 + M, D] in float32."""
        return self.image.patches(weights, x, tokens=tokens, project=project)

    def grown(
        self, weights: Tree, x: Tensor, *, tokens: Mapping[int, Tensor], nearest: int = 0, upto: int = 0
    ) -> Tensor:
        """Return features [..., B, D] of the image tower with tokens that come and stay, see the protocol."""
        return self.image.grown(weights, x, tokens=tokens, nearest=nearest, upto=upto)

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return the outputs and inputs of every matrix that may have a pair of low rank, the text tower's as text.*"""
        texts = companions.matrices(text.shapes(self.text_arch))
        return self.image.matrices | {f"text.{name}": shape for name, shape in texts.items()}

    def text(
        self,
        context: Tensor | str,
        *,
        per_class: bool,
        deep: Sequence[Tensor] = (),
        weights: Tree = _NOTHING,
        length: Tensor | None = None,
    ) -> Tensor:
        """Return the unit features [..., classes, D] of "{context} {class}." in float32.

        The context is [..., s, W], or with `per_class` [..., classes, s, W]; it takes the place of word embeddings. A
        text stands for its own words. Contexts of `deep` are like it and take its place in the blocks after the first.
        Of `weights`, companions of the text tower's matrices are used, which are called text.* Of a context the first
        `length` [...] tokens count, all of them without it, and the names follow right behind them.
        """
        kind = self.frozen["start"].dtype
        beside = {n[5:]: x.to(kind) for n, x in weights.items() if n.startswith("text.") and companions.is_one(n)}
        if isinstance(context, str):
            context, per_class = self._opened(context), False
        if (clients := companions.stacked(beside)) and context.dim() == 2 + per_class:
            context = context.expand(clients, *context.shape)
        layers, made = [context, *deep], []
        for group in self.groups:
            pick = per_class and len(self.groups) > 1
            some = [one.index_select(-3, group.rows) if pick else one for one in layers]
            own, *later = [one if per_class else one.unsqueeze(-3) for one in some]
            words = self.frozen | group.words
            made.append(
                text.features(self.quick_arch, words, own, chunk=self.chunk, deep=later, beside=beside, length=length)
            )
        return made[0] if len(made) == 1 else torch.cat(made, -2).index_select(-2, self.places)

    def _opened(self, said: str) -> Tensor:
        """Return the embeddings of a text's tokens on the device; a recorded step reads them from where they are."""
        if said in self.opened:
            return self.opened[said]
        return _kept(self.opened, said, self.words(said).to(self.frozen["start"]))

    def sentences(self, texts: Sequence[str]) -> Tensor:
        """Return the unit features [texts, D] of sentences in float32; they are computed when first asked for."""
        asked = tuple(texts)
        if asked not in self.known:
            words = self.lexicon.spell(asked, self.text_arch.positions)
            frozen = self.frozen | _placed(words, self.zero_shot.device, self.frozen["start"].dtype)
            alone = frozen["start"].new_zeros(1, 0, self.text_arch.width)  # no context before them
            with torch.no_grad():
                return _kept(self.known, asked, text.features(self.quick_arch, frozen, alone, chunk=self.chunk))
        return self.known[asked]

    def words(self, said: str) -> Tensor:
        """Return the embeddings [n, W] of a text's tokens in float32 on the CPU, to start context tokens from."""
        return self.lexicon.words(said)
