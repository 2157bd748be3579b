"""Local training against torch's own optimisers, and against steps worked out by hand."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from promptfed.core import local, tree
from promptfed.core.method import Task
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from support.toys import Listed, numbered, task

TASK = task()
STEPS = 6


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pull(task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
    """½ Σ (w − target)², whose gradient is w − target."""
    return 0.5 * ((params["w"] - batch["target"]) ** 2).sum(-1)


def network(task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
    """Mean squared error of two layers: nothing about it is linear."""
    hidden = torch.tanh(batch["x"] @ params["in"] + params["bias"].unsqueeze(-2))
    return ((hidden @ params["out"] - batch["y"]) ** 2).mean((-2, -1))


def weights(*lead: int) -> Tree:
    return {"in": normal(*lead, 3, 4), "bias": normal(*lead, 4, seed=1), "out": normal(*lead, 4, 2, seed=2)}


def examples(count: int, *lead: int) -> list[Batch]:
    return [{"x": normal(*lead, 5, 3, seed=10 + i), "y": normal(*lead, 5, 2, seed=50 + i)} for i in range(count)]


Optimiser = Callable[[Iterator[Tensor]], torch.optim.Optimizer]


def by_torch(params: Tree, batches: list[Batch], optimiser: Optimiser) -> Tree:
    """Run the same steps by one of torch's optimisers."""
    own = {name: value.clone().requires_grad_() for name, value in params.items()}
    rule = optimiser(iter(own.values()))
    for batch in batches:
        rule.zero_grad()
        network(TASK, {}, own, batch).backward()
        rule.step()
    return tree.map(torch.Tensor.detach, own)


def assert_near(found: Tree, expected: Tree, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(tree.pick(found, expected), expected, rtol=tolerance, atol=tolerance)


def target(*values: float) -> Batch:
    return {"target": numbers(*values)}


# -- by hand -----------------------------------------------------------------------------------------


def test_one_step_downhill() -> None:
    # 3 − 0.5 (3 − 1) = 2
    assert local.sgd(pull, TASK, Listed([target(1)]), start={}, params={"w": numbers(3)}, lr=0.5)["w"].tolist() == [2.0]


def test_weight_decay_adds_to_the_gradient() -> None:
    # 3 − 0.5 ((3 − 1) + 0.5 · 3) = 1.25
    found = local.sgd(pull, TASK, Listed([target(1)]), start={}, params={"w": numbers(3)}, lr=0.5, weight_decay=0.5)
    assert found["w"].tolist() == [1.25]


def test_momentum_by_hand() -> None:
    # v = 2, w = 2; then v = 0.5 · 2 + (2 − 1) = 2, w = 1
    found = local.sgd(pull, TASK, Listed([target(1)] * 2), start={}, params={"w": numbers(3)}, lr=0.5, momentum=0.5)
    assert found["w"].tolist() == [1.0]
    assert found["velocity.w"].tolist() == [2.0]


def test_the_first_step_of_adam_is_the_rate_times_the_sign() -> None:
    found = local.adam(pull, TASK, Listed([target(1, 1)]), start={}, params={"w": numbers(3, -3)}, lr=0.5, eps=0.0)
    assert_near(found, {"w": numbers(2.5, -2.5)}, 1e-6)
    assert set(found) == {"w"}


def test_no_batches_change_nothing() -> None:
    found = local.sgd(pull, TASK, Listed([]), start={}, params={"w": numbers(3)}, lr=0.5, momentum=0.9)
    assert {name: value.tolist() for name, value in found.items()} == {"w": [3.0], "velocity.w": [0.0]}


def test_a_parameter_the_objective_does_not_read_stays_put() -> None:
    found = local.sgd(pull, TASK, Listed([target(1)]), start={}, params={"w": numbers(3), "other": numbers(7)}, lr=0.5)
    assert found["other"].tolist() == [7.0]


# -- against torch's own -----------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_sgd_is_torch_sgd(momentum: float, decay: float) -> None:
    batches = examples(STEPS)
    found = local.sgd(
        network, TASK, Listed(batches), start={}, params=weights(), lr=0.1, momentum=momentum, weight_decay=decay
    )
    expected = by_torch(
        weights(), batches, lambda own: torch.optim.SGD(own, lr=0.1, momentum=momentum, weight_decay=decay)
    )
    assert_near(found, expected)


ADAM_CASES = [((0.9, 0.999), 0.0), ((0.8, 0.95), 0.1)]


@pytest.mark.parametrize(("betas", "decay"), ADAM_CASES)
def test_adam_is_torch_adamw_in_single_precision(betas: tuple[float, float], decay: float) -> None:
    params = tree.map(torch.Tensor.float, weights())
    batches = [tree.map(torch.Tensor.float, batch) for batch in examples(STEPS)]
    found = local.adam(
        network, TASK, Listed(batches), start={}, params=params, lr=0.01, betas=betas, weight_decay=decay
    )
    expected = by_torch(params, batches, lambda own: torch.optim.AdamW(own, lr=0.01, betas=betas, weight_decay=decay))
    assert_near(found, expected, 1e-5)


@pytest.mark.parametrize(("betas", "decay"), ADAM_CASES)
def test_adam_is_torch_adamw_in_double_precision(betas: tuple[float, float], decay: float) -> None:
    batches = examples(STEPS)
    found = local.adam(
        network, TASK, Listed(batches), start={}, params=weights(), lr=0.01, betas=betas, weight_decay=decay
    )
    expected = by_torch(
        weights(), batches, lambda own: torch.optim.AdamW(own, lr=0.01, betas=betas, weight_decay=decay)
    )
    assert_near(found, expected)


def test_every_parameter_may_have_its_own_rates() -> None:
    rates, momenta = {"in": 0.1, "bias": 0.0, "out": 0.02}, {"in": 0.9, "bias": 0.5, "out": 0.0}
    batches = examples(STEPS)
    found = local.sgd(network, TASK, Listed(batches), start={}, params=weights(), lr=rates, momentum=momenta)

    def by_name(own: Iterator[Tensor]) -> torch.optim.Optimizer:
        groups = [{"params": [p], "lr": rates[n], "momentum": momenta[n]} for n, p in zip(rates, own, strict=True)]
        return torch.optim.SGD(groups)

    assert_near(found, by_torch(weights(), batches, by_name))
    assert found["bias"].equal(weights()["bias"])
    assert set(found) == {"in", "bias", "out", "velocity.in", "velocity.bias"}


# -- clients never mix -------------------------------------------------------------------------------

Rule = Callable[[Tree, Listed], Tree]


def sgd(params: Tree, batches: Listed) -> Tree:
    return local.sgd(network, TASK, batches, start={}, params=params, lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(params: Tree, batches: Listed) -> Tree:
    return local.adam(network, TASK, batches, start={}, params=params, lr=0.01, weight_decay=0.1)


@pytest.mark.parametrize("rule", [sgd, adam])
def test_a_stack_is_one_by_one(rule: Rule) -> None:
    together = rule(weights(3), Listed(examples(STEPS, 3)))
    for client in range(3):
        alone = rule(tree.row(weights(3), client), Listed([tree.row(batch, client) for batch in examples(STEPS, 3)]))
        assert_near(tree.row(together, client), alone)


@pytest.mark.parametrize("rule", [sgd, adam])
def test_a_client_out_of_data_stays_put(rule: Rule) -> None:
    steps = (2, 5, 0)
    active = [numbers(*(float(number < own) for own in steps)) for number in range(5)]
    batches = [batch | {"active": on} for batch, on in zip(examples(5, 3), active, strict=True)]
    together = rule(weights(3), Listed(batches, ragged=True))
    for client, own in enumerate(steps):
        mine = [tree.row(batch, client) for batch in batches[:own]]
        assert_near(tree.row(together, client), rule(tree.row(weights(3), client), Listed(mine)))


def test_momentum_of_a_client_out_of_data_is_kept() -> None:
    batches = [{"target": numbers(1, 1).view(2, 1), "active": numbers(1, on)} for on in (1.0, 0.0)]
    found = local.sgd(
        pull, TASK, Listed(batches, ragged=True), start={}, params={"w": numbers(3, 3).view(2, 1)}, lr=0.5, momentum=0.5
    )
    # after one step v = 2, w = 2; only the first client takes the second: v = 0.5 · 2 + 1 = 2, w = 1
    assert found["w"].tolist() == [[1.0], [2.0]]
    assert found["velocity.w"].tolist() == [[2.0], [2.0]]


def test_shared_rows_may_be_views() -> None:
    shared = tree.repeat({"w": numbers(3)}, 2)
    found = local.sgd(pull, TASK, Listed([{"target": numbers(1, 3).view(2, 1)}]), start={}, params=shared, lr=0.5)
    assert found["w"].tolist() == [[2.0], [3.0]]
    assert shared["w"].tolist() == [[3.0], [3.0]]


# -- hold and carry ----------------------------------------------------------------------------------


def test_momentum_handed_on_continues_the_run() -> None:
    batches = examples(STEPS)
    whole = sgd(weights(), Listed(batches))
    first = sgd(weights(), Listed(batches[:2]))
    rest = local.sgd(
        network,
        TASK,
        Listed(batches[2:]),
        start={},
        params=tree.pick(first, weights()),
        lr=0.1,
        momentum=0.9,
        weight_decay=0.01,
        hold=tree.drop(first, weights()),
    )
    assert set(rest) == set(whole)
    assert_near(rest, whole, 0.0)


def test_an_objective_sees_start_hold_and_params() -> None:
    def objective(task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        return (params["w"] * (start["a"] + params["b"] + batch["c"])).sum(-1)

    found = local.sgd(
        objective,
        TASK,
        Listed([{"c": numbers(100)}]),
        start={"a": numbers(1)},
        params={"w": numbers(0)},
        lr=1.0,
        hold={"b": numbers(10)},
    )
    assert {name: value.tolist() for name, value in found.items()} == {"w": [-111.0]}


def test_what_is_trained_hides_what_is_held() -> None:
    found = local.sgd(
        pull, TASK, Listed([target(1)]), start={}, params={"w": numbers(3)}, lr=0.5, hold={"w": numbers(1000)}
    )
    assert found["w"].tolist() == [2.0]


def counting(task: Task, start: Tree, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
    """Pull towards the sum of what was seen; carry that sum."""
    seen = params["sum"] + batch["target"]
    return 0.5 * ((params["w"] - params["sum"]) ** 2).sum(-1), {"sum": seen}


def test_carry_goes_from_step_to_step() -> None:
    # the sums before the steps are 1, 3, 6; w halves its distance to each: 0 → 0.5 → 1.75 → 3.875
    hold = {"sum": numbers(1)}
    found = local.sgd(
        counting,
        TASK,
        Listed([target(2), target(3), target(4)]),
        start={},
        params={"w": numbers(0)},
        lr=0.5,
        hold=hold,
        carry=["sum"],
    )
    assert {name: value.tolist() for name, value in found.items()} == {"w": [3.875], "sum": [10.0]}
    assert hold["sum"].tolist() == [1.0]


def test_a_client_out_of_data_keeps_its_carry() -> None:
    batches = [{"target": numbers(2, 5).view(2, 1), "active": numbers(1, on)} for on in (1.0, 0.0)]
    params, hold = {"w": numbers(0, 0).view(2, 1)}, {"sum": numbers(1, 1).view(2, 1)}
    found = local.sgd(
        counting, TASK, Listed(batches, ragged=True), start={}, params=params, lr=0.5, hold=hold, carry=["sum"]
    )
    # the first: 0 → 0.5 → 1.75 with sums 1, 3; the second stops after 0 → 0.5
    assert found["w"].tolist() == [[1.75], [0.5]]
    assert found["sum"].tolist() == [[5.0], [6.0]]


def test_inputs_are_not_changed() -> None:
    params, start, batch = {"w": numbers(3)}, {"s": numbers(4)}, target(1)
    hold = {"velocity.w": numbers(5), "sum": numbers(6)}
    copies = [tree.map(torch.clone, part) for part in (params, start, hold, batch)]
    local.sgd(
        counting,
        TASK,
        Listed([batch] * 3),
        start=start,
        params=params,
        lr=0.5,
        momentum=0.5,
        weight_decay=0.1,
        hold=hold,
        carry=["sum"],
    )
    local.adam(counting, TASK, Listed([batch] * 3), start=start, params=params, lr=0.5, hold=hold, carry=["sum"])
    for part, copy in zip((params, start, hold, batch), copies, strict=True):
        assert_near(part, copy, 0.0)
        assert list(part) == list(copy)
    assert not params["w"].requires_grad


def test_results_carry_no_graph() -> None:
    found = local.sgd(
        counting,
        TASK,
        Listed([target(2)]),
        start={},
        params={"w": numbers(0)},
        lr=0.5,
        hold={"sum": numbers(1)},
        carry=["sum"],
    )
    assert not any(value.requires_grad for value in found.values())


def test_adam_reaches_the_bottom() -> None:
    found = local.adam(pull, TASK, Listed([target(1)] * 400), start={}, params={"w": numbers(3)}, lr=0.05)
    assert math.isclose(float(found["w"]), 1.0, abs_tol=1e-3)


# -- narrowing a stack ------------------------------------------------------------------------------------------------


def test_a_stack_is_halved_when_half_of_it_has_run_out() -> None:
    assert local._segments((5, 2, 9, 2)) == [(None, 0, 2), ([2, 0], 2, 5), ([2], 5, 9)]
    assert local._segments((3, 3, 3)) == [(None, 0, 3)]
    assert local._segments(()) == []


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_every_client_gets_all_its_steps(lengths: list[int]) -> None:
    segments = local._segments(tuple(lengths))
    for client, length in enumerate(lengths):
        covered = sum(end - begin for rows, begin, end in segments if rows is None or client in rows)
        assert covered >= length
    assert [begin for _, begin, _ in segments] == [0, *(end for _, _, end in segments[:-1])]
    assert segments[-1][2] == max(lengths)


def test_clipping_shortens_each_clients_gradient_as_a_whole() -> None:
    # client 0 has the gradient (3, 4), of length 5; client 1 has (0.3, 0.4), of length 0.5
    grads = [torch.tensor([[3.0], [0.3]]), torch.tensor([[[4.0]], [[0.4]]])]
    first, second = local.clipped(grads, 1.0, lead=1)
    torch.testing.assert_close(first, torch.tensor([[0.6], [0.3]]), rtol=1e-5, atol=0)
    torch.testing.assert_close(second, torch.tensor([[[0.8]], [[0.4]]]), rtol=1e-5, atol=0)
    scalars = local.clipped([torch.tensor([3.0, 0.3]), torch.tensor([[4.0], [0.4]])], 1.0, lead=1)
    torch.testing.assert_close(scalars, [torch.tensor([0.6, 0.3]), torch.tensor([[0.8], [0.4]])], rtol=1e-5, atol=0)
    (single,) = local.clipped([torch.tensor(3.0)], 1.0, lead=0)
    torch.testing.assert_close(single, torch.tensor(1.0), rtol=1e-5, atol=0)
    alone = local.clipped([torch.tensor([3.0]), torch.tensor([[4.0]])], 1.0, lead=0)
    torch.testing.assert_close(alone, [torch.tensor([0.6]), torch.tensor([[0.8]])], rtol=1e-5, atol=0)


def test_sgd_moves_no_further_than_the_clipped_gradient() -> None:
    params = {"w": torch.tensor([0.0, 0.0])}
    batch = {"slope": torch.tensor([3.0, 4.0])}

    def steep(task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        return (params["w"] * batch["slope"]).sum(-1)

    moved = local.sgd(steep, TASK, Listed([batch]), start={}, params=params, lr=0.5, clip=1.0)
    torch.testing.assert_close(moved["w"], torch.tensor([-0.3, -0.4]), rtol=1e-5, atol=0)


# -- a round's rate -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lr", [0.5, {"w": 0.5}])
def test_a_batch_may_have_a_rate(lr: local.Rate) -> None:
    # v = 2, w = 3 − ½ · ½ · 2 = 2.5;  v = ½ · 2 + 1.5 = 2.5, w = 2.5 − ½ · ½ · 2.5 = 1.875
    batch = target(1) | {"rate": torch.tensor(0.5)}
    found = local.sgd(pull, TASK, Listed([batch] * 2), start={}, params={"w": numbers(3)}, lr=lr, momentum=0.5)
    assert found["w"].tolist() == [1.875]


def test_every_client_of_a_stack_has_its_own_rate() -> None:
    batch = {"target": numbers(1).expand(2, 1), "rate": torch.tensor([1.0, 0.25])}
    found = local.sgd(pull, TASK, Listed([batch]), start={}, params={"w": numbers(3).expand(2, 1)}, lr=0.5)
    assert found["w"].tolist() == [[2.0], [2.75]]


def test_a_rate_multiplies_that_of_adam_and_its_decay() -> None:
    params, batches = weights(), examples(STEPS)
    rated = Listed([batch | {"rate": torch.tensor(0.25)} for batch in batches])
    found = local.adam(network, TASK, rated, start={}, params=params, lr=0.04, weight_decay=0.1)
    expected = local.adam(network, TASK, Listed(batches), start={}, params=params, lr=0.01, weight_decay=0.1)
    assert_near(found, expected)


def test_adam_too_may_have_a_rate_for_every_parameter() -> None:
    rates, batches = {"in": 0.1, "bias": 0.0, "out": 0.02}, examples(STEPS)
    found = local.adam(network, TASK, Listed(batches), start={}, params=weights(), lr=rates, weight_decay=0.1)

    def by_name(own: Iterator[Tensor]) -> torch.optim.Optimizer:
        groups = [{"params": [p], "lr": rates[n]} for n, p in zip(rates, own, strict=True)]
        return torch.optim.AdamW(groups, weight_decay=0.1)

    assert_near(found, by_torch(weights(), batches, by_name))
    assert found["bias"].equal(weights()["bias"])


@pytest.mark.parametrize("stacked", [False, True])
def test_a_round_may_have_a_pace_of_its_own(stacked: bool) -> None:
    data = numbered([4, 2]).data([0, 1] if stacked else [1], 0, stacked=stacked)
    slow, slower = local.paced(data, 0.5), local.paced(local.paced(data, 0.5), 0.5)
    assert [batch["rate"].tolist() for batch in slow.batches(size=4)] == [[0.5, 0.5] if stacked else 0.5]
    assert [batch["rate"].tolist() for batch in slower.batches(size=4)] == [[0.25, 0.25] if stacked else 0.25]
    # a recorded step reads it from its batch: no other rate, no other key
    assert local.paced(data, 0.5).batches(size=4).key == local.paced(data, 0.25).batches(size=4).key
