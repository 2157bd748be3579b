"""Noise: its size, whose it is, and that it repeats exactly."""

import numpy as np
import pytest
import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.federation.guards.guard import Guard
from promptfed.federation.guards.noise import CentralNoise, LocalNoise, system_normal
from support.toy_round import apply

WIDE = 40_000


def sent(clients: int, wide: int = WIDE) -> Tree:
    return {"w": torch.ones(clients, wide), "b": torch.zeros(clients, 2, 3)}


@pytest.mark.parametrize("entropy", ["keyed", "system"])
def test_local_noise_has_deviation_noise_times_clip_on_every_row(entropy: str) -> None:
    guard = LocalNoise(clip=0.5, noise=0.8, seed=0, entropy=entropy)  # type: ignore[arg-type]
    clients, up, weights = apply(guard, sent(3), weights=torch.tensor([1.0, 2, 3]))
    noise = up["w"] - 1
    assert noise.std(1).tolist() == pytest.approx([0.4] * 3, rel=0.03)
    assert noise.mean(1).tolist() == pytest.approx([0.0] * 3, abs=0.01)
    assert (len(clients), weights.tolist()) == (3, [1.0, 2.0, 3.0])
    together = torch.corrcoef(noise)
    assert bool((together - torch.eye(3)).abs().max() < 0.03)  # nobody's noise tells of another's


@pytest.mark.parametrize("entropy", ["keyed", "system"])
def test_central_noise_is_on_the_mean_of_all_and_leaves_one_row(entropy: str) -> None:
    guard = CentralNoise(clip=0.5, noise=0.8, seed=0, entropy=entropy)  # type: ignore[arg-type]
    clients, up, weights = apply(guard, sent(4))
    assert up["w"].shape == (1, WIDE)
    assert float((up["w"] - 1).std()) == pytest.approx(0.1, rel=0.03)  # 0.8 × 0.5 / 4
    assert (clients.tolist(), weights.tolist()) == ([0, 1, 2, 3], [4.0])


def test_central_noise_after_a_secure_sum_still_counts_all_clients() -> None:
    guard, up = CentralNoise(clip=1.0, noise=1.0, seed=0), {"w": torch.zeros(1, WIDE)}
    _, noisy, _ = guard(0, torch.arange(10), {}, up, torch.tensor([10.0]))
    assert float(noisy["w"].std()) == pytest.approx(0.1, rel=0.03)


def test_keyed_noise_repeats_and_differs_by_client_round_seed_and_name() -> None:
    def noise(seed: int, number: int) -> torch.Tensor:
        up = {"w": torch.zeros(2, 8), "v": torch.zeros(2, 8)}
        return torch.cat(list(apply(LocalNoise(1.0, 1.0, seed), up, number=number)[1].values()))

    assert noise(0, 0).equal(noise(0, 0))
    different = torch.cat([noise(0, 0), noise(0, 1), noise(1, 0)])
    assert len(different.unique(dim=0)) == 12


@pytest.mark.parametrize("guard", [LocalNoise(clip=1.0, noise=0.1, seed=0), CentralNoise(clip=1.0, noise=0.1, seed=0)])
def test_whole_numbers_are_refused_as_noise_would_be_rounded_away(guard: Guard) -> None:
    with pytest.raises(PromptFedError, match='cannot hide "counts", which clients send as int64; send it as float32'):
        apply(guard, sent(2, 3) | {"counts": torch.ones(2, 4, dtype=torch.long)})


def test_noise_from_the_system_never_repeats() -> None:
    guards = LocalNoise(1.0, 1.0, 0, "system"), CentralNoise(1.0, 1.0, 0, "system")
    for guard in guards:
        assert not apply(guard, sent(2, 8))[1]["w"].equal(apply(guard, sent(2, 8))[1]["w"])


def test_one_row_alone_gets_the_noise_it_gets_in_the_stack() -> None:
    guard, up = LocalNoise(1.0, 0.5, seed=3), sent(3, 5)
    _, stacked, _ = guard(7, torch.tensor([4, 1, 9]), {}, up, torch.ones(3))
    for place, client in enumerate((4, 1, 9)):
        _, alone, _ = guard(7, torch.tensor(client), {}, tree.row(up, place), torch.tensor(1.0))
        torch.testing.assert_close(alone, tree.row(stacked, place), rtol=0, atol=0)


def test_the_systems_normal_numbers_are_normal() -> None:
    drawn = system_normal((200, 500))
    inside = [(np.abs(drawn) < bound).mean() for bound in (1, 2, 3)]
    assert inside == pytest.approx([0.6827, 0.9545, 0.9973], abs=0.01)
    assert drawn.shape == (200, 500)
