"""Figures by name: what `promptfed figure` can draw from run folders. A line in `KINDS` adds one."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from promptfed.core.errors import PromptFedError, choice
from promptfed.results.folder import names


@dataclass(frozen=True)
class Kind:
    """A kind of figure: what it shows, and `module:function`, imported when it is asked for.

    The function takes run folders and client numbers (none: its own choice) and returns a `drawings.Drawing`. If its
    images can be chosen by class, it also takes a class by name or number, or None for any.
    """

    about: str
    maker: str
    several: bool = False  # it compares several run folders
    by_class: bool = False  # it shows images, which can be chosen by class


KINDS = {
    "attention": Kind(
        "the class token's attention in a vision transformer",
        "promptfed.analysis.figures.maps:attention",
        by_class=True,
    ),
    "drift": Kind("how far prompts move, round by round", "promptfed.analysis.figures.records:drift", several=True),
    "encodings": Kind(
        "a learned word's encodings, by template", "promptfed.analysis.figures.encodings:encodings", several=True
    ),
    "grad-cam": Kind("the Grad-CAM of a convolutional network", "promptfed.analysis.figures.maps:cam", by_class=True),
    "labels": Kind("a heat map of labels per client", "promptfed.analysis.figures.records:labels"),
    "leakage": Kind("how well uploads give labels away", "promptfed.analysis.figures.priors:leakage", several=True),
    "prior": Kind("the classes a client's model expects, beside its labels", "promptfed.analysis.figures.priors:prior"),
    "sizes": Kind("accuracy over the size of prompts, by kind", "promptfed.analysis.figures.sizes:sizes", several=True),
    "tsne": Kind("features of images of one colour, by client", "promptfed.analysis.figures.priors:tsne"),
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
    from promptfed.analysis.figures import drawings
    from promptfed.results.report import write_report

    if kind not in KINDS:
        raise choice("figure", kind, KINDS)
    if not folders:
        raise PromptFedError("There is no run to draw; give at least one run folder.")
    if len(folders) > 1 and not KINDS[kind].several:
        raise PromptFedError(f"Figure {kind} is of one run; give one run folder, not {len(folders)}.")
    if label is not None and not KINDS[kind].by_class:
        those = " and ".join(name for name, one in KINDS.items() if one.by_class)
        raise PromptFedError(f"Figure {kind} shows no images of a class, only {those} do; leave out --class.")
    place = out if out is not None else _default_place(kind, folders)
    drawings.check_place(place)
    module, _, function = KINDS[kind].maker.partition(":")
    chosen = {"label": label} if KINDS[kind].by_class else {}
    drawing = getattr(import_module(module), function)(folders, clients, **chosen)
    drawings.save(drawing, kind, place)
    if out is None and len(folders) == 1:
        write_report(folders)
    return place


def _default_place(kind: str, folders: Sequence[Path]) -> Path:
    if len(folders) == 1:
        return folders[0] / names.DRAWN / f"{kind}.png"
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders])) / f"{kind}.png"
