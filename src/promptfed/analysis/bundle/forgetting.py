"""Removing a client from a bundle: its row is gone from the files, and the others' answers stay as they are."""

from dataclasses import replace
from pathlib import Path

from promptfed.analysis.bundle.contents import (
    ABOUT,
    CLIENTS,
    Bundle,
    open_bundle,
    read_row,
    verify,
    write_about,
    write_tensors,
)
from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.files import held


def forget(folder: Path, client: int) -> Bundle:
    """Write the rows of all other clients, then remove the old file; return what is left.

    bundle.json is the only commit point: it names the new file in the same step in which the client leaves it. After a
    power cut between the two the old file is left over, unnamed; the next `forget` removes it.
    """
    open_bundle(folder)  # a sentence where there is none
    try:
        with held(folder / ABOUT, wait=False):
            bundle = open_bundle(folder)
            _remove_leftovers(folder, bundle)
            _check(folder, bundle, client)
            return _without(folder, bundle, client)
    except BlockingIOError as error:
        raise PromptFedError(f"Another process is changing {folder}; try again when it has finished.") from error


def _without(folder: Path, bundle: Bundle, client: int) -> Bundle:
    """Replace the stacked file and bundle.json by ones without the client."""
    verify(folder, bundle.rows)
    kept = [number for number in bundle.clients if number != client]
    stacked = tree.stack([read_row(folder, bundle, number) for number in kept])
    rows = write_tensors(folder / _next_name(bundle.rows.name), stacked)
    left = replace(bundle, clients={number: bundle.clients[number] for number in kept}, rows=rows)
    write_about(folder, left)
    (folder / bundle.rows.name).unlink()
    return left


def _check(folder: Path, bundle: Bundle, client: int) -> None:
    """Refuse a client that is not there, or that is the last one."""
    if client not in bundle.clients:
        raise PromptFedError(f"{folder} has no client {client}; it has {', '.join(map(str, bundle.clients))}.")
    if len(bundle.clients) == 1:
        raise PromptFedError(f"Client {client} is the only one in {folder}; delete the folder instead.")


def _next_name(name: str) -> str:
    """Return the name of the next stacked file: clients-1.safetensors after clients.safetensors, and so on."""
    stem, _, number = name.removesuffix(".safetensors").partition("-")
    return f"{stem}-{int(number or 0) + 1}.safetensors"


def _remove_leftovers(folder: Path, bundle: Bundle) -> None:
    """Remove stacked files that bundle.json does not name."""
    stem = CLIENTS.removesuffix(".safetensors")
    for path in folder.glob(f"{stem}*.safetensors"):
        if path.name != bundle.rows.name:
            path.unlink()
