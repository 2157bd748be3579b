"""The measures, by hand and beside scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score, recall_score, roc_auc_score

from promptfed.results.folder.predictions import Predictions
from promptfed.results.metrics.measures import confusion
from promptfed.results.metrics.ranking import auroc
from promptfed.results.metrics.tallies import (
    Tallies,
    accuracy,
    balanced_accuracy,
    calibration_error,
    find_bins,
    macro_f1,
    recalls,
    tally,
)

Numbers = np.ndarray


def count(label: Numbers, predicted: Numbers, confidence: Numbers | None = None, classes: int = 3) -> Tallies:
    sure = np.ones(len(label)) if confidence is None else confidence
    return tally(label, predicted, sure, np.ones((1, len(label)), np.float32), np.arange(classes))


def random_answers(images: int = 400, classes: int = 5, seed: int = 0) -> tuple[Numbers, Numbers, Numbers]:
    rng = np.random.default_rng(seed)
    label = rng.choice(classes, images, p=np.arange(1, classes + 1) / sum(range(classes + 1)))
    logits = rng.normal(size=(images, classes)) + np.eye(classes)[label]
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return label, shares.argmax(1), shares


def test_by_hand() -> None:
    # class 0: three of four recalled; class 1: none of one; class 2 has no images, but is answered once
    found = count(np.array([0, 0, 0, 0, 1]), np.array([0, 0, 0, 2, 0]))
    assert recalls(found)[0, :2].tolist() == [0.75, 0.0]
    assert math.isnan(recalls(found)[0, 2])
    assert accuracy(found).tolist() == [0.6]
    assert balanced_accuracy(found).tolist() == [0.375]
    assert macro_f1(found)[0] == pytest.approx((2 * 3 / (4 + 4) + 0 + 0) / 3)


def test_always_the_frequent_class_is_accurate_and_useless() -> None:
    found = count(np.array([0] * 95 + [1] * 5), np.zeros(100, int), classes=2)
    assert accuracy(found).tolist() == [0.95]
    assert balanced_accuracy(found).tolist() == [0.5]
    assert macro_f1(found)[0] == pytest.approx((190 / 195) / 2)


def test_calibration_by_hand() -> None:
    # two answers of confidence 0.9, one right; two of 0.65, both right
    right = np.array([0, 0, 0, 0])
    found = count(right, np.array([0, 1, 0, 0]), np.array([0.9, 0.9, 0.65, 0.65]))
    assert calibration_error(found)[0] == pytest.approx((abs(1.8 - 1) + abs(1.3 - 2)) / 4)


def test_a_bin_holds_its_upper_edge() -> None:
    assert find_bins(np.array([0.0, 1e-9, 0.2, 0.2000001, 1.0])).tolist() == [0, 0, 2, 3, 14]


def test_weights_count_images_more_often() -> None:
    label, predicted = np.array([0, 0, 1]), np.array([0, 1, 1])
    weights = np.array([[2, 0, 1], [0, 3, 0]], np.float32)
    found = tally(label, predicted, np.ones(3), weights, np.arange(2))
    assert accuracy(found).tolist() == [1.0, 0.0]
    assert balanced_accuracy(found).tolist() == [1.0, 0.0]  # in the second row, class 1 has no image
    assert found.held.tolist() == [[2, 1], [3, 0]]


def test_equals_scikit_learn() -> None:
    label, predicted, shares = random_answers()
    found = count(label, predicted, shares.max(1), 5)
    assert recalls(found)[0] == pytest.approx(recall_score(label, predicted, average=None))
    assert balanced_accuracy(found)[0] == pytest.approx(balanced_accuracy_score(label, predicted))
    assert macro_f1(found)[0] == pytest.approx(f1_score(label, predicted, average="macro"))
    ranked = auroc(label, shares)
    assert ranked is not None
    assert ranked[0] == pytest.approx(roc_auc_score(label, shares, multi_class="ovr", average="macro"))
    whose = Predictions(1, 5, np.zeros(400, int), np.arange(400), label, predicted, shares.max(1), shares)
    assert (confusion(whose) == confusion_matrix(label, predicted)).all()


def test_two_classes_have_one_auroc() -> None:
    rng = np.random.default_rng(1)
    label, score = rng.integers(0, 2, 60), np.round(rng.random(60), 1)  # with ties
    found = auroc(label, np.stack([1 - score, score], 1))
    assert found is not None
    assert found[0] == pytest.approx(roc_auc_score(label, score))


def test_auroc_by_hand() -> None:
    # positives 0.8 and 0.4 against negatives 0.4 and 0.1: 1, 1, a tie, 1 of four pairs
    score = np.array([0.8, 0.4, 0.4, 0.1])
    found = auroc(np.array([1, 1, 0, 0]), np.stack([1 - score, score], 1))
    assert found is not None
    assert found[0] == 0.875
    assert found[1].sum() == pytest.approx(0)


def test_one_class_has_no_auroc() -> None:
    assert auroc(np.array([1, 1]), np.array([[0.2, 0.8], [0.4, 0.6]])) is None


def test_derivatives_of_the_auroc() -> None:
    """One image counted slightly more moves the AUROC as its derivative says."""
    label, _, shares = random_answers(40, 3)
    found = auroc(label, shares)
    assert found is not None
    more = np.ones(40)
    more[7] += 1e-6
    each = [roc_auc_score(label == k, shares[:, k], sample_weight=more) for k in range(3)]
    assert (np.mean(each) - found[0]) / 1e-6 == pytest.approx(found[1][7], rel=1e-3)
