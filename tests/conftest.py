"""A test that is marked `real_processes` is held to it."""

from collections.abc import Generator
from contextlib import nullcontext

import pytest

from support.real_processes import required


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that says that it runs over real processes, and started none."""
    with required() if item.get_closest_marker("real_processes") else nullcontext():
        yield
