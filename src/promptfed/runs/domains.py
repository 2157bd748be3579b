"""How a method sorts test images by domain at the end of a run: numbers in domains.json, and a sheet of images."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from promptfed.core import extensions, tree
from promptfed.core.files import write_sealed
from promptfed.core.protocols import Batch, Sorter
from promptfed.data.dataset import Dataset, Images, Indices
from promptfed.federation.loop import Loop
from promptfed.results.folder import names

BATCH = 256
SHOWN, SIDE = 8, 64  # images of each domain on the sheet, and their pixels per side


def show(loop: Loop, dataset: Dataset, folder: Path) -> None:
    """Write domains.json and the sheet into `folder`, if the run's method sorts images by domain.

    Every domain's test images, those of an unseen one included, are sorted by the server's model, and answered
    under each domain's key alone and under the key that the model chooses.
    """
    with torch.no_grad():
        sort = extensions.sorter(loop.method, loop.task, loop.server)
        rows = loop.shards.tested()
        if sort is None or not len(rows):
            return
        of = {name: rows[dataset.domains[rows] == number] for number, name in enumerate(dataset.domain_names)}
        of = {name: own for name, own in of.items() if len(own)}
        answers = {name: _answers(loop, sort, own) for name, own in of.items()}
    count = next(iter(answers.values()))["right"].shape[1]
    keys = [dataset.domain_names[key] if key < len(dataset.domain_names) else f"key {key}" for key in range(count)]
    chosen = {name: np.bincount(one["chosen"], minlength=len(keys)) for name, one in answers.items()}
    picked = {name: np.linspace(0, len(own) - 1, min(SHOWN, len(own))).astype(int) for name, own in of.items()}
    _save_sheet([dataset.images[own[picked[name]]] for name, own in of.items()], folder / names.CONTACT_SHEET)
    shown = {
        "key": [one["chosen"][picked[name]].tolist() for name, one in answers.items()],
        "right": [one["correct"][picked[name]].tolist() for name, one in answers.items()],
        "class": [[dataset.classes[label] for label in dataset.labels[own[picked[name]]]] for name, own in of.items()],
    }
    content = {
        "domains": list(of),
        "keys": keys,
        "count": [len(own) for own in of.values()],
        "chosen": [chosen[name].tolist() for name in of],
        "right": [one["right"].sum(0).tolist() for one in answers.values()],
        "correct": [int(one["correct"].sum()) for one in answers.values()],
        "sheet": {"file": names.CONTACT_SHEET, "side": SIDE, **shown},
    }
    write_sealed(folder / names.DOMAINS, content)


def _answers(loop: Loop, sort: Sorter, rows: Indices) -> dict[str, Indices]:
    """Return the `chosen` key of every image [N], and 1 where a key's answer is `right` [N, K] or its own `correct`."""

    def one(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        real = batch["mask"] > 0
        found = sort(tree.drop(batch, ["y"]))
        shares, each = found["shares"], found["logits"]
        mixed = (shares.unsqueeze(-1) * each).sum(-2)
        right = (each.argmax(-1) == batch["y"].unsqueeze(-1))[real]
        return shares.argmax(-1)[real], right.long(), (mixed.argmax(-1) == batch["y"])[real].long()

    data = replace(loop.shards.data([0], 0, "test", stacked=False), rows=(rows,))
    parts = [one(batch) for batch in data.batches("test", size=min(BATCH, len(rows)), ordered=True)]
    joined = (torch.cat(some).cpu().numpy() for some in zip(*parts, strict=True))
    return dict(zip(("chosen", "right", "correct"), joined, strict=True))


def _save_sheet(lines: list[Images], path: Path) -> None:
    """Save images as one picture on white, a line per domain."""
    sheet = Image.new("RGB", (SIDE * max(len(line) for line in lines), SIDE * len(lines)), "white")
    for down, line in enumerate(lines):
        for across, pixels in enumerate(line):
            enlarged = pixels.shape[0] < SIDE
            image = Image.fromarray(np.ascontiguousarray(pixels))
            how = Image.Resampling.NEAREST if enlarged else Image.Resampling.BICUBIC
            sheet.paste(image.resize((SIDE, SIDE), how), (SIDE * across, SIDE * down))
    sheet.save(path, quality=88)
