"""Summing up clients, by hand."""

import pytest

from promptfed.federation.evaluate import local_score, score


def test_by_hand() -> None:
    found = score([1, 6, 0], [2, 8, 10])
    # accuracies 0.5, 0.75, 0; 7 of 20 right; the 10th percentile lies a fifth of the way from 0 to 0.5
    assert found["per_client"] == [0.5, 0.75, 0.0]
    assert found["mean"] == pytest.approx(1.25 / 3)
    assert found["weighted"] == pytest.approx(0.35)
    assert found["worst"] == 0.0
    assert found["p10"] == pytest.approx(0.1)


def test_a_client_without_test_images_counts_nowhere() -> None:
    found = score([1, 0, 3], [2, 0, 4])
    assert found["per_client"] == [0.5, None, 0.75]
    assert found["mean"] == 0.625
    assert found["weighted"] == pytest.approx(4 / 6)
    assert found["worst"] == 0.5
    assert found["p10"] == pytest.approx(0.525)


def test_no_test_images_at_all() -> None:
    found = score([0, 0], [0, 0])
    assert found["per_client"] == [None, None]
    assert [found[name] for name in ("mean", "weighted", "worst", "p10")] == [None] * 4


def test_one_client() -> None:
    assert score([3], [4]) == {"mean": 0.75, "weighted": 0.75, "worst": 0.75, "p10": 0.75, "per_client": [0.75]}


def test_ten_clients_percentile() -> None:
    found = score(list(range(11)), [10] * 11)
    assert found["p10"] == pytest.approx(0.1)  # the second of eleven


def test_participants_as_trained_and_all_others_as_received() -> None:
    received = score([1, 6, 5, 0], [2, 8, 10, 0])
    trained = score([0, 8, 0, 0], [0, 8, 0, 0])  # only client 1 took part, and got all right
    found = local_score(trained, received, [2, 8, 10, 0])
    # 1 of 2, 8 of 8 and 5 of 10 right; client 3 has no test images
    assert found is not None
    assert found["weighted"] == pytest.approx(14 / 20)
    assert found["mean"] == pytest.approx(2 / 3)
    assert (found["worst"], set(found)) == (0.5, {"mean", "weighted", "worst", "p10"})


def test_no_local_score_without_the_round_before_or_with_other_clients() -> None:
    trained = score([1, 0], [2, 0])
    assert local_score(trained, None, [2, 2]) is None
    assert local_score(trained, score([1], [2]), [2, 2]) is None
