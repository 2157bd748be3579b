"""From answers to the summary's measures: clients, the worst one, all images, and intervals."""

from pathlib import Path

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.results.folder import names, predictions
from promptfed.results.folder.metrics import parse_metrics
from promptfed.results.folder.predictions import Predictions, fits, read_predictions, write_predictions
from promptfed.results.metrics import METRICS, resampling
from promptfed.results.metrics.measures import client_rows, confusion, measure
from promptfed.results.metrics.resampling import interval, resamples


def answers(*clients: tuple[list[int], list[int]], classes: int = 2, sure: float = 0.75) -> Predictions:
    """Return clients that have these labels and were answered so, always with the same confidence."""
    label = np.concatenate([np.array(one[0], int) for one in clients])
    predicted = np.concatenate([np.array(one[1], int) for one in clients])
    whose = np.repeat(np.arange(len(clients)), [len(one[0]) for one in clients])
    shares = np.full((len(label), classes), (1 - sure) / (classes - 1))
    shares[np.arange(len(label)), predicted] = sure
    confidence = np.full(len(label), sure)
    return Predictions(len(clients), classes, whose, np.arange(len(label)), label, predicted, confidence, shares)


MIXED = answers(([0, 0, 0, 1], [0, 0, 0, 0]), ([], []), ([1, 1], [1, 0]), ([0, 1], [0, 1]))


def test_clients_by_hand() -> None:
    found = measure(MIXED, 0, "balanced_accuracy")
    assert found["accuracy"]["per_client"] == [0.75, None, 0.5, 1.0]
    assert found["accuracy"]["mean"] == 0.75
    assert found["accuracy"]["pooled"] == 0.75
    assert found["balanced_accuracy"]["per_client"] == [0.5, None, 0.5, 1.0]
    assert found["balanced_accuracy"]["pooled"] == 0.75  # all of class 0, half of class 1
    assert found["worst_client"] == 0  # of equals the first
    assert found["recall"]["pooled"] == [1.0, 0.5]
    assert found["recall"]["worst"] == [1.0, 0.0]
    assert found["recall"]["per_client"] == [[1.0, 0.0], [None, None], [None, 0.5], [1.0, 1.0]]
    assert found["confusion"] == {"pooled": [[4, 0], [2, 2]], "worst": [[3, 0], [1, 0]]}
    bins = found["reliability"]
    assert bins["pooled"]["images"] == [0] * 11 + [8] + [0] * 3  # 0.75 is in the twelfth bin
    assert bins["pooled"]["accuracy"][11] == 0.75
    assert bins["worst"]["images"][11] == 4
    assert bins["worst"]["confidence"][:2] == [None, None]


def test_undefined_is_none_and_not_zero() -> None:
    found = measure(MIXED, 0, "auroc")
    assert found["auroc"]["per_client"] == [0.5, None, None, 1.0]  # the third has one class only
    assert found["auroc"]["mean"] == 0.75
    assert found["auroc"]["per_client_intervals"][2] is None


def test_the_worst_client_has_the_highest_calibration_error() -> None:
    found = measure(MIXED, 0, "ece")
    assert found["ece"]["per_client"] == [0.0, None, 0.25, 0.25]
    assert (found["ece"]["worst"], found["worst_client"]) == (0.25, 2)
    assert found["accuracy"]["worst_client"] == 2


def test_without_probabilities_there_is_no_auroc() -> None:
    bare = Predictions(**(vars(MIXED) | {"probabilities": None}))
    found = measure(bare, 0, "auroc")
    assert found["auroc"]["per_client"] == [None] * 4
    assert [found["auroc"][key] for key in ("pooled", "mean", "worst", "worst_client", "mean_interval")] == [None] * 5
    assert found["worst_client"] is None
    assert found["confusion"]["worst"] is None
    assert found["accuracy"] == measure(MIXED, 0, "auroc")["accuracy"]


def test_perfect_answers_leave_no_doubt() -> None:
    found = measure(answers(([0, 1] * 5, [0, 1] * 5)), 0, "accuracy")
    for metric in ("accuracy", "balanced_accuracy", "macro_f1", "auroc"):
        assert found[metric]["pooled_interval"] == [1.0, 1.0]


def test_the_interval_is_that_of_a_binomial() -> None:
    """300 of 400 right: the standard error is 2.17 points, so the middle 95 % reaches 4.24 points to each side."""
    found = measure(answers(([0] * 400, [0] * 300 + [1] * 100)), 0, "accuracy")
    low, high = found["accuracy"]["pooled_interval"]
    assert low == pytest.approx(0.75 - 0.0424, abs=0.006)
    assert high == pytest.approx(0.75 + 0.0424, abs=0.006)


def test_the_interval_of_the_auroc_is_that_of_whole_resamples() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(2)
    label = np.repeat([0, 1], [90, 30])
    score = 1 / (1 + np.exp(-rng.normal(label, 1)))
    shares = np.stack([1 - score, score], 1)
    found = Predictions(1, 2, np.zeros(120, int), np.arange(120), label, shares.argmax(1), shares.max(1), shares)
    exact = [
        roc_auc_score(label, score, sample_weight=row)
        for _, weights in resamples(120, 0, 0)
        for row in weights[:250]
        if row[label == 1].any()
    ]
    low, high = measure(found, 0, "auroc")["auroc"]["pooled_interval"]
    assert [low, high] == pytest.approx(interval(np.array(exact)), abs=0.025)


def test_resamples_are_keyed_and_whole() -> None:
    first, again, other = (
        np.concatenate([weights for _, weights in resamples(7, seed, client)])
        for seed, client in ((3, 1), (3, 1), (3, 2))
    )
    assert first.shape == (resampling.RESAMPLES, 7)
    assert (first.sum(1) == 7).all()
    assert (first == again).all()
    assert (first != other).any()


def test_resamples_come_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resampling, "ROOM", 2100)
    blocks = [(rows, weights.shape) for rows, weights in resamples(7, 0, 0)]
    assert blocks[0] == (slice(0, 300), (300, 7))
    assert blocks[-1] == (slice(900, 1000), (100, 7))


def test_an_interval_of_nothing() -> None:
    assert interval(np.array([np.nan, np.nan])) is None
    assert interval(np.array([np.nan, 2.0])) == [2.0, 2.0]


def test_many_classes_have_no_matrix() -> None:
    assert measure(answers(([0, 200], [0, 200]), classes=201), 0, "accuracy")["confusion"] is None


def test_rows_of_clients() -> None:
    assert [rows.tolist() for rows in client_rows(MIXED)] == [[0, 1, 2, 3], [], [4, 5], [6, 7]]
    assert confusion(MIXED, 1).tolist() == [[0, 0], [0, 0]]


def test_the_file_holds_what_was_written(tmp_path: Path) -> None:
    assert read_predictions(tmp_path) is None
    write_predictions(tmp_path, MIXED)
    first = (tmp_path / names.PREDICTIONS).read_bytes()
    found = read_predictions(tmp_path)
    assert found is not None
    assert measure(found, 0, "accuracy") == measure(MIXED, 0, "accuracy")
    write_predictions(tmp_path, found)
    assert (tmp_path / names.PREDICTIONS).read_bytes() == first


def test_a_file_without_probabilities(tmp_path: Path) -> None:
    write_predictions(tmp_path, Predictions(**(vars(MIXED) | {"probabilities": None})))
    found = read_predictions(tmp_path)
    assert found is not None
    assert found.probabilities is None


def test_a_damaged_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / names.PREDICTIONS).write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(PromptFedError, match=r"predictions\.npz is damaged"):
        read_predictions(tmp_path)


def test_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fits(83_886, 100)
    assert not fits(83_887, 100)
    monkeypatch.setattr(predictions, "MOST_NUMBERS", 10)
    assert fits(5, 2)


def test_reading_gives_what_was_measured() -> None:
    found = parse_metrics(measure(MIXED, 0, "macro_f1"))
    assert found is not None
    assert found.headline == "macro_f1"
    assert list(found.scores) == list(METRICS)
    assert found.scores["accuracy"].per_client == (0.75, None, 0.5, 1.0)
    assert found.confusion == ((4, 0), (2, 2))
    assert [(one.images, one.accuracy) for one in found.reliability] == [(8, 0.75)]
    assert parse_metrics(None) is None
