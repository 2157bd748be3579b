"""A site answers only what its coordinator has signed, and its audit log says to whom each answer went."""

from pathlib import Path

import pytest

from promptfed.sites.signed_requests import asker
from promptfed.sites.wire import Refused
from support.forged_requests import FORGED
from support.real_worker import name_coordinator
from support.three_sites import workers


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the home of a site whose coordinator is "localhost"."""
    worker = workers(tmp_path)["north"]
    name_coordinator(worker.home)
    return worker.home


@pytest.mark.parametrize("name", FORGED)
def test_what_the_coordinator_has_not_signed_is_refused(name: str, home: Path) -> None:
    head, sentence = FORGED[name]
    with pytest.raises(Refused, match=sentence):
        asker(home, head())
