"""What models expect and give away: the numbers, worked out by hand."""

import math

import numpy as np
import pytest
import torch

from promptfed.analysis.figures.opened import pure_colours
from promptfed.analysis.figures.priors import balanced, beyond_common, class_histogram, class_prior, correlated


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


def test_what_all_clients_have_in_common_is_taken_away() -> None:
    common = np.array([6.0, 0.0, 0.0])
    held = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    expected = common + held  # each expects its own class a little more, and the first one far more
    each, mean = correlated(expected, held)
    assert mean == pytest.approx((1.0 + 2 * -0.3592) / 3, abs=1e-3)
    assert each[0] == pytest.approx(1.0)
    apart, own = correlated(beyond_common(expected), beyond_common(held))
    assert apart == pytest.approx([1.0, 1.0, 1.0])
    assert own == pytest.approx(1.0)
    assert correlated(beyond_common(held[:1]), beyond_common(held[:1])) == ([None], None)
