"""Exporting a classifier: written under a temporary name, asked, compared with PromptFed, and then put in place."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from promptfed.analysis.exports import graphs
from promptfed.analysis.exports.card import write_about, write_card
from promptfed.analysis.exports.checking import COUNT, Changed, change, largest_difference, made_up
from promptfed.analysis.exports.network import Network, drawn
from promptfed.analysis.exports.opening import ToExport, open_source
from promptfed.analysis.exports.snippets import of_graph
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.progress import bar
from promptfed.core.tree import Tree

CLIENTS = "clients"  # the folder of the clients' own tensors
INT8 = "model.int8.onnx"
MADE_UP = 64  # images on which it is tried where there are no test images
MOST = 200  # test images of a client on which a model in 8 bits is tried


@dataclass(frozen=True)
class Exported:
    """What an export has written."""

    folder: Path
    whose: str
    method: str
    clients: int
    files: tuple[Path, ...]
    difference: float  # the largest, of a probability, from PromptFed's answer
    changed: Changed | None  # by 8 bits

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(path.stat().st_size for path in self.files)


@dataclass(frozen=True)
class _Format:
    """How graphs are written and asked in one format."""

    file: str
    write: Callable[[Any, Path, Any], None]
    read: Callable[[Path], graphs.Ask]


GRAPHS = {
    "pt2": _Format("model.pt2", graphs.write_pt2, graphs.read_pt2),
    "onnx": _Format("model.onnx", graphs.write_onnx, graphs.read_onnx),
}


def export_graph(
    source: Path, out: Path, kind: str, *, client: int | None = None, together: bool = False, int8: bool = False
) -> Exported:
    """Write the graph of one client's model, or one graph for all clients `together`, to the new folder `out`."""
    if int8 and kind != "onnx":
        raise PromptFedError("--int8 is ONNX Runtime's; give --format onnx with it.")
    with new_folder(out) as (part, scratch):
        found = open_source(source, scratch, client, together=together)
        graph, difference = write_graph(part, found, GRAPHS[kind])
        changed = _in_8_bits(part, found, graph) if int8 else None
        files = {number: f"{CLIENTS}/{number}.safetensors" for number in found.clients} if together else {}
        write_about(part, found, kind, files, difference, changed)
        how = [in_words(difference, len(found.clients)), *([change_in_words(changed)] if changed else [])]
        write_card(part, found, of_graph(kind, found), how)
    return exported(out, found, difference, changed)


def exported(out: Path, source: ToExport, difference: float, changed: Changed | None = None) -> Exported:
    """Return what lies in `out`."""
    written = tuple(path for path in sorted(out.rglob("*")) if path.is_file())
    return Exported(out, source.whose, source.method, len(source.clients), written, difference, changed)


@contextmanager
def new_folder(out: Path) -> Iterator[tuple[Path, Path]]:
    """Give a folder that becomes `out` once all is done, and one for what is not kept; on failure nothing is left."""
    if out.exists():
        raise PromptFedError(f"{out} exists already; give another --out, or delete it.")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    kept, scratch = part / "kept", part / "scratch"
    try:
        for folder in (kept, scratch):
            folder.mkdir(parents=True)
        yield kept, scratch
        kept.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def in_words(difference: float, clients: int) -> str:
    """Say how well what was exported answers as PromptFed does."""
    many = f", for each of {clients} clients" if clients > 1 else ""
    return f"On {COUNT} made-up images{many}, its probabilities are PromptFed's to within {difference:.1g}."


def change_in_words(changed: Changed) -> str:
    """Say how a model in 8 bits differs."""
    kind = "test" if changed.tested else "made-up"
    said = f"In 8 bits it gives the same answer for {changed.same} of {changed.images} {kind} images"
    if changed.tested:
        before, after = (100 * right / changed.tested for right in changed.right)
        said += f"; its accuracy on them is {after:.1f} %, before {before:.1f} %"
    return f"{said}; a probability changes by at most {changed.largest:.2g}."


# -- the graph and its check ------------------------------------------------------------------------------------------


def write_graph(folder: Path, source: ToExport, form: _Format) -> tuple[graphs.Ask, float]:
    """Write the graph and the clients' own tensors; return what asks it, and its largest difference from PromptFed."""
    own = _write_own(folder, source)
    first = source.model(source.clients[0])
    network = Network(first, list(own))
    program = graphs.trace(network, made_up(first.shape, 2), own, source.method)
    form.write(program, folder / form.file, list(own))
    ask, worst = form.read(folder / form.file), 0.0
    with bar("comparing clients", len(source.clients)) as advance:
        for number in source.clients:
            worst = max(worst, largest_difference(ask, source.model(number), read_own(folder, number, source)))
            advance(1)
    return ask, worst


def _write_own(folder: Path, source: ToExport) -> Tree:
    """Write a file for every client with the tensors that are its own; return those of the first as it is read back."""
    if not source.together:
        return {}
    (folder / CLIENTS).mkdir()
    for number in source.clients:
        own: dict[str, Tensor] = source.own(number) | drawn(source.model(number))
        if not own:
            raise PromptFedError(
                f"All clients of {source.source} have the same model; export it with --client {number}."
            )
        save_file(tree.settled(own), folder / CLIENTS / f"{number}.safetensors")
    return read_own(folder, source.clients[0], source)


def read_own(folder: Path, client: int, source: ToExport) -> Tree:
    """Return a client's own tensors as an export has them; none where only one client is exported."""
    return load_file(folder / CLIENTS / f"{client}.safetensors") if source.together else {}


# -- 8 bits -----------------------------------------------------------------------------------------------------------


def _in_8_bits(folder: Path, source: ToExport, before: graphs.Ask) -> Changed:
    """Write the graph with its weights in 8 bits too; return how answers change, on test images if there are any."""
    graphs.quantise(folder / GRAPHS["onnx"].file, folder / INT8)
    after = graphs.read_onnx(folder / INT8)
    changes = []
    for number in source.clients:
        images, labels = source.test_images(number, MOST) or (made_up(source.bundle.shape, MADE_UP), None)
        own = read_own(folder, number, source)
        changes.append(change(before(images, own), after(images, own), labels))
    return reduce(add, changes)
