"""Runs as processes that a test can stop, and all that their folders say of them."""

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from promptfed.core.tree import Tree
from promptfed.federation.store import Store, read_tree
from support.tiny_runs import plain

Bits = tuple[Tree, dict[int, Tree], list[dict[str, Any]]]


Stop = tuple[signal.Signals, int, int]
"""A signal that a process sends itself: after how many rounds on record, and how many more changes of files."""


def _main(words: list[str], errors: str, folder: Path, stop: Stop | None) -> None:
    """Be the command line in a process of one's own."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in ((1, os.devnull), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    from promptfed import cli

    sys.argv = ["promptfed", *words]
    if stop is not None:
        sys.addaudithook(_stopper(folder, *stop))
    cli.main()


def _stopper(folder: Path, sign: signal.Signals, lines: int, changes: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Return what sends this process a signal when it is about to change a file, however fast or slow it runs."""
    left = changes

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal left
        writes = event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR)
        if not (writes or event in ("os.rename", "os.remove")) or not str(given[0]).startswith(str(folder)):
            return
        if left >= 0 and lines_in(folder) >= lines:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), sign)

    return hook


def lines_in(folder: Path) -> int:
    """Return how many rounds are on record."""
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


class Run:
    """`promptfed run …` as a process forked from one that has imported everything, so that a test can afford many."""

    def __init__(self, folder: Path, *words: str, stop: Stop | None = None) -> None:
        self.folder, self.errors = folder, folder.with_suffix(".stderr")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["promptfed.runs.runner", "promptfed.results.report", "promptfed.cli", "stopped_runs"]
        )
        self.process = context.Process(target=_main, args=(["run", *words], str(self.errors), folder, stop))
        self.process.start()

    def end(self) -> int:
        self.process.join(240)
        assert self.process.exitcode is not None
        return self.process.exitcode


def bits(folder: Path) -> Bits:
    """Return all that a run's folder says of its state: the server, every known client, every round."""
    checkpoint = folder / "checkpoint"
    state = json.loads((checkpoint / "state.json").read_text())
    store = Store(lambda client: {}, checkpoint)
    store.restore(state["personal"])
    personal = {client: store.get(client) for client in range(4)}
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return read_tree(checkpoint / state["server"]["file"]), personal, plain(lines)


def same(first: Tree, second: Tree) -> bool:
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


def assert_same(first: Bits, second: Bits) -> None:
    assert first[2] == second[2]
    assert same(first[0], second[0])
    assert first[1].keys() == second[1].keys()
    assert all(same(first[1][client], second[1][client]) for client in first[1])


def content(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
