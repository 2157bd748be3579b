"""Fake run folders for the tests of what reads them."""

from pathlib import Path

import pytest

from support.fake_runs import run_maker
from support.reports import MakeRun


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return `make(name, **changes) -> Path`, which writes a run folder under the test's own folder."""
    return run_maker(tmp_path)
