"""A coordinator that asks for many tests, of models of its own choice, gets nothing it could read images from."""

import json
from pathlib import Path

import pytest
import torch

from promptfed.sites import coordinator
from promptfed.sites.disclosure import coarse
from support.curious import Prober
from support.faults import ignore
from support.three_sites import begin, exchange, furthest, lines, recipe

MANY = 192  # one for each of the pixels that a tiny linear model once gave away
STRICT = "[guards]\nclip = 1.0\nnoise = 4.0\nbudget = 8.0\nsecure = true\n"
NOISY = ("guards.clip=1", "guards.noise=4", "guards.budget=8", "guards.entropy=system")
SMALL = "min_test = 1\n"  # the sites of these tests have two to four test images
COUNTS = {"tested.correct", "tested.count"}


def test_with_noise_no_test_result_leaves_at_all(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg", *NOISY, "guards.secure=true"), SMALL + STRICT)
    assert [prober.evaluate(seed, number=seed % 4) for seed in range(MANY)] == [{}] * MANY
    assert [prober.fit(seed, keep=False).tree for seed in range(MANY)] == [{}] * MANY


def test_noisy_answers_carry_neither_test_results_nor_measures(tmp_path: Path) -> None:
    answer = Prober(tmp_path, recipe("pfedpt", *NOISY), SMALL).fit(0)
    assert {name.partition(".")[0] for name in answer.tree} == {"up", "weight"}


def test_without_noise_a_round_has_one_test_and_it_only_counts(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg"), SMALL)
    results = [prober.evaluate(seed, number=number) for number in range(4) for seed in range(MANY // 4)]
    given = [result for result in results if result]
    assert len(given) == 4  # of three rounds, and of what they led to
    assert all(result.keys() == COUNTS for result in given)
    assert [float(result["tested.count"]) for result in given] == [3.0] * 4


def test_a_repeated_request_gets_the_stored_result(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg"), SMALL)
    first = prober.evaluate(0)
    assert prober.evaluate(1) == {}
    prober.restart()  # it has not forgotten
    assert furthest(prober.evaluate(0), first) == 0
    later = prober.evaluate(1, number=1)
    assert later.keys() == COUNTS
    assert prober.evaluate(0) == {}  # rounds move forward


def test_received_and_trained_models_are_one_purpose_each(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg"), SMALL)
    assert prober.fit(0).tree.keys() >= COUNTS
    assert not COUNTS & prober.fit(1).tree.keys()
    assert prober.fit(0, number=3, keep=False).tree.keys() == COUNTS
    for seed in range(8):
        assert prober.fit(1 + seed, number=seed % 4, keep=False).tree == {}
    assert prober.evaluate(0, number=1, adapt=True).keys() == COUNTS
    assert prober.evaluate(0, number=2, adapt=True) == {}  # once in a run


def test_a_run_ends_where_its_recipe_says(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg"), SMALL)
    answer = prober.ask("evaluate", prober.model(0), number=4, adapt=False, final=False)
    assert answer.head["error"] == "the recipe has 3 rounds, and this is a request for round 5"
    assert answer.tree == {}


def test_a_site_trains_from_no_more_models_than_a_run_needs(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg", "method.epochs=1"), SMALL)
    answers = [prober.fit(seed, number=seed % 3) for seed in range(3 + 8)]
    assert all("error" not in answer.head for answer in answers)
    refused = prober.fit(99)
    assert refused.head["error"] == "it has trained from 11 models in this run of 3 rounds, and trains from no other"
    prober.restart()
    assert prober.fit(98).tree == {}
    assert "error" not in prober.fit(0).head  # one of the eleven, as after a crash


def test_results_are_counted_over_all_runs(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg"), SMALL + "max_evaluations = 5\n")
    given = [bool(prober.evaluate(number, number, run)) for run in ("x", "y", "z") for number in range(4)]
    assert given == [True] * 5 + [False] * 7
    assert json.loads((tmp_path / "home" / "north" / "tests.json").read_text()) == 5


def test_a_site_takes_part_in_no_more_runs_than_its_owner_allows(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg"), SMALL + "max_runs = 2\n")
    assert ["error" in prober.ask("hello", run=run).head for run in ("x", "y", "x", "z", "y")] == [
        False,
        False,
        False,
        True,
        False,
    ]
    assert prober.ask("hello", run="z").head["error"] == "its owner's terms allow 2 runs, and this would be another one"
    assert not (tmp_path / "home" / "north" / "runs" / "z").exists()


def test_few_test_images_are_not_reported(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg"), "")
    assert prober.evaluate(0) == {}
    prober = Prober(tmp_path, recipe("fedavg"), "min_test = 3\n")
    assert prober.evaluate(0, run="y").keys() == COUNTS


@pytest.mark.parametrize(("evaluation", "names"), [("exact", COUNTS | {"tested.loss"}), ("none", set())])
def test_the_owner_decides_how_much_is_told(evaluation: str, names: set[str], tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg"), f'evaluation = "{evaluation}"\n' + SMALL)
    assert prober.evaluate(0).keys() == names


def test_a_model_that_overflows_on_some_images_says_nothing_through_the_noise(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg", *NOISY, "method.lr=1e30"), SMALL)
    answer = prober.fit(0)
    assert all(bool(torch.isfinite(value).all()) for value in answer.tree.values())


@pytest.mark.parametrize("terms", ["", SMALL, 'evaluation = "none"\n'])
def test_a_run_whose_sites_tell_little_or_nothing_ends_well(terms: str, tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "pfedpt")
    summary = coordinator.conduct(out, federation, exchange(tmp_path, terms=terms), ignore)
    assert (summary["accuracy"]["mean"] is not None) == (terms == SMALL)
    assert [line["loss"] for line in lines(out)] == [None] * 3
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2]] * 3
    assert (out / "report.html").is_file()
    for site in federation.sites:  # its owner still learns how good the model is
        (path,) = (tmp_path / "home" / site).glob("runs/*/report.json")
        assert json.loads(path.read_text())["accuracy"] is not None


@pytest.mark.parametrize(
    ("correct", "count", "told"),
    [(0, 3, 0), (2, 3, 2), (20, 20, 20), (13, 25, 14), (25, 25, 25), (103, 200, 100), (104, 200, 100), (106, 200, 110)],
)
def test_coarse_counts(correct: int, count: int, told: int) -> None:
    sums = {"correct": torch.tensor(float(correct)), "loss": torch.tensor(0.7), "count": torch.tensor(float(count))}
    found = coarse(sums)
    assert {name: float(value) for name, value in found.items()} == {"correct": told, "count": count}


@pytest.mark.parametrize("count", [1, 19, 20, 21, 39, 40, 41, 59, 399, 10_007])
def test_a_coarse_count_is_one_of_21(count: int) -> None:
    size = torch.tensor(float(count))
    levels = {
        float(coarse({"correct": torch.tensor(float(right)), "count": size})["correct"]) for right in range(count + 1)
    }
    assert len(levels) <= 21
    assert 0 <= min(levels) <= max(levels) <= count
