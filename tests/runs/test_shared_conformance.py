"""Every method, in every variant, gives in several processes the very numbers of one."""

from pathlib import Path

import pytest
from test_conformance import VARIANTS

from promptfed.runs.checks import toy_loop
from support.ranked import Case, differences


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_one_by_one(size: int, tmp_path: Path) -> None:
    cases: dict[str, Case] = {name: (toy_loop, method, {}) for name, method in VARIANTS.items()}
    assert {name: what for name, what in differences(size, cases, tmp_path).items() if what} == {}


@pytest.mark.slow
@pytest.mark.parametrize("per_round", [0, 4])
def test_stacks_that_stay_together(per_round: int, tmp_path: Path) -> None:
    more = {"fleet": "stacked", "width": 2, "per_round": per_round}
    cases: dict[str, Case] = {name: (toy_loop, method, more) for name, method in VARIANTS.items()}
    # the stacks in which clients are tested are others, so the last digits of a loss may differ
    assert {name: what for name, what in differences(2, cases, tmp_path, exact=False).items() if what} == {}
