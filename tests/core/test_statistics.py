"""Numbers that compare rows: small ones worked out by hand."""

import math
import random
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptfed.core import statistics


def test_label_distance_is_half_the_sum_of_differences() -> None:
    counts = np.array([[5.0, 3, 2], [2, 3, 5], [0, 0, 7]])
    assert statistics.label_distances(counts) == pytest.approx(
        np.array([[0, 0.3, 0.8], [0.3, 0, 0.5], [0.8, 0.5, 0]])
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ([1, 2, 3], [10, 100, 1000], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
        ([0, 5, 5, 9], [1, 2, 3, 4], 4.5 / math.sqrt(4.5 * 5)),
        # Ranks 1, 2, 3, 4 against 2, 1, 3, 4: 1 - 6 * 2 / (4 * 15).
        ([1, 2, 3, 4], [2, 1, 3, 4], 0.8),
        # Equal values share the rank 1.5: (-1, 0, 1) against (-1/2, -1/2, 1).
        ([1, 2, 3], [5, 5, 6], 1.5 / math.sqrt(2 * 1.5)),
        ([1, 2, 3], [7, 7, 7 + 1e-12], None),
        ([1, 1, 1], [1, 2, 3], None),
        ([1], [2], None),
    ],
)
def test_rank_correlation(first: list[float], second: list[float], found: float | None) -> None:
    correlation = statistics.rank_correlation(np.array(first, float), np.array(second, float))
    assert correlation == (None if found is None else pytest.approx(found))


@given(st.lists(st.integers(-5, 5), min_size=3, max_size=9), st.randoms(use_true_random=False))
def test_rank_correlation_sees_nothing_but_order(values: list[int], shuffle: random.Random) -> None:
    one, other = np.array(values, float), np.array(shuffle.sample(values, len(values)), float)
    found = statistics.rank_correlation(one, other)
    assert found == statistics.rank_correlation(np.exp(one), 7 * other + 1)
    assert found is None or -1 <= found <= 1


def test_principal_components() -> None:
    corners = np.array([[3.0, 1, 0], [3, -1, 0], [-3, 1, 0], [-3, -1, 0]])
    points, explained = statistics.principal_components(corners)
    assert explained == [0.9, 0.1]
    assert np.abs(points) == pytest.approx(np.array([[3, 1]] * 4))


def test_shares_sum_to_one() -> None:
    assert statistics.shares(np.array([[1, 3], [0, 0]])).tolist() == [[0.25, 0.75], [0, 0]]


def test_cosines_row_by_row() -> None:
    first, second = np.array([[3.0, 4], [1, 0], [0, 0]]), np.array([[6.0, 8], [0, 2], [1, 1]])
    assert statistics.row_cosines(first, second).tolist() == pytest.approx([1, 0, 0])


def test_correlations_row_by_row() -> None:
    first, second = np.array([[1.0, 2, 3], [1, 2, 3], [1, 1, 1]]), np.array([[2.0, 4, 6], [3, 2, 1], [1, 2, 3]])
    *known, none = statistics.row_correlations(first, second)
    assert known == pytest.approx([1, -1])
    assert none is None


def test_neighbours_of_the_same_group() -> None:
    line = np.array([[0.0], [1], [10], [11], [5.4]])
    assert statistics.same_neighbours(line, np.array([0, 0, 1, 1, 1])) == 0.8, "the last one is nearest to a 0"
    assert statistics.same_neighbours(line, np.array([0, 0, 1, 1, 0])) == 1
    assert statistics.same_neighbours(line[:2], np.array([0, 1])) == 0


def test_a_silhouette_by_hand() -> None:
    pytest.importorskip("sklearn.metrics")
    # of 0 and 11 the others are 1 and on the mean 10.5 away, of 1 and 10 they are 1 and 9.5 away
    line = np.array([[0.0], [1], [10], [11]])
    assert statistics.silhouette(line, np.array([0, 0, 1, 1])) == pytest.approx((2 - 1 / 10.5 - 1 / 9.5) / 2)
    # mixed up, the own group is farther than the other: of 0 it is 10 against 6, of 1 10 against 5
    assert statistics.silhouette(line, np.array([0, 1, 0, 1])) == pytest.approx((6 / 10 + 5 / 10) / 2 - 1)


def test_where_there_is_no_silhouette(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn.metrics")
    line = np.array([[0.0], [1], [10]])
    assert statistics.silhouette(line, np.zeros(3)) is None, "one group"
    assert statistics.silhouette(line, np.arange(3)) is None, "no two of a group"
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    assert statistics.silhouette(line, np.array([0, 0, 1])) is None
