"""Record how long a table's runs took and how busy the GPU was: one line per command in OUT/sittings.jsonl.

A timing covers a command from its first run to its last, or until it was stopped.
"""

import datetime
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean

from promptfed.core.errors import PromptFedError
from promptfed.papers.comparison import Timing

FILE = "sittings.jsonl"
EVERY = 1.0  # seconds between two samples of the GPU's load
SMI = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
Sample = Callable[[], float | None]


def gpu_load() -> float | None:
    """Return the mean load of this machine's GPUs in percent, or None if it is unknown.

    It comes from nvidia-smi, since torch would open the GPU in a process that does not need it.
    """
    try:
        said = subprocess.run(SMI, capture_output=True, text=True, timeout=10, check=True).stdout
        return mean(float(line) for line in said.split())
    except (OSError, subprocess.SubprocessError, ValueError):  # no GPU, no answer, or not a number
        return None


@contextmanager
def timed(out: Path, workers: int, sample: Sample | None) -> Iterator[Callable[[], None]]:
    """Yield a function that counts a finished run; write the timing when the block ends, whatever ends it."""
    runs, began, started = 0, time.monotonic(), datetime.datetime.now(datetime.UTC)

    def count() -> None:
        nonlocal runs
        runs += 1

    with _watched(sample) as loads:
        try:
            yield count
        finally:
            seconds = time.monotonic() - began
            line: Timing = {
                "began": started.isoformat(timespec="seconds"),
                "runs": runs,
                "workers": workers,
                "seconds": round(seconds, 1),
                "runs_per_hour": round(3600 * runs / seconds, 1),
                "gpu_percent": round(mean(loads), 1) if loads else None,
            }
            out.mkdir(parents=True, exist_ok=True)
            with (out / FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


@contextmanager
def _watched(sample: Sample | None) -> Iterator[list[float]]:
    """Yield a list that a thread fills with samples until the block ends or sampling fails."""
    seen, over = list[float](), threading.Event()

    def look() -> None:
        while sample is not None and (value := sample()) is not None:
            seen.append(value)
            if over.wait(EVERY):
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def read_timings(folders: Sequence[Path]) -> list[Timing]:
    """Return the timings in all these folders, the earliest first."""
    found: list[Timing] = []
    for path in (folder / FILE for folder in folders):
        try:
            found += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except FileNotFoundError:
            continue
        except ValueError:
            raise PromptFedError(f"{path} is damaged; remove it, as the runs do not need it.") from None
    return sorted(found, key=lambda line: line["began"])
