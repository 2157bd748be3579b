"""What lies beside an exported model: model.json for programs, README.md for people."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from promptfed.analysis.exports.checking import Changed
from promptfed.analysis.exports.opening import ToExport
from promptfed.core.files import write_json, write_text
from promptfed.core.printable import printable
from promptfed.core.version import __version__
from promptfed.results.metrics import METRICS, TITLES

ABOUT, CARD = "model.json", "README.md"
FORMAT = 1


def write_about(
    folder: Path, source: ToExport, kind: str, files: Mapping[int, str], difference: float, changed: Changed | None
) -> None:
    """Write model.json: the classes, the images it wants, where it comes from, and how it was checked."""
    bundle = source.bundle
    clients = {
        number: {"name": known.name, "accuracy": known.accuracy, "metrics": dict(known.metrics)}
        | ({"file": files[number]} if files else {})
        for number, known in bundle.clients.items()
        if number in source.clients
    }
    about: dict[str, Any] = {
        "format": FORMAT,
        "promptfed": __version__,
        "export": kind,
        "classes": bundle.classes,
        "images": {"name": "images", "dtype": "uint8", "shape": ["batch", *bundle.shape, 3], "colours": "RGB"},
        "probabilities": {"name": "probabilities", "dtype": "float32", "shape": ["batch", len(bundle.classes)]},
        "mean": bundle.mean,
        "std": bundle.std,
        "method": bundle.method,
        "prompt": bundle.prompt,
        "backbone": _without_paths(bundle.backbone),
        "round": bundle.round,
        "clients": clients,
        "largest_difference": difference,
    }
    write_json(folder / ABOUT, about | ({"int8": asdict(changed)} if changed else {}))


def write_card(folder: Path, source: ToExport, use: str, how: Sequence[str]) -> None:
    """Write README.md, the model card; `use` is code, `how` says what was checked."""
    bundle = source.bundle
    height, width = bundle.shape
    backbone = _without_paths(bundle.backbone)
    weights = f" with the weights `{backbone['weights']}`" if "weights" in backbone else ""
    places = "the same places" if source.together else "the same place"
    text = f"""---
pipeline_tag: image-classification
tags: [federated-learning, promptfed]
---

# {source.method}: the model of {source.whose}

An image classifier that was trained with PromptFed {bundle.promptfed}, a package for federated prompt learning. Using it needs no PromptFed.

| | |
|---|---|
| method | `{source.method}`, after round {bundle.round} |
| network | `{backbone["name"]}`{weights} |
| images | RGB, {height} × {width} pixels (height × width), bytes from 0 to 255 |
| classes | {", ".join(f"{number}: {_cell(name)}" for number, name in enumerate(bundle.classes))} |

## Use

{use}

## Data

{source.data}

## Accuracy

{_accuracy(source)}

## Intended use

It is meant for images of the kind it was trained on, from {places}, where a wrong answer does no harm or a person checks it.
{_fit(source)}
The probabilities are not calibrated, and an image that shows none of the classes is given one of them all the same.
Test the model on images of your own before you rely on it.

## How it was checked

{chr(10).join(f"- {sentence}" for sentence in how)}
"""  # noqa: E501  (a paragraph of Markdown is a line)
    write_text(folder / CARD, text)


def _accuracy(source: ToExport) -> str:
    """Return the accuracy on the clients' test images, and other measures of the same test, in words."""
    known = [source.bundle.clients[number] for number in source.clients]
    tested = {number: one for number, one in zip(source.clients, known, strict=True) if one.accuracy is not None}
    if not tested:
        return "It has not been measured: there were no test images."
    names = [name for name in METRICS[1:] if any(name in one.metrics for one in known)]
    titles = ["client", "accuracy", *(TITLES[name] for name in names)]
    head = ["On the client's own test images, after the last round:", "", _row(titles)]
    rows = [
        _row([str(number), _percent(one.accuracy), *(_decimal(one.metrics.get(name)) for name in names)])
        for number, one in tested.items()
    ]
    return "\n".join([*head, _row(["---"] * len(titles)), *rows])


def _cell(text: str) -> str:
    """Return a text that keeps its row together."""
    return " ".join(printable(text).replace("|", "\\|").split())


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _fit(source: ToExport) -> str:
    """Return whom the model suits, in words."""
    if source.together:
        return "A client's tensors are fitted to its own images and may do worse on those of others."
    return "It is fitted to one client's images and may do worse on those of others."


def _without_paths(backbone: Mapping[str, Any]) -> dict[str, Any]:
    """Return a backbone's options; of weights in a folder of the user's only the last part of the path is told."""
    weights = Path(str(backbone.get("weights", "embedded"))).expanduser()
    return dict(backbone) | ({"weights": weights.name} if weights.exists() else {})
