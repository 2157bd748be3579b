"""Frames and patches: where every number lies."""

import math

import pytest
import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.prompts import pixels
from promptfed.core.tree import Tree

CIFAR = (3, 32, 32)


def dice(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("pad", "count"), [(1, 372), (2, 720), (4, 1_344), (16, 3_072)])
def test_numbers_of_a_frame(pad: int, count: int) -> None:
    # 2 · 3 · pad · (32 + 32 − 2 · pad)
    assert tree.floats(pixels.init_frame(CIFAR, pad, dice())) == 6 * pad * (64 - 2 * pad) == count


def test_a_frame_starts_standard_normal() -> None:
    start = torch.cat([part.flatten() for part in pixels.init_frame((3, 64, 64), 8, dice()).values()]).double()
    assert abs(start.mean()) < 5 / math.sqrt(len(start))
    assert abs(start.var() - 1) < 5 * math.sqrt(2 / len(start))


def sides(pad: int, height: int, width: int) -> Tree:
    """Return a frame of one channel: up 1, down 2, left 3, right 4."""
    return {
        "up": torch.full((1, pad, width), 1.0),
        "down": torch.full((1, pad, width), 2.0),
        "left": torch.full((1, height - 2 * pad, pad), 3.0),
        "right": torch.full((1, height - 2 * pad, pad), 4.0),
    }


def test_every_side_lies_where_it_should() -> None:
    assert pixels.frame(sides(1, 4, 5))[0].tolist() == [
        [1, 1, 1, 1, 1],
        [3, 0, 0, 0, 4],
        [3, 0, 0, 0, 4],
        [2, 2, 2, 2, 2],
    ]


def test_sides_are_not_turned_or_mirrored() -> None:
    parts = {name: torch.arange(float(part.numel())).view(part.shape) for name, part in sides(1, 4, 5).items()}
    assert pixels.frame(parts)[0].tolist() == [
        [0, 1, 2, 3, 4],
        [0, 0, 0, 0, 0],
        [1, 0, 0, 0, 1],
        [0, 1, 2, 3, 4],
    ]


@pytest.mark.parametrize(("pad", "inside"), [(2, 3 * 28 * 28), (4, 3 * 24 * 24), (16, 0)])
def test_a_frame_is_zero_inside_only(pad: int, inside: int) -> None:
    image = pixels.frame(pixels.init_frame(CIFAR, pad, dice()))
    assert image.shape == CIFAR
    assert (image == 0).sum() == inside
    assert (image[:, pad : 32 - pad, pad : 32 - pad] == 0).all()


def test_a_frame_may_surround_images_that_are_not_square() -> None:
    assert pixels.frame(pixels.init_frame((3, 10, 6), 3, dice())).shape == (3, 10, 6)


@pytest.mark.parametrize("pad", [0, -1, 17])
def test_a_frame_must_fit(pad: int) -> None:
    with pytest.raises(
        PromptFedError, match=rf"^A frame of {pad} pixels per side does not fit 32×32 images; 1 to 16 do\.$"
    ):
        pixels.init_frame(CIFAR, pad, dice())


def test_the_generator_decides() -> None:
    first, again, other = (pixels.init_frame(CIFAR, 2, dice(seed)) for seed in (0, 0, 1))
    assert all(first[name].equal(again[name]) for name in first)
    assert not any(first[name].equal(other[name]) for name in first)


def test_a_stack_of_frames_is_one_by_one() -> None:
    frames = [pixels.init_frame((3, 6, 5), 2, dice(seed)) for seed in range(3)]
    assert pixels.frame(tree.stack(frames)).equal(torch.stack([pixels.frame(one) for one in frames]))


# -- patches ------------------------------------------------------------------------------------------------------


def test_numbers_of_a_patch() -> None:
    assert pixels.init_patch(CIFAR, 5, dice())["patch"].shape == (3, 5, 5)
    assert pixels.init_patch(CIFAR, 32, dice())["patch"].shape == CIFAR


@pytest.mark.parametrize("size", [0, 33])
def test_a_patch_must_fit(size: int) -> None:
    with pytest.raises(PromptFedError, match=rf"^A patch of {size} pixels does not fit 32×32 images; 1 to 32 do\.$"):
        pixels.init_patch(CIFAR, size, dice())


def square() -> Tree:
    return {"patch": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])}


def test_a_fixed_patch_lies_top_left() -> None:
    assert pixels.fixed_patch(square(), (1, 3, 4))[0].tolist() == [[1, 2, 0, 0], [3, 4, 0, 0], [0, 0, 0, 0]]


def test_a_placed_patch_lies_where_it_was_drawn() -> None:
    # rows: 0.7 · (5 − 2) = 2.1 → 2; columns: 0.3 · (6 − 2) = 1.2 → 1
    image = pixels.placed_patch(square(), (1, 5, 6), torch.tensor([0.7, 0.3]))
    expected = torch.zeros(1, 5, 6)
    expected[:, 2:4, 1:3] = square()["patch"]
    assert image.equal(expected)


def test_a_placed_patch_at_zero_is_the_fixed_one() -> None:
    parts = pixels.init_patch(CIFAR, 5, dice())
    assert pixels.placed_patch(parts, CIFAR, torch.zeros(2)).equal(pixels.fixed_patch(parts, CIFAR))


def test_places_cover_all_but_the_last() -> None:
    where = torch.arange(0, 2**24, 2**10) / 2**24
    where = torch.cat([where, torch.tensor([1 - 2**-24])])
    parts = {"patch": torch.ones(len(where), 1, 3, 3)}
    images = pixels.placed_patch(parts, (1, 8, 10), torch.stack([where, where], -1))
    corners = [tuple(image[0].nonzero()[0].tolist()) for image in images]
    assert {row for row, _ in corners} == set(range(8 - 3))
    assert {column for _, column in corners} == set(range(10 - 3))
    assert (images.sum((-3, -2, -1)) == 9).all()


def test_a_patch_as_large_as_the_image_has_one_place() -> None:
    parts = pixels.init_patch((3, 4, 4), 4, dice())
    assert pixels.placed_patch(parts, (3, 4, 4), torch.tensor([0.99, 0.5])).equal(parts["patch"])


def test_a_stack_of_patches_is_one_by_one() -> None:
    shape = (3, 6, 7)
    parts = [pixels.init_patch(shape, 2, dice(seed)) for seed in range(3)]
    where = torch.rand(3, 2, generator=dice())
    stacked = tree.stack(parts)
    one_by_one = [pixels.placed_patch(own, shape, place) for own, place in zip(parts, where, strict=True)]
    assert pixels.placed_patch(stacked, shape, where).equal(torch.stack(one_by_one))
    assert pixels.fixed_patch(stacked, shape).equal(torch.stack([pixels.fixed_patch(own, shape) for own in parts]))


def test_a_gradient_reaches_the_patch_and_only_the_patch() -> None:
    patch = torch.zeros(1, 2, 2, requires_grad=True)
    image = pixels.placed_patch({"patch": patch}, (1, 5, 6), torch.tensor([0.7, 0.3]))
    pull = torch.arange(30.0).view(1, 5, 6)
    (found,) = torch.autograd.grad(image, patch, pull)
    assert found.equal(pull[:, 2:4, 1:3])
