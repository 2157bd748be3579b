"""Which real processes a test has had: one that is marked `real_processes` fails if there was none."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

REAL = ("promptfed", "nvflare")  # what is on the command line of a real process: our command, a worker, an engine
_started: list["subprocess.Popen[Any]"] = []


def note(process: "subprocess.Popen[Any]") -> None:
    """Note a real process that was started."""
    assert isinstance(process.args, list)
    assert any(word.startswith(REAL) for word in process.args), process.args
    _started.append(process)


@contextmanager
def required() -> Iterator[None]:
    """Fail if no real process was started in the meantime, nor was at work from before."""
    before, at_work = len(_started), any(one.poll() is None for one in _started)
    yield
    assert at_work or len(_started) > before, "it is marked real_processes, and started none"
