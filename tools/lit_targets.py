"""What an image named by a text should look like to a frozen image tower: kernel regression from texts to prototypes.

Images of a class lie around their mean. Their features are whitened, so that within a class all directions vary alike,
and every class's mean becomes a unit prototype. A frozen sentence encoder says how alike two texts are. Ridge
regression with the kernel exp(w (cosine − 1)) carries the prototypes over from the names of classes that have images,
and from captioned images, to any other text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from lit_features import Features
from torch import Tensor

FORMS = ("a photo of a {}.", "{}.")  # a name is what the mean of these says
SHRINKAGE = 0.5  # of the covariance within classes, towards the unit matrix of its own scale
WIDTHS, RIDGES = (3.0, 6.0, 10.0, 15.0), (0.1, 0.5, 2.0)  # tried on classes that are held out
EVERY = 5  # so many classes, one is held out


@dataclass(frozen=True)
class Seen:
    """Images of named classes, and captioned ones."""

    features: Tensor  # [N, D]
    labels: Tensor  # [N]
    classes: list[str]
    names: list[tuple[int, str]]  # a class and one of its names; synonyms make several
    captioned: Tensor  # [M, D]
    captions: list[str]


@dataclass(frozen=True)
class Whitening:
    """The linear map of image features under which classes are round."""

    mean: Tensor  # [D]
    root: Tensor  # [D, D]

    def __call__(self, features: Tensor) -> Tensor:
        """Return unit vectors [..., D]."""
        return F.normalize((features - self.mean) @ self.root, dim=-1)


@dataclass(frozen=True)
class Looks:
    """A kernel regression, fitted."""

    texts: Tensor  # [T, S], of the sentence encoder
    factors: Tensor  # [T, D]
    width: float

    def __call__(self, texts: Tensor) -> Tensor:
        """Return what texts [N, S] should look like: unit vectors [N, D]."""
        parts = [_kernel(part, self.texts, self.width) @ self.factors for part in texts.split(16384)]
        return F.normalize(torch.cat(parts), dim=-1)


class Sentences:
    """A frozen sentence encoder from a folder in the hub's layout: the mean over its tokens."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModel.from_pretrained(folder).float().eval().to(device)
        self.device = device

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return unit features [N, S]."""
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))  # little padding
        parts = []
        with torch.inference_mode():
            for first in range(0, len(texts), 1024):
                some = [texts[place] for place in order[first : first + 1024]]
                said = self.tokenizer(some, padding=True, truncation=True, max_length=48, return_tensors="pt")
                said = said.to(self.device)
                mask = said["attention_mask"][..., None]
                parts.append((self.model(**said).last_hidden_state * mask).sum(1) / mask.sum(1))
        back = torch.tensor(order, device=self.device).argsort()
        return F.normalize(torch.cat(parts)[back].clone(), dim=-1)

    def named(self, names: Sequence[str]) -> Tensor:
        """Return the unit features [N, S] of names: the mean of their forms."""
        return F.normalize(torch.stack([self([form.format(one) for one in names]) for form in FORMS]).mean(0), dim=-1)


def gather(albums: Sequence[Features], synonyms: Path | None, device: torch.device) -> Seen:
    """Return the images of all albums, classes of one name as one class."""
    known: dict[str, list[str]] = json.loads(synonyms.read_text("utf-8")) if synonyms else {}
    classes = sorted({name for album in albums for name in album.classes})
    number = {name: place for place, name in enumerate(classes)}
    labelled = [album for album in albums if album.classes]
    labels = [torch.tensor([number[name] for name in album.classes])[album.labels] for album in labelled]
    captioned = [album for album in albums if album.captions]
    names = [(number[name], other) for name in classes for other in (name, *known.get(name, []))]
    none = torch.zeros(0, labelled[0].features.shape[1])
    return Seen(
        torch.cat([album.features for album in labelled]).to(device),
        torch.cat(labels).to(device),
        classes,
        names,
        torch.cat([none, *(album.features for album in captioned)]).to(device),
        [said[0] for album in captioned for said in album.captions],
    )


def whiten(seen: Seen) -> tuple[Whitening, Tensor]:
    """Return the map, and every class's unit prototype [K, D]."""
    x, mean = seen.features.double(), seen.features.double().mean(0)
    sums = x.new_zeros(len(seen.classes), x.shape[1]).index_add_(0, seen.labels, x - mean)
    means = sums / seen.labels.bincount(minlength=len(sums))[:, None]
    apart = x - mean - means[seen.labels]
    within = apart.T @ apart / len(x)
    within += SHRINKAGE * within.diagonal().mean() * torch.eye(len(within), dtype=x.dtype, device=x.device)
    made = Whitening(mean.float(), torch.linalg.cholesky(torch.linalg.inv(within)).float())
    return made, made((means + mean).float())


def fit(texts: Tensor, looks: Tensor, width: float, ridge: float) -> Looks:
    """Return the regression from texts [T, S] to unit vectors [T, D]."""
    kernel = _kernel(texts, texts, width)
    kernel.diagonal().add_(ridge)
    return Looks(texts, torch.linalg.solve(kernel, looks), width)


def teach(seen: Seen, sentences: Sentences) -> tuple[Whitening, Looks, dict[str, object]]:
    """Return the map of images and the regression, whose kernel did best on classes that were held out."""
    whitening, prototypes = whiten(seen)
    of, names = zip(*seen.names, strict=True)
    texts, owner = sentences.named(names), torch.tensor(of, device=prototypes.device)
    said, shown = sentences(seen.captions), whitening(seen.captioned)
    held = torch.arange(0, len(seen.classes), EVERY, device=owner.device)
    kept = ~torch.isin(owner, held)
    images = torch.isin(seen.labels, held)
    tested, answers = whitening(seen.features[images]), torch.searchsorted(held, seen.labels[images])
    asked = sentences.named([seen.classes[place] for place in held.tolist()])
    found = {}
    for width, ridge in product(WIDTHS, RIDGES):
        rows, targets = torch.cat([texts[kept], said]), torch.cat([prototypes[owner[kept]], shown])
        tried = fit(rows, targets, width, ridge)
        found[width, ridge] = (tested @ tried(asked).T).argmax(1).eq(answers).float().mean().item()
    width, ridge = max(found, key=lambda pair: found[pair])
    facts = {"width": width, "ridge": ridge, "held_out_classes": len(held), "held_out": round(max(found.values()), 4)}
    looks = fit(torch.cat([texts, said]), torch.cat([prototypes[owner], shown]), width, ridge)
    return whitening, looks, dict(facts)


def _kernel(one: Tensor, other: Tensor, width: float) -> Tensor:
    return (width * (one @ other.T - 1)).exp()
