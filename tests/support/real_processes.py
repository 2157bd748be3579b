"""Which real processes a test has had: one that is marked `real_processes` fails if there was none."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_started: list[Callable[[], bool]] = []


def note(at_work: Callable[[], bool] = lambda: False) -> None:
    """Note that a process was started, and how to know whether it is still at work."""
    _started.append(at_work)


@contextmanager
def required() -> Iterator[None]:
    """Fail if no real process was started in the meantime, nor was at work from before."""
    before, at_work = len(_started), any(one() for one in _started)
    yield
    assert at_work or len(_started) > before, "it is marked real_processes, and started none"
