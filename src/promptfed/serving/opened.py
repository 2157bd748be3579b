"""A bundle opened for serving: the backbone and shared tensors in memory once, the clients' rows mapped from disk."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from promptfed.analysis.bundle.contents import Bundle, open_bundle, row_sum, verify
from promptfed.analysis.predict import bundled_recipe, bundled_task
from promptfed.core import keys, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task
from promptfed.core.protocols import Draw
from promptfed.core.tree import Tree
from promptfed.runs import config
from promptfed.runs.planning import pick_device


@dataclass(frozen=True, eq=False)
class ServedBundle:
    """Everything it takes to answer for any client of one bundle."""

    folder: Path
    about: Bundle
    method: Method
    task: Task  # with the whole backbone, on the device
    device: torch.device
    shared: Tree  # on the device
    rows: Tree  # [clients, ...], mapped from the file: only rows that are asked for are read
    facts: Tree  # [clients, ...]
    draws: dict[str, Draw]
    salts: Tree  # [clients] for every draw
    pixels: tuple[Tensor, Tensor]  # scale and shift of the images' bytes
    order: dict[int, int]  # row of every client
    sums: tuple[str, ...]  # of the rows
    checked: set[int] = field(default_factory=set)  # rows whose checksum was right

    @property
    def name(self) -> str:
        """Return the folder's name."""
        return self.folder.resolve().name

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one client's own tensors."""
        return tree.nbytes(self.rows) // len(self.order)

    def gather(self, rows: Sequence[int]) -> Tree:
        """Return the own tensors of the clients in `rows` [len(rows), ...] on the device; each is checked once."""
        self.check(set(rows))
        index = torch.tensor(rows)
        return tree.to({name: value.index_select(0, index) for name, value in self.rows.items()}, self.device)

    def check(self, rows: Iterable[int]) -> None:
        """Compare rows that were never used with their checksums."""
        for row in set(rows) - self.checked:
            if row_sum(tree.row(self.rows, row)) != self.sums[row]:
                path = self.folder / self.about.rows.name
                raise PromptFedError(f"The bundle is damaged: {path} is not what was written; make the bundle again.")
            self.checked.add(row)


def open_served(
    folder: Path, device: str = "auto", precision: str = "", known: Sequence[ServedBundle] = ()
) -> ServedBundle:
    """Open a bundle; of `known` ones it takes over a backbone that is the same."""
    about, place = open_bundle(folder), pick_device(device)
    recipe = bundled_recipe(about)
    method = config.build_method(recipe)
    task = _known_task(about, place, precision, known)
    if task is None:
        cpu = bundled_task(folder, about, recipe, torch.device("cpu"))
        task = replace(cpu, backbone=_precise(cpu.backbone, precision).to(place))
    verify(folder, about.shared)
    shared, rows = map_tensors(folder / about.shared.name), map_tensors(folder / about.rows.name)
    if sorted((*shared, *rows)) != sorted(about.order):
        raise PromptFedError(f"The bundle is damaged: {folder} lacks a tensor that it names; make the bundle again.")
    dropout = task.backbone.draws()
    draws = {name: draw for name, draw in method.draws(task).items() if name not in dropout}
    mean, std = (torch.tensor(part, device=place) for part in (about.mean, about.std))
    return ServedBundle(
        folder=folder,
        about=about,
        method=method,
        task=task,
        device=place,
        shared=tree.to(tree.settled(shared), place),
        rows=rows,
        facts=tree.to(_facts(about), place),
        draws=draws,
        salts=tree.to(_salts(about, draws), place),
        pixels=(1 / (255 * std), -mean / std),
        order={client: row for row, client in enumerate(about.clients)},
        sums=tuple(client.sha256 for client in about.clients.values()),
    )


def _known_task(about: Bundle, place: torch.device, precision: str, known: Sequence[ServedBundle]) -> Task | None:
    """Return a task whose backbone is already in memory, if one of `known` has the same."""

    def same(other: ServedBundle) -> bool:
        parts = [(one.backbone, one.fingerprint, one.shape, one.classes) for one in (about, other.about)]
        held = not precision or getattr(other.task.backbone, "precision", "") == precision
        return parts[0] == parts[1] and other.device == place and held

    found = next((one.task for one in known if same(one)), None)
    return found and replace(found, num_clients=about.trained)


def _precise(backbone: Any, precision: str) -> Any:
    """Return a frozen backbone that will compute in `precision`."""
    if not precision:
        return backbone
    if not hasattr(backbone, "precision"):
        raise PromptFedError(f"--precision is for frozen backbones; {backbone.name} computes as it was trained.")
    return replace(backbone, precision=precision)


def map_tensors(path: Path) -> Tree:
    """Return a file's tensors; they are mapped, so what nobody looks at is not read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is not a dict)
    except (OSError, SafetensorError) as error:
        raise PromptFedError(f"{path} cannot be read: {error}.") from error


def _facts(about: Bundle) -> Tree:
    """Return the facts of all clients, stacked."""
    each = [client.facts for client in about.clients.values()]
    return {name: torch.tensor([facts[name] for facts in each]) for name in each[0]}


def _salts(about: Bundle, draws: Iterable[str]) -> Tree:
    """Return the keys that a client's draws in testing are hashed from."""
    return {
        name: torch.tensor([keys.key(about.seed, name, "test", client, about.round) for client in about.clients])
        for name in draws
    }
