"""Images at another size."""

import torch
import torch.nn.functional as F  # noqa: N812

from promptfed.backbones.resizing import resized


def test_images_of_the_right_size_are_left_alone() -> None:
    x = torch.rand(2, 3, 4, 6)
    assert resized(x, (4, 6)) is x


def test_any_leading_dimensions_and_both_sides() -> None:
    x = torch.rand(2, 5, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    larger = resized(x, (8, 9))
    assert larger.shape == (2, 5, 3, 8, 9)
    torch.testing.assert_close(larger[1, 4], F.interpolate(x[1, 4:], (8, 9), mode="bicubic")[0])


def test_one_colour_stays_that_colour() -> None:
    flat = torch.full((1, 3, 40, 40), 0.25)
    for side in (16, 64):
        torch.testing.assert_close(resized(flat, (side, side)), torch.full((1, 3, side, side), 0.25))


def test_what_is_shrunk_is_smoothed_on_either_side() -> None:
    stripes = (torch.arange(40) % 2).float().expand(1, 3, 40, 40)  # every fifth pixel alone makes stripes again
    assert F.interpolate(stripes, (8, 8), mode="bicubic")[0, 0, 0].tolist() == [0, 1] * 4
    for sides in ((8, 8), (40, 8), (80, 8)):
        assert (resized(stripes, sides) - 0.5).abs().max() < 0.05
