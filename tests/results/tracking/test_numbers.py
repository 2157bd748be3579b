"""What leaves the machine, and what does not."""

from typing import Any

from promptfed.results.tracking import numbers

LINE: dict[str, Any] = {
    "round": 3,
    "clients": [0, 2],
    "loss": 0.5,
    "received": {"mean": 0.6, "weighted": 0.7, "worst": 0.4, "p10": float("nan"), "per_client": [0.5, 0.7]},
    "trained": None,
    "deployed": {"all": 0.3, "St Mary": 0.2, "City": 0.4},
    "measures": {"prompt_drift": 0.02, "flag": True},
    "privacy": {"epsilon": [1.0, 2.0], "delta": 1e-5},
    "sites": {"silent": ["St Mary"]},
    "versions": {"St Mary": 3},
    "traffic": {"down_floats": 1, "up_floats": 2, "down_bytes": 4, "up_bytes": 8},
    "images": 12,
    "seconds": 1.5,
}


def test_the_finite_numbers_of_a_round_leave() -> None:
    assert numbers.of_round(LINE, own=False) == {
        "participants": 2.0,
        "loss": 0.5,
        "images": 12.0,
        "seconds": 1.5,
        "received/mean": 0.6,
        "received/weighted": 0.7,
        "received/worst": 0.4,
        "deployed/all": 0.3,
        "deployed/St Mary": 0.2,
        "deployed/City": 0.4,
        "measures/prompt_drift": 0.02,
        "traffic/down_floats": 1.0,
        "traffic/up_floats": 2.0,
        "traffic/down_bytes": 4.0,
        "traffic/up_bytes": 8.0,
    }


def test_names_of_sites_and_of_own_domains_stay() -> None:
    found = numbers.of_round(LINE, own=True)
    assert (found["deployed/domain-0"], found["deployed/domain-1"]) == (0.2, 0.4)
    assert not [name for name in found if "Mary" in name or "City" in name]


def test_paths_in_a_recipe_stay() -> None:
    recipe = {
        "seed": 0,
        "method": {"name": "own_method:OwnFedPer", "lr": 0.1},
        "data": {"name": "folder:/home/ann/patients", "limit": 5},
        "partition": {"name": "file:split.json"},
        "backbone": {"name": "vit", "weights": "/models/vit", "layers": [1, 2]},
        "guards": {"weights": "facebook/dinov2-small", "windows": "C:\\patients"},
    }
    assert numbers.own_images(recipe)
    assert not numbers.own_images({"data": {"name": "cifar10"}})
    assert numbers.of_recipe(recipe) == {
        "seed": 0,
        "method.name": "own_method:OwnFedPer",
        "method.lr": 0.1,
        "data.name": "folder:…",
        "data.limit": 5,
        "partition.name": "file:…",
        "backbone.name": "vit",
        "backbone.weights": "…",
        "backbone.layers": [1, 2],
        "guards.weights": "facebook/dinov2-small",
        "guards.windows": "…",
    }


def test_the_end_has_the_accuracies_that_count() -> None:
    accuracy = {"mean": 0.9, "weighted": 0.8, "worst": 0.7, "p10": None, "round": 4, "after": {"mean": 0.95}}
    assert numbers.of_summary({"accuracy": accuracy}) == {
        "final/mean": 0.9,
        "final/weighted": 0.8,
        "final/worst": 0.7,
        "final/after": 0.95,
    }
    assert numbers.of_summary({"accuracy": accuracy | {"after": None}}).keys().isdisjoint({"final/after"})
