"""How good a finished run's pictures are: FID, KID, and how alike images and texts are to a dual encoder.

All words of all runs are drawn from the same starting latents in the same prompt, so that only the words differ.
Paper's name -> kind: S* -> "global", S^c, what the server sees of a client, -> "sent", S^{c*} -> "client", which is
made of the server's u, or "trained", of the client's own right after one more local training.
The global word is compared with training images of the whole data set, whichever clients hold them, so that runs
of few clients and of many can be compared. Compared with what the run's own clients hold it is "global own".
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.analysis.generate import Sampler, client_word, draw_all, global_word, spoken
from promptfed.analysis.picture_features import Features, find_features
from promptfed.backbones.resizing import resized
from promptfed.core import tree
from promptfed.core.files import write_sealed
from promptfed.data.dataset import Indices
from promptfed.results.folder import names
from promptfed.results.folder.record import Line
from promptfed.runs.finished import FinishedRun, inverted, train_again

RealSet = Literal["all", "own"]


# -- numbers ----------------------------------------------------------------------------------------------------------


def fid(real: Tensor, drawn: Tensor) -> float:
    """Return the Fréchet distance between two sets of features [N, D] and [M, D], taken for Gaussians.

    That is |μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½), with the unbiased Σ; of one example, Σ is zero.
    """
    one, two = real.double(), drawn.double()
    shift = (one.mean(0) - two.mean(0)).square().sum()
    first, second = _root(one), _root(two)
    # with Σ = RᵀR the eigenvalues of Σ₁Σ₂ are the squared singular values of R₁R₂ᵀ
    both = torch.linalg.svdvals(first @ second.mT).sum()
    return max(0.0, float(shift + first.square().sum() + second.square().sum() - 2 * both))


def _root(x: Tensor) -> Tensor:
    """Return an R with RᵀR the covariance of x [N, D], in at most D rows."""
    centred = (x - x.mean(0)) / math.sqrt(max(1, len(x) - 1))
    return torch.linalg.qr(centred, mode="r").R if len(x) > x.shape[1] else centred


def kid(real: Tensor, drawn: Tensor) -> float | None:
    """Return the unbiased squared MMD of features [N, D] and [M, D] with the kernel (x·y / D + 1)³.

    All examples are used at once, not random subsets. It may be negative. Of fewer than two examples there is none.
    """
    if min(len(real), len(drawn)) < 2:
        return None
    value, _, _ = _mmd(real.double(), drawn.double())
    return float(value)


def kid_error(real: Tensor, drawn: Tensor) -> float | None:
    """Return KID's standard error, by leaving out one example of either set at a time (the jackknife).

    It says how much other photographs and other pictures of the same word would change KID. Of fewer than three
    examples there is none.
    """
    if min(len(real), len(drawn)) < 3:
        return None
    _, *without = _mmd(real.double(), drawn.double())
    return math.sqrt(sum(float((len(x) - 1) / len(x) * (x - x.mean()).square().sum()) for x in without))


def _mmd(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the squared MMD, and what it would be without each example of `one` [N] and of `two` [M]."""

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y.mT / x.shape[1] + 1) ** 3

    def within(x: Tensor) -> tuple[Tensor, Tensor]:
        others = kernel(x, x).fill_diagonal_(0).sum(1)
        count = len(x)
        # a sum over pairs loses both of an example's; with two examples, none would be left
        left = (others.sum() - 2 * others) / max(1, (count - 1) * (count - 2))
        return others.sum() / (count * (count - 1)), left

    (first, first_left), (second, second_left), both = within(one), within(two), kernel(one, two)
    value = first + second - 2 * both.mean()
    mean_left = [(both.sum() - both.sum(1 - way)) / (both.numel() - both.shape[1 - way]) for way in (0, 1)]
    return value, first_left + second - 2 * mean_left[0], first + second_left - 2 * mean_left[1]


def likeness(one: Tensor, two: Tensor) -> float:
    """Return the mean cosine between features [N, D] and [M, D], all with all."""
    return float((F.normalize(one.double(), dim=-1) @ F.normalize(two.double(), dim=-1).mT).mean())


def caution(real: int, drawn: int, width: int) -> str:
    """Say why a FID of so many images in so many features must not be taken by itself; empty if it may."""
    least = min(real, drawn)
    if least < 2:
        return f"{least} image has no spread: the FID is hardly more than a distance of means"
    if least <= width:
        return f"{least} images in {width:,} features: the FID is biased upwards; compare equal counts only"
    return ""


# -- a run ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DrawRequest:
    """What is measured: how pictures are drawn, against how many real ones, of how many clients, in which rounds."""

    sampler: Sampler
    features: str = "clip"
    real: int = 50  # images that the global word is compared with, at most
    clients: int = 3  # the first so many, each compared with its own images
    own: int = 8  # pictures drawn of a client's word
    every: int = 0  # rounds between measurements of the global word on the way; 0: only at the end
    against: RealSet = "all"  # whose images the global word is compared with: the data set's, or the run's clients'


def measure(run: FinishedRun, request: DrawRequest) -> Line:
    """Measure a finished run's words, write quality.json into its folder and return what is in it."""
    method, _ = inverted(run)
    features = find_features(request.features, run.plan.dataset.classes, run.loop.device)
    lines, curve = list[Line](), list[Line]()
    if method.shared:
        judge = Judge(run, features, chosen(real_images(run, request.against), request.real))
        # a name of its own: tables of FID take "global" alone, so that all their rows are compared alike
        kind = "global" if request.against == "all" else "global own"
        end = judge(draw_all(run, {"": global_word(run)}, request.sampler)[""])
        lines.append({"word": kind, **end})
        curve = [*_before(run, judge, request), {"round": run.loop.finished, **end}] if request.every else []
    clients = list(range(min(request.clients, len(run.loop.shards))))
    lines += _clients(run, features, clients, replace(request.sampler, count=request.own))
    found = {
        "method": run.plan.recipe.method["name"],
        "round": run.loop.finished,
        "features": features.name,
        "against": request.against,
        "drawing": asdict(request.sampler),
        "words": lines,
        "rounds": curve,
    }
    write_sealed(run.folder / names.QUALITY, found)
    return found


@dataclass(frozen=True, eq=False)
class Judge:
    """Compares pictures with some of a run's real images."""

    run: FinishedRun
    features: Features
    real: Indices  # numbers of images in the data set

    def __call__(self, pictures: Tensor) -> Line:
        """Return all measures of pictures [N, 3, H, W] in −1 … 1."""
        known = self.features(real_pictures(self.run, self.real, pictures.shape[-1]))
        made = self.features(pictures)
        texts = self.features.texts()
        if texts is not None:  # as many of each class's text as there are images of it
            texts = texts[torch.from_numpy(self.run.plan.dataset.labels[self.real])]
        return {
            "fid": fid(known, made),
            "kid": kid(known, made),
            "kid_error": kid_error(known, made),
            "image": likeness(known, made),
            "text": None if texts is None else likeness(texts, made),
            "real": len(known),
            "drawn": len(made),
            "caution": caution(len(known), len(made), known.shape[1]),
        }


def real_images(run: FinishedRun, against: RealSet) -> Indices:
    """Return all training images of the data set, or only those of the run's own clients."""
    if against == "own":
        return np.unique(np.concatenate(run.plan.partition.train))
    dataset = run.plan.dataset
    return np.flatnonzero(dataset.dealt & ~dataset.test)


def chosen(images: Indices, most: int) -> Indices:
    """Return at most so many of the images, evenly from first to last."""
    if len(images) <= most:
        return images
    return images[np.arange(most) * len(images) // most]


def real_pictures(run: FinishedRun, images: Indices, side: int) -> Tensor:
    """Return images of the data set [N, 3, side, side] in −1 … 1."""
    pixels = torch.from_numpy(np.ascontiguousarray(run.plan.dataset.images[images])).movedim(-1, -3) / 127.5 - 1
    return resized(pixels, (side, side)).clamp(-1, 1)


def uploads(run: FinishedRun, clients: Sequence[int]) -> tree.Tree:
    """Return what these clients would send in one more round [C, ...], guarded as it leaves them; nothing changes."""
    for client in clients:
        run.check_client(client)
    return tree.stack([_guarded(run, *answer) for answer in train_again(run.loop, clients)])


def _guarded(run: FinishedRun, client: int, own: tree.Tree, up: tree.Tree, weight: Tensor) -> tree.Tree:
    """Return an answer as it leaves the client."""
    return run.loop.guards.protect(run.loop.finished, torch.tensor(client), own, up, weight)[1]


def _clients(run: FinishedRun, features: Features, clients: Sequence[int], sampler: Sampler) -> list[Line]:
    """Measure the words of single clients, and the global one, against the images each of them trains on."""
    if not clients:
        return []
    for client in clients:
        run.check_client(client)
    words = {"global": global_word(run)} if inverted(run)[0].shared else {}
    words |= {f"client {client}": client_word(run, client, sampler.prompt) for client in clients}
    words |= _after_training(run, clients, sampler.prompt)
    drawn, lines = draw_all(run, words, sampler), []
    for client in clients:
        judge = Judge(run, features, run.plan.partition.train[client])
        kinds = {"global": "global"} | {kind: f"{kind} {client}" for kind in ("sent", "client", "trained")}
        lines += [
            {"word": kind, "client": client, **judge(drawn[name])} for kind, name in kinds.items() if name in drawn
        ]
    return lines


def _after_training(run: FinishedRun, clients: Sequence[int], prompt: str) -> dict[str, Tensor]:
    """Return what every client would send in one more round, and its own word then, if that is another one."""
    words, loop = dict[str, Tensor](), run.loop
    try:
        for client, own, up, weight in train_again(loop, clients, keep=True):
            personal = tree.to(loop.store.get(client), loop.device)
            trained = spoken(run, loop.method.trained(run.task, own, personal, up), prompt)
            if "word" in up:
                words[f"sent {client}"] = _guarded(run, client, own, up, weight)["word"]
            if "word" not in up or not trained.equal(words[f"sent {client}"]):
                words[f"trained {client}"] = trained
    finally:
        loop.store.discard()
    return words


def _before(run: FinishedRun, judge: Judge, request: DrawRequest) -> list[Line]:
    """Measure the global word as it was at first and on the way, without the last round's."""
    words = {str(number): run.words.word(number) for number in range(0, run.loop.finished, request.every)}
    return [{"round": int(name), **judge(drawn)} for name, drawn in draw_all(run, words, request.sampler).items()]
