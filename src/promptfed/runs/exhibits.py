"""What a finished run shows about its clients: figures.json, and their learned prompts as pictures."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from promptfed.core import extensions, tree
from promptfed.core.files import write_sealed
from promptfed.data.dataset import Dataset
from promptfed.federation.loop import Loop
from promptfed.results import figures
from promptfed.results.folder import names

PICTURES = 64  # clients whose prompts are drawn


def write_figures(loop: Loop, path: Path, dataset: Dataset) -> None:
    """Write figures.json: how the clients' prompts and descriptors compare with the images they hold."""
    clients = loop.everyone[: figures.MOST_CLIENTS]
    personal = tree.stack([tree.to(loop.store.get(client), loop.device) for client in clients.tolist()])
    with torch.no_grad():
        shown = extensions.exhibits(loop.method, loop.task, loop.server, clients, personal)
    facts = loop.shards.facts(clients.tolist())
    made = figures.make(
        {name: value.float().cpu().numpy() for name, value in shown.items()},
        facts["counts"].cpu().numpy(),
        facts["domain"].cpu().numpy(),
        dataset.domain_names,
    )
    if made is not None:
        write_sealed(path, made)


def draw_prompts(loop: Loop, folder: Path, dataset: Dataset) -> None:
    """Write the learned prompts of the first clients as PNG files."""
    mean, std = (np.array(part).reshape(3, 1, 1) for part in (dataset.mean, dataset.std))
    for client in range(min(len(loop.shards), PICTURES)):
        for name, picture in extensions.pictures(
            loop.method, loop.task, tree.to(loop.store.get(client), "cpu")
        ).items():
            pixels = np.clip((picture.numpy() * std + mean) * 255, 0, 255).astype(np.uint8)
            folder.mkdir(exist_ok=True)
            Image.fromarray(pixels.transpose(1, 2, 0)).save(folder / names.picture_file(name, client))
