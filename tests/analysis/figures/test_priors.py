"""What models expect and give away: the numbers, worked out by hand."""

import math

import numpy as np
import pytest
import torch

from promptfed.analysis.figures.opened import pure_colours
from promptfed.analysis.figures.priors import balanced, class_histogram, class_prior


def test_a_prior_is_the_mean_probability() -> None:
    logits = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]])
    assert class_prior(logits).tolist() == pytest.approx([(0.25 + 0.5) / 2, (0.75 + 0.5) / 2])


def test_a_histogram_counts_decisions() -> None:
    logits = torch.tensor([[3.0, 0, 0], [2, 1, 0], [0, 0, 1], [5, 0, 0]])
    assert class_histogram(logits).tolist() == [0.75, 0, 0.25]


def test_a_balanced_set_has_as_many_of_each_class() -> None:
    labels = np.array([0, 1, 0, 0, 1, 2, 2, 0])
    rows = np.arange(8)
    assert balanced(labels, rows, 9).tolist() == [0, 1, 2, 4, 5, 6]
    assert balanced(labels, rows, 1).tolist() == [0, 1, 5]
    assert balanced(labels, rows[:5], 9).tolist() == [0, 1, 2, 4], "a class without images is not there"
    assert balanced(labels, rows[:0], 9).tolist() == []


def test_pure_colours_are_pure_different_and_always_the_same() -> None:
    images = pure_colours(50, 3, 4)
    assert images.shape == (50, 3, 4, 3)
    assert images.dtype == np.uint8
    assert (images == images[:, :1, :1]).all()
    assert len(np.unique(images[:, 0, 0], axis=0)) == 50
    assert (images == pure_colours(50, 3, 4)).all()
