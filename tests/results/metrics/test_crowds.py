"""The measures of very many clients against those taken client by client."""

import numpy as np
import pytest

from promptfed.results.folder.predictions import Predictions
from promptfed.results.metrics import METRICS, measures
from promptfed.results.metrics.crowds import measure_crowd


def answered(clients: int, *, probabilities: bool = True) -> Predictions:
    """Return made-up answers with ties, classes that some clients lack, and clients without images."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(0, 9, clients)
    whose, count = np.repeat(np.arange(clients), sizes), int(sizes.sum())
    label = rng.integers(0, 3, count)
    shares = rng.dirichlet(np.ones(3), count).round(1)
    shares[:, 2] = 1 - shares[:, 0] - shares[:, 1]
    predicted = shares.argmax(1)
    confidence = shares.max(1)
    return Predictions(
        clients, 3, whose, np.arange(count), label, predicted, confidence, shares if probabilities else None
    )


@pytest.mark.parametrize("probabilities", [True, False])
def test_a_crowd_is_measured_as_its_clients_one_by_one(monkeypatch: pytest.MonkeyPatch, probabilities: bool) -> None:
    found = answered(100, probabilities=probabilities)
    one_by_one = measures.measure(found, 0, "balanced_accuracy")
    monkeypatch.setattr(measures, "MANY", 99)
    together = measures.measure(found, 0, "balanced_accuracy")
    for metric in METRICS:
        mine, theirs = together[metric], one_by_one[metric]
        assert [value is None for value in mine["per_client"]] == [value is None for value in theirs["per_client"]]
        known = [(a, b) for a, b in zip(mine["per_client"], theirs["per_client"], strict=True) if a is not None]
        assert all(a == pytest.approx(b, abs=2e-6) for a, b in known)
        for key in ("pooled", "mean", "worst"):
            assert mine[key] == (None if theirs[key] is None else pytest.approx(theirs[key], abs=2e-6)), (metric, key)
        for key in ("pooled_interval", "mean_interval"):  # other draws of the same bootstrap
            assert mine[key] == (None if theirs[key] is None else pytest.approx(theirs[key], abs=0.02)), (metric, key)
        assert mine["worst_client"] == theirs["worst_client"]
        assert mine["per_client_intervals"] is None
    for key in ("confusion", "worst_client", "images"):
        assert together[key] == one_by_one[key]
    for key in ("images", "accuracy"):
        assert together["reliability"]["pooled"][key] == one_by_one["reliability"]["pooled"][key]
    assert together["reliability"]["worst"] == one_by_one["reliability"]["worst"]
    assert together["recall"]["pooled"] == one_by_one["recall"]["pooled"]
    assert together["resamples"] == 200


def test_a_resample_has_as_many_images_of_every_client() -> None:
    found = answered(50)
    _, drawn, scores = measure_crowd(found, 1)
    assert drawn.count.sum(1).tolist() == [len(found)] * 200
    assert scores["accuracy"]["mean_interval"] != measure_crowd(found, 2)[2]["accuracy"]["mean_interval"]
    assert scores["accuracy"]["mean_interval"] == measure_crowd(found, 1)[2]["accuracy"]["mean_interval"]
