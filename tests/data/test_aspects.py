"""The partition by aspects: one look of a thing for each client."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.core.errors import PromptFedError
from promptfed.data.aspects import Aspects, clusters, colours
from promptfed.data.partition import make_partition
from support.datasets import coloured


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_colours_by_hand() -> None:
    image = np.zeros((1, 3, 4, 3), np.uint8)
    image[0, 0, :2] = 255  # white, upper left: its part is the first of rows 0 | 1, 2 and of columns 0, 1 | 2, 3
    image[0, 1:, 2:, 1] = 51
    found = colours(image, 2).reshape(2, 2, 3)
    assert found.tolist() == [[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0], [0.0, 0.2, 0.0]]]


def test_each_client_has_one_look() -> None:
    shades = [10, 12, 100, 102, 200, 202] * 4
    data = coloured(shades, [n >= 18 for n in range(24)])
    found = Aspects().split(data, 3, seeded())
    looks = [{shades[image] // 50 for image in own} for own in found.train]
    assert sorted(map(sorted, looks)) == [[0], [2], [4]]
    assert [{shades[image] // 50 for image in own} for own in found.test] == looks
    assert found == Aspects().split(data, 3, seeded())


@settings(max_examples=30, deadline=None)
@given(
    shades=st.lists(st.integers(0, 255), min_size=6, max_size=20),
    clients=st.integers(1, 5),
    cells=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_every_image_goes_to_one_client_and_nobody_has_none(
    shades: list[int], clients: int, cells: int, seed: int
) -> None:
    data = coloured(shades, [n >= 5 and n % 3 == 0 for n in range(len(shades))])
    found = Aspects(cells).split(data, clients, seeded(seed))
    assert sorted(np.concatenate(found.train).tolist()) == np.flatnonzero(~data.test).tolist()
    assert sorted(np.concatenate(found.test).tolist()) == np.flatnonzero(data.test).tolist()
    assert min(len(own) for own in found.train) >= 1


def test_images_that_look_the_same_still_serve_everyone() -> None:
    owner, _ = clusters(np.zeros((5, 3)), 4, seed=0)
    assert sorted(np.bincount(owner, minlength=4).tolist()) == [1, 1, 1, 2]


def test_bad_cells_and_a_missing_library_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    data = coloured([1, 2, 3], [False] * 3)
    with pytest.raises(PromptFedError, match=r"partition\.cells = 5 but the images have 4 × 4 pixels"):
        Aspects(5).split(data, 2, seeded())
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(PromptFedError, match=r'pip install "promptfed\[analysis\]"'):
        Aspects().split(data, 2, seeded())


def test_left_out_images_are_not_clustered() -> None:
    data = replace(coloured([0, 0, 250, 250, 120], [False] * 5), used=np.array([True] * 4 + [False]))
    found = make_partition("aspects", {}, data, 2, seed=0)
    assert sorted(own.tolist() for own in found.train) == [[0, 1], [2, 3]]
