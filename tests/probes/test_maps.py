"""Which images are shown, and how a map lies over them."""

import numpy as np

from promptfed.probes.maps import overlaid, spaced


def test_images_are_evenly_spaced() -> None:
    assert spaced(np.arange(10), 4).tolist() == [0, 3, 6, 9]
    assert spaced(np.arange(8), 4).tolist() == [0, 2, 4, 6]
    assert spaced(np.arange(2), 4).tolist() == [0, 1]
    assert spaced(np.arange(0), 4).tolist() == []


def test_a_map_colours_from_blue_over_white_to_red() -> None:
    black, maps = np.zeros((1, 1, 3, 3)), np.array([[[0.0, 0.5, 1.0]]])
    assert overlaid(black, maps).tolist() == [[[[0, 0, 0.5], [0.5, 0.5, 0.5], [0.5, 0, 0]]]]
    assert overlaid(black + 1, maps).tolist() == [[[[0.5, 0.5, 1], [1, 1, 1], [1, 0.5, 0.5]]]]
