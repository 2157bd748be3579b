"""The tables of `list`, `data list` and `doctor`: what is available by name, and what this machine can run."""

import inspect
import shutil
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from rich.table import Table

from promptfed.analysis.figures import FIGURES
from promptfed.core import options
from promptfed.runs import catalogue, registry
from promptfed.runs.sources import describe

ListEntry = dict[str, Any]
_ENGINE = ("shape", "classes", "names")  # a backbone's fields that the data set decides
_WITHOUT_KEYS = ("recipes", "figures")  # a recipe has too many to show, a figure none


def entries(kind: str) -> list[ListEntry]:
    """Return everything of that kind: its name, what it is, and its recipe keys with their defaults."""
    if kind == "recipes":
        described = ((name, *describe(name)) for name in registry.recipes())
        return [{"name": name, "about": about, "keys": keys} for name, about, keys in described]
    if kind == "figures":
        return [{"name": name, "about": _sentence(one.about), "keys": {}} for name, one in sorted(FIGURES.items())]
    registries: dict[str, Callable[[], Mapping[str, type]]] = {
        "methods": catalogue.methods,
        "datasets": catalogue.datasets,
        "backbones": catalogue.backbones,
        "partitions": catalogue.partitions,
    }
    known = sorted(registries[kind]().items())
    return [{"name": name, "about": _about(item), "keys": _keys(item)} for name, item in known]


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _about(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n", 1)[0]


def _keys(kind: type) -> ListEntry:
    own = options.hints(kind)
    return {
        field.name: None if field.default is MISSING else field.default
        for field in fields(kind)
        if field.name in own and field.name not in _ENGINE
    }


def table(kind: str, rows: list[ListEntry]) -> Table:
    """Return the entries as a table for people."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("name", no_wrap=True)
    shown.add_column("what it is")
    if kind not in _WITHOUT_KEYS:
        shown.add_column("keys")
    for row in rows:
        keys = ", ".join(f"{key}={value}" for key, value in row["keys"].items())
        shown.add_row(row["name"], row["about"], *([] if kind in _WITHOUT_KEYS else [f"[dim]{keys}[/]"]))
    return shown


def data_table() -> Table:
    """Return which data sets are on this machine."""
    from promptfed.data import status
    from promptfed.results.report.table import (
        human_bytes,  # with the report comes numpy, which `list` need not wait for
    )

    shown = Table(box=None, pad_edge=False)
    for title in ("data set", "here", "size", "where"):
        shown.add_column(title)
    for one in status():
        shown.add_row(
            one.name, "yes" if one.present else "no", human_bytes(one.size) if one.size else "–", str(one.where)
        )
    return shown


def diagnosis() -> Table:
    """Return what this machine can run."""
    import torch

    from promptfed.core.version import __version__
    from promptfed.data import status
    from promptfed.data.download import home
    from promptfed.results.report.table import human_bytes

    shown = Table(box=None, pad_edge=False, show_header=False)
    gpu = torch.cuda.is_available()
    disk = shutil.disk_usage(Path.cwd())
    shown.add_row("promptfed", __version__)
    shown.add_row("torch", torch.__version__)
    shown.add_row("CPU", f"{torch.get_num_threads()} threads; clients run one by one")
    shown.add_row("GPU", f"{torch.cuda.get_device_name()}; clients run stacked" if gpu else "none seen by torch")
    shown.add_row("device=auto", "cuda" if gpu else "cpu")
    shown.add_row("free disk here", human_bytes(disk.free))
    shown.add_row("data home", str(home()))
    shown.add_row("data sets here", ", ".join(one.name for one in status() if one.present))
    return shown
