"""Random views: what each change does to simple pictures, and that a view is a function of its generator."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from promptfed.data import augment


def pictures(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**31))
def test_a_view_is_a_picture_and_a_function_of_its_generator(seed: int) -> None:
    x = pictures(5)
    first, again = (augment.augmented(x, torch.Generator().manual_seed(seed)) for _ in range(2))
    assert first.shape == x.shape
    assert first.equal(again)
    assert first.min() >= 0
    assert first.max() <= 1


def test_views_differ_from_each_other_and_from_the_picture() -> None:
    x, draw = pictures(32), torch.Generator().manual_seed(0)
    one, two = augment.augmented(x, draw), augment.augmented(x, draw)
    assert not one.equal(two)
    assert ((one - x).abs().amax((1, 2, 3)) > 0.01).float().mean() > 0.8


def test_turning_the_hue_by_a_third_passes_the_colours_on() -> None:
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    third = torch.tensor(1 / 3).view(1, 1, 1, 1)
    torch.testing.assert_close(augment._turned(red, third).flatten(), torch.tensor([0.0, 1.0, 0.0]), rtol=0, atol=1e-6)
    grey = torch.full((1, 3, 1, 1), 0.4)
    torch.testing.assert_close(augment._turned(grey, third), grey, rtol=0, atol=1e-6)


def test_a_blur_spreads_a_dot_by_the_gaussian() -> None:
    dot = torch.zeros(1, 1, 5, 5)
    dot[..., 2, 2] = 1
    blurred = augment._blurred(dot, torch.ones(1, 1, 1, 1))[0, 0]
    side = 0.6065306597  # e^(-1/2)
    middle = 1 / (1 + 2 * side)
    assert abs(float(blurred[2, 2]) - middle**2) < 1e-6
    assert abs(float(blurred[1, 2]) - middle**2 * side) < 1e-6
    assert abs(float(blurred[1, 1]) - middle**2 * side**2) < 1e-6
    assert abs(float(blurred.sum()) - 1) < 1e-6
