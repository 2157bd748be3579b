"""Random changes: what each does to simple pictures, and that it is a function of its generator or its numbers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from promptfed.core.errors import PromptFedError
from promptfed.data import augment
from promptfed.data.augment import Augment


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


# -- in training ----------------------------------------------------------------------------------------------------

UNIT = (torch.full((3,), 1 / 255), torch.zeros(3))  # bytes become 0 … 1


def changed(kind: str, images: Tensor, *numbers: float) -> Tensor:
    draws = {f"augment.{kind}": torch.tensor([numbers]).expand(len(images), -1)}
    return Augment((kind,))(images, draws, *UNIT)


def ramp(side: int) -> Tensor:
    """Return an image whose pixel in row r and column c is (side · r + c) / side²."""
    return (torch.arange(side * side).view(1, 1, side, side) / side**2).repeat(1, 3, 1, 1)


def test_a_flip_mirrors_below_a_half() -> None:
    assert torch.equal(changed("flip", ramp(4), 0.4), ramp(4).flip(-1))
    assert torch.equal(changed("flip", ramp(4), 0.5), ramp(4))


def test_a_crop_moves_by_up_to_an_eighth_and_fills_with_black() -> None:
    # 8 pixels move by −1, 0 or 1: down from 0, not at all from 1/3, up from 2/3 on
    found = changed("crop", ramp(8), 0.99, 0.0)
    assert torch.equal(found[..., :-1, 1:], ramp(8)[..., 1:, :-1])
    assert not found[..., -1, :].any()
    assert not found[..., 0].any()
    assert torch.equal(changed("crop", ramp(8), 0.5, 0.5), ramp(8))


def test_a_resized_crop_of_everything_changes_nothing() -> None:
    # all of the area, and a square: ln ¾ + ½ (ln 4/3 − ln ¾) = 0
    torch.testing.assert_close(changed("resized-crop", ramp(4), 1.0, 0.5, 0.3, 0.7), ramp(4))


def test_a_resized_crop_takes_the_corner_its_numbers_say() -> None:
    # 0.08 + 0.92 u = ¼ of the area, from the upper left corner: the middle of four pixels becomes the middle of two
    found = changed("resized-crop", ramp(4), (0.25 - 0.08) / 0.92, 0.5, 0.0, 0.0)
    torch.testing.assert_close(found[..., 0, 0], ramp(4)[..., 0, 0])
    assert found.max() < ramp(4)[..., 2, 2].max()


def test_colours_stay_where_their_numbers_are_in_the_middle() -> None:
    torch.testing.assert_close(changed("color", ramp(4), 0.5, 0.5, 0.5), ramp(4))
    # only brighter, by 1.2; what would be above white is white
    torch.testing.assert_close(changed("color", ramp(4), 0.75, 0.5, 0.5), (1.2 * ramp(4)).clamp(max=1))


def test_words_of_changes() -> None:
    assert Augment.parse("none", "train.augment") is None
    assert Augment.parse("crop+flip", "train.augment") == Augment(("flip", "crop"))
    with pytest.raises(PromptFedError, match='"flop"; did you mean "flip"'):
        Augment.parse("crop+flop", "train.augment")
