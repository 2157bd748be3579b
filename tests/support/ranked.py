"""Processes that share a run on this machine, forked from one that has imported everything."""

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptfed.core.group import Group
from promptfed.core.method import Method
from promptfed.core.ranks import Ranks
from promptfed.federation.loop import Loop
from promptfed.results.folder.predictions import Predictions
from support.stopped_runs import same
from support.tiny_runs import plain

PRELOADED = ["promptfed.runs.runner", "promptfed.results.report", "promptfed.cli", "support.ranked", "support.loops"]
Work = Callable[..., object]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _place(rank: int, size: int, port: int) -> None:
    """Be one of several processes, as torchrun would have it."""
    torch.set_num_threads(1)
    where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in where.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")


def start(size: int, main: Work, *given: object) -> list[BaseProcess]:
    """Start `main(rank, size, port, *given)` in so many processes."""
    context, port = multiprocessing.get_context("forkserver"), free_port()
    context.set_forkserver_preload(PRELOADED)
    started = [context.Process(target=main, args=(rank, size, port, *given)) for rank in range(size)]
    for process in started:
        process.start()
    return list(started)


def _work(rank: int, size: int, port: int, patience: float, work: Work, given: Sequence[object]) -> None:
    _place(rank, size, port)
    group = Group(torch.device("cpu"), rank, patience)
    try:
        work(group, *given)
    finally:
        group.leave()


def together(size: int, work: Work, *given: object, patience: float = 60) -> list[int | None]:
    """Do `work(ranks, *given)` in so many processes of one group; return their exit codes."""
    processes = start(size, _work, patience, work, given)
    for process in processes:
        process.join(250)
    return [process.exitcode for process in processes]


def _main(rank: int, size: int, port: int, words: Sequence[str], errors: str) -> None:
    """Be the command line in one of several processes."""
    _place(rank, size, port)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in ((1, os.devnull), (2, f"{errors}.{rank}")):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    from promptfed import cli

    sys.argv = ["promptfed", *words]
    cli.main()


class RankedRun:
    """`promptfed run …` in several processes, as torchrun starts them."""

    def __init__(self, folder: Path, size: int, *words: str) -> None:
        self.folder, self._errors = folder, folder.with_suffix(".stderr")
        self.processes = start(size, _main, ["run", *words], str(self._errors))

    def lines(self) -> int:
        path = self.folder / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def wait(self, lines: int) -> None:
        """Wait until so many rounds are on record, or the run has ended."""
        until = time.monotonic() + 60
        while self.processes[0].is_alive() and self.lines() < lines and time.monotonic() < until:
            time.sleep(0.002)

    def send(self, rank: int, sign: signal.Signals) -> None:
        number = self.processes[rank].pid
        if self.processes[rank].is_alive() and number:
            os.kill(number, sign)

    def end(self) -> list[int | None]:
        for process in self.processes:
            process.join(60)
        return [process.exitcode for process in self.processes]

    def errors(self, rank: int) -> str:
        return Path(f"{self._errors}.{rank}").read_text()


# -- loops that several processes share, beside the same ones alone -----------------------------------------------

Case = tuple[Callable[..., Loop], Method, dict[str, Any]]
"""What makes the loop, of which method, and with what else."""


def run(loop: Loop) -> tuple[list[dict[str, Any]], object, Predictions | None]:
    """Run all rounds and last tests; return what they say."""
    loop.run(lambda: loop.save("recipe", "partition"), lambda line: None)
    return plain(loop.record.rounds), (loop.adapted(), loop.after()), loop.predictions()


def compare(ranks: Ranks, cases: Mapping[str, Case], folder: Path, exact: bool, alike: bool) -> None:
    """Run every case shared and, on the leader, alone; write what differs to found.json."""
    found, ranks.alike = {}, alike
    for number, (name, (make, method, more)) in enumerate(cases.items()):
        many = make(method, folder / f"{number}-many", ranks=ranks, **more)
        shared = run(many)
        if ranks.leads:
            one = make(method, folder / f"{number}-one", **more)
            found[name] = _differences(one, many, run(one), shared, exact)
    if ranks.leads:
        (folder / "found.json").write_text(json.dumps(found))


def _differences(one: Loop, many: Loop, alone: Any, shared: Any, exact: bool) -> list[str]:
    """Name what is not the same, to the last bit; what is only measured counts where it is to be `exact`."""
    state = many.record.state("recipe", "partition")
    assert state is not None
    stored = many.store.whole(state["personal"])
    clients = range(len(one.shards))
    found = {
        "server": same(one.server, many.server),
        "personal": all(same(one.store.get(client), stored.get(client)) for client in clients),
    }
    if exact:
        found |= {"rounds": alone[0] == shared[0], "scores": alone[1] == shared[1]}
        found["predictions"] = _same_answers(alone[2], shared[2])
    return [name for name, equal in found.items() if not equal]


def _same_answers(one: Predictions | None, other: Predictions | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(np.array_equal(value, vars(other)[name]) for name, value in vars(one).items())


def differences(
    size: int, cases: Mapping[str, Case], folder: Path, *, exact: bool = True, alike: bool = True
) -> dict[str, list[str]]:
    """Return what differs between one process and so many, for every case; if not `alike`, the leader aggregates."""
    assert together(size, compare, cases, folder, exact, alike, patience=200) == [0] * size
    found: dict[str, list[str]] = json.loads((folder / "found.json").read_text())
    assert found.keys() == cases.keys()
    return found
