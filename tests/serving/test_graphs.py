"""Recorded batches: their sizes everywhere, and their answers where there is a GPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

from promptfed.serving import mixed
from promptfed.serving.graphs import Recorded, recorded_size
from promptfed.serving.opened import open_served
from support.tiny_server import tiny_bundle

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_batches_are_filled_up_to_few_sizes() -> None:
    assert [recorded_size(count, 48) for count in (1, 2, 3, 5, 31, 33, 48)] == [1, 2, 4, 8, 32, 48, 48]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_recorded_batches_answer_as_others_do(tmp_path: Path, device: str) -> None:
    served, recorded = open_served(tiny_bundle(tmp_path), device), Recorded(4)
    draw = np.random.default_rng(0)
    for rows in ([2, 0, 3], [1], [3, 1, 1], [0, 1, 2, 3], [0, 1, 2, 3, 0]):
        images = draw.integers(0, 256, (len(rows), *served.about.shape, 3), np.uint8)
        torch.testing.assert_close(recorded(served, rows, images), mixed.answer(served, rows, images))
    assert sorted(recorded.graphs.get(served, {})) == ([1, 4] if device == "cuda" else [])
