"""Figures by name: what `promptfed figure` can draw from run folders. An entry in `FIGURES` adds one.

| module | holds |
|---|---|
| `drawing` | what a figure is: title, caption, numbers and plot, and its two files |
| `plotting` | how it is drawn: from arrays to a matplotlib plot |
| `opened` | a run opened for figures: every client's model, and images as that client sees them |
| `inspection` | what is measured inside a model: feature maps, attention, Grad-CAM, saliency |
| `saliency` | figures `attention`, `grad-cam` and `saliency`: where a model looks, with its prompt and without |
| `priors` | figures `prior`, `tsne` and `leakage`: what a model expects, and what its upload gives away |
| `encodings` | figure `encodings`: what the text tower makes of a learned word |
| `records` | figures `drift` and `labels`, from the run folder alone |
| `sizes` | figure `sizes`: accuracy over the size of the prompt, from run folders alone |
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from promptfed.core.errors import PromptFedError, choice
from promptfed.results.folder import names


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure: what it shows, and `module:function`, imported when it is asked for.

    The function takes run folders and client numbers (none: its own choice) and returns a `Drawing`. If its
    images can be chosen by class, it also takes a class by name or number, or None for any.
    """

    about: str
    maker: str
    several: bool = False  # it compares several run folders
    by_class: bool = False  # it shows images, which can be chosen by class


FIGURES = {
    "attention": FigureKind(
        "the class token's attention in a vision transformer",
        "promptfed.analysis.figures.saliency:attention",
        by_class=True,
    ),
    "drift": FigureKind(
        "how far prompts move, round by round", "promptfed.analysis.figures.records:drift", several=True
    ),
    "encodings": FigureKind(
        "a learned word's encodings, by template", "promptfed.analysis.figures.encodings:encodings", several=True
    ),
    "grad-cam": FigureKind(
        "the Grad-CAM of a convolutional network", "promptfed.analysis.figures.saliency:cam", by_class=True
    ),
    "labels": FigureKind("a heat map of labels per client", "promptfed.analysis.figures.records:labels"),
    "leakage": FigureKind("how well uploads reveal labels", "promptfed.analysis.figures.priors:leakage", several=True),
    "prior": FigureKind(
        "the classes a client's model expects, beside its labels", "promptfed.analysis.figures.priors:prior"
    ),
    "saliency": FigureKind(
        "how much each pixel moves the class a model decides for",
        "promptfed.analysis.figures.saliency:pixels",
        by_class=True,
    ),
    "sizes": FigureKind(
        "accuracy over the size of prompts, by kind", "promptfed.analysis.figures.sizes:sizes", several=True
    ),
    "tsne": FigureKind("features of single-colour images, by client", "promptfed.analysis.figures.priors:tsne"),
}


def draw(
    kind: str,
    folders: Sequence[Path],
    out: Path | None = None,
    clients: Sequence[int] = (),
    label: str | None = None,
) -> Path:
    """Draw a figure of run folders and return where its picture is; `label` names the one class whose images it shows.

    Without `out` it becomes part of the run folder, as figures/KIND.png, and of its report; of several run folders, it
    goes beside them.
    """
    from promptfed.analysis.figures.drawing import check_place, save
    from promptfed.results.report import write_report

    if kind not in FIGURES:
        raise choice("figure", kind, FIGURES)
    if not folders:
        raise PromptFedError("There is no run to draw; give at least one run folder.")
    if len(folders) > 1 and not FIGURES[kind].several:
        raise PromptFedError(f"Figure {kind} is of one run; give one run folder, not {len(folders)}.")
    if label is not None and not FIGURES[kind].by_class:
        *most, last = (name for name, one in FIGURES.items() if one.by_class)
        those = f"{', '.join(most)} and {last}"
        raise PromptFedError(f"Figure {kind} shows no images of a class, only {those} do; leave out --class.")
    place = out if out is not None else _default_place(kind, folders)
    check_place(place)
    module, _, function = FIGURES[kind].maker.partition(":")
    chosen = {"label": label} if FIGURES[kind].by_class else {}
    drawing = getattr(import_module(module), function)(folders, clients, **chosen)
    save(drawing, kind, place)
    if out is None and len(folders) == 1:
        write_report(folders)
    return place


def _default_place(kind: str, folders: Sequence[Path]) -> Path:
    if len(folders) == 1:
        return folders[0] / names.DRAWN / f"{kind}.png"
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders])) / f"{kind}.png"
