"""Fake run folders for the tests of what reads them; and a test that is marked `real_processes` is held to it."""

from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path

import pytest

from support.fake_runs import run_maker
from support.real_processes import required
from support.reports import MakeRun


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return `make(name, **changes) -> Path`, which writes a run folder under the test's own folder."""
    return run_maker(tmp_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that says that it runs over real processes, and started none."""
    with required() if item.get_closest_marker("real_processes") else nullcontext():
        yield
