"""Which images are shown, and how a map lies over them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from promptfed.analysis.figures.saliency import class_number, of_class, overlaid, scaled, spaced
from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset

NONE = np.zeros(0, np.int64)
CLOTHES = Dataset("clothes", np.zeros((0, 1, 1, 3), np.uint8), NONE, NONE > 0, ("coat", "bag", "boot"), NONE, ("shop",))


def test_images_are_evenly_spaced() -> None:
    assert spaced(np.arange(10), 4).tolist() == [0, 3, 6, 9]
    assert spaced(np.arange(8), 4).tolist() == [0, 2, 4, 6]
    assert spaced(np.arange(2), 4).tolist() == [0, 1]
    assert spaced(np.arange(0), 4).tolist() == []


def test_a_map_colours_from_blue_over_white_to_red() -> None:
    black, maps = np.zeros((1, 1, 3, 3)), np.array([[[0.0, 0.5, 1.0]]])
    assert overlaid(black, maps).tolist() == [[[[0, 0, 0.5], [0.5, 0.5, 0.5], [0.5, 0, 0]]]]
    assert overlaid(black + 1, maps).tolist() == [[[[0.5, 0.5, 1], [1, 1, 1], [1, 0.5, 0.5]]]]


def test_a_class_has_a_name_and_a_number() -> None:
    assert [class_number(CLOTHES, given) for given in ("coat", "boot", "0", "2")] == [0, 2, 0, 2]
    digits = replace(CLOTHES, classes=("2", "1", "0"))
    assert class_number(digits, "2") == 0, "a name goes before a number"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("bot", 'Unknown class "bot" in clothes; did you mean "boot"?'),
        ("", 'Unknown class "" in clothes; valid: bag, boot, coat.'),
        ("3", "There is no class 3 in clothes; it has classes 0 to 2."),
        ("-1", 'Unknown class "-1" in clothes; valid: bag, boot, coat.'),
    ],
)
def test_an_unknown_class_is_a_sentence(given: str, sentence: str) -> None:
    with pytest.raises(PromptFedError) as found:
        class_number(CLOTHES, given)
    assert str(found.value) == sentence


def test_images_of_one_class() -> None:
    labels = np.array([0, 1, 1, 0, 1])
    assert of_class(np.array([4, 0, 2, 3]), labels, 1).tolist() == [4, 2]
    assert of_class(np.array([0, 3]), labels, 1).tolist() == []


def test_a_map_is_kept_with_its_largest_value_one() -> None:
    assert scaled(torch.tensor([[0.0, 2.0], [6.0, 4.0]])) == [[0, 0.333], [1, 0.667]]
    assert scaled(torch.zeros(1, 2)) == [[0, 0]]
