"""Which clients take part: how many, which, and always the same ones."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.core.errors import PromptFedError
from promptfed.federation.sampling import choose
from promptfed.runs import config
from promptfed.runs.config import Recipe
from promptfed.runs.execution import start


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 1000), st.integers(1, 40), st.data())
def test_exactly_as_many_different_clients_in_order(seed: int, round: int, clients: int, data: st.DataObject) -> None:  # noqa: A002
    per_round = data.draw(st.integers(1, clients))
    chosen = choose(seed, round, clients, per_round).tolist()
    assert len(chosen) == len(set(chosen)) == per_round
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(range(clients))


@pytest.mark.parametrize("per_round", [0, 7])
def test_all_of_them(per_round: int) -> None:
    assert choose(0, 3, 7, per_round).equal(torch.arange(7))


def test_the_seed_and_the_round_decide() -> None:
    assert choose(1, 2, 100, 10).equal(choose(1, 2, 100, 10))
    assert not choose(1, 2, 100, 10).equal(choose(1, 3, 100, 10))
    assert not choose(1, 2, 100, 10).equal(choose(2, 2, 100, 10))


def test_no_client_is_preferred() -> None:
    rounds = 2_000
    counts = torch.zeros(10)
    for number in range(rounds):
        counts[choose(0, number, 10, 3)] += 1
    # a client takes part with probability 0.3; five standard deviations
    assert (counts - 0.3 * rounds).abs().max() < 5 * math.sqrt(rounds * 0.3 * 0.7)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 1000), st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_one_of_every_group(seed: int, round: int, groups: list[int]) -> None:  # noqa: A002
    chosen = choose(seed, round, len(groups), len(set(groups)), groups).tolist()
    assert chosen == sorted(chosen)
    assert sorted(groups[client] for client in chosen) == sorted(set(groups))


def test_no_client_of_a_group_is_preferred() -> None:
    rounds, groups = 2_000, [0, 0, 0, 1, 1, 2]
    counts = torch.zeros(6)
    for number in range(rounds):
        counts[choose(0, number, 6, 3, groups)] += 1
    expected = rounds * torch.tensor([1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2, 1])
    assert (counts - expected).abs().max() < 5 * math.sqrt(rounds / 4)


def shops(*more: str) -> Recipe:
    words = ["data.name=fashion-shops", "data.limit=2", "clients=8", "rounds=3", "method.epochs=1", "device=cpu"]
    backbone = [f"backbone.{word}" for word in ("name=vit-tiny", "width=8", "depth=1", "heads=2", "patch=16")]
    (recipe,) = config.load("fedavg", [*words, *backbone, "partition.name=domain-dirichlet", *more])
    return recipe


def test_a_run_draws_one_client_of_every_domain(tmp_path: Path) -> None:
    recipe = shops("per_round=4", "sampling=one-per-domain")
    result = start(recipe, tmp_path / "run")
    drawn = [line["clients"] for line in result.rounds]
    assert [[client // 2 for client in clients] for clients in drawn] == [[0, 1, 2, 3]] * 3
    assert len(set(map(tuple, drawn))) > 1
    assert recipe.hash != shops("per_round=4").hash


@pytest.mark.parametrize("per_round", [0, 3, 8])
def test_as_many_as_there_are_domains_or_a_sentence(per_round: int, tmp_path: Path) -> None:
    sentence = f"samples one client of each domain: set per_round=4, not {per_round}"
    with pytest.raises(PromptFedError, match=sentence):
        start(shops(f"per_round={per_round}", "sampling=one-per-domain"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_central_noise_is_accounted_for_uniform_draws_only(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    noise = ["guards.clip=1.0", "guards.noise=1.0", "guards.place=central"]
    with pytest.raises(PromptFedError, match="set sampling=uniform"):
        start(shops("per_round=4", "sampling=one-per-domain", *noise), tmp_path / "run")
