"""Runs that several processes share: starting them, and joining them."""

import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptfed.cli.terminal import complain
from promptfed.core import progress
from promptfed.core.errors import PromptFedError
from promptfed.results.folder import names

if TYPE_CHECKING:
    from promptfed.core.ranks import Ranks

PATIENCE = 1800.0

Gpus = Annotated[
    int | None,
    typer.Option(help="Share the run between this many GPUs of this machine, a process for each.", min=1),
]
Processes = Annotated[
    int | None,
    typer.Option(help="Share the run between this many processes on the CPU, which share its cores.", min=1),
]
Patience = Annotated[
    float,
    typer.Option(
        help="Where processes share a run: how long they wait for one that does not answer.", metavar="SECONDS", min=1
    ),
]


def launched() -> bool:
    """Say whether this process was started among others, by torchrun or by `launch`."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def follows() -> bool:
    """Say whether another process of the run does the talking."""
    return launched() and os.environ["RANK"] != "0"


@contextmanager
def once() -> Iterator[None]:
    """Let only the leader say what is wrong with a command line: the others find the same."""
    try:
        yield
    except PromptFedError:
        if follows():
            raise typer.Exit(2) from None
        raise


def placed(gpus: int | None, processes: int | None, words: list[str]) -> list[str]:
    """Return the recipe's key that goes with --gpus or --processes, or refuse what does not."""
    if gpus is None and processes is None:
        return []
    option, device = ("--gpus", "cuda") if gpus else ("--processes", "cpu")
    if gpus and processes:
        raise PromptFedError("--gpus and --processes are two ways to share a run; give one of them.")
    if launched():
        raise PromptFedError(f"{option} starts the processes itself; leave it out under torchrun.")
    others = [word for word in words if word.startswith("device=") and word not in (f"device={device}", "device=auto")]
    if others:
        raise PromptFedError(f"{others[0]} and {option} contradict each other; leave one of them out.")
    return [f"device={device}"]


def launch(words: list[str], count: int, patience: float, folder: Path, *, gpus: bool) -> None:
    """Start `count` processes of the command line `words`, and end as they do."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if gpus:
        from promptfed.runs.joining import check_gpus

        check_gpus(count)
    logging.disable(logging.CRITICAL)  # what is the matter the processes say themselves
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    if sys.platform == "linux":  # they are all here: no one else is to hear them
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        run_id=f"promptfed-{os.getpid()}",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "promptfed", *words, "--patience", str(patience))
    except ChildFailedError as failed:
        codes = {rank: failure.exitcode for rank, failure in failed.failures.items()}
        again = f"promptfed run --resume {folder} {'--gpus' if gpus else '--processes'} {count}"
        raise typer.Exit(_ended(codes, count, again)) from None
    except SignalException as stopped:
        raise typer.Exit(128 + stopped.sigval) from None


def _ended(codes: Mapping[int, int], count: int, again: str) -> int:
    """Return the exit code of processes that have ended with these, and say which was killed, if one was."""
    killed = {rank: -code for rank, code in codes.items() if code < 0 and -code != signal.SIGTERM}
    if killed:
        rank, number = next(iter(killed.items()))
        complain(f"Process {rank} of {count} was ended by {signal.Signals(number).name}. Resume with: {again}")
    return 1 if killed else max(0, *codes.values()) or 1


@contextmanager
def shared(device: str | None, folder: Path, patience: float) -> Iterator["Ranks"]:
    """Yield the processes that share this run: those that were started with this one, or this one alone.

    Without a `device`, it is what the run in `folder` was made on. Only the leader speaks.
    """
    from promptfed.core.ranks import ALONE, LostError

    if not launched():
        yield ALONE
        return
    from promptfed.runs.config import load_one
    from promptfed.runs.joining import join

    group = None
    if follows():
        progress.hush()
        logging.getLogger("promptfed").setLevel(logging.ERROR)
    try:
        group = join(device or load_one(str(folder / names.RECIPE)).device, patience)
        yield group
    except Exception as error:
        lost = isinstance(error, LostError)
        if follows() and (group is None or lost or group.knows(error)):
            raise typer.Exit(2) from None
        if lost:
            raise PromptFedError(f"{error} Resume with: promptfed run --resume {folder}") from error
        raise
    finally:
        if group is not None:
            group.leave()
