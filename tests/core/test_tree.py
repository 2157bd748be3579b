"""Trees: every function by hand, and the mean as a property."""

from random import Random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from promptfed.core import tree
from promptfed.core.tree import Tree

numbers = st.floats(-100, 100, allow_nan=False, width=32)
weights = st.lists(st.floats(0.01, 100, allow_nan=False), min_size=1, max_size=6)


def pair() -> Tree:
    """Return two clients' stacked tree."""
    return {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([5.0, 6.0])}


def lists(value: Tree) -> dict[str, object]:
    return {name: part.tolist() for name, part in value.items()}


def test_map_joins_trees_by_name() -> None:
    one, two = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, {"b": torch.tensor(20.0), "a": torch.tensor(10.0)}
    assert lists(tree.map(torch.add, one, two)) == {"a": 11.0, "b": 22.0}
    assert list(tree.map(torch.neg, one)) == ["a", "b"]


def test_map_follows_the_names_of_the_first_tree() -> None:
    assert lists(tree.map(torch.add, {"a": torch.tensor(1.0)}, {"a": torch.tensor(1.0), "b": torch.tensor(2.0)})) == {
        "a": 2
    }


def test_pick_keeps_the_order_asked_for_and_drop_that_of_the_tree() -> None:
    value = {name: torch.tensor(0.0) for name in "abc"}
    assert list(tree.pick(value, ["c", "a"])) == ["c", "a"]
    assert list(tree.pick(value, value)) == ["a", "b", "c"]
    assert list(tree.drop(value, ["b", "nowhere"])) == ["a", "c"]


def test_drop_takes_a_generator_of_names() -> None:
    assert list(tree.drop(pair(), (name for name in ["a"]))) == ["b"]


def test_row_is_one_client_as_a_view() -> None:
    stacked = pair()
    second = tree.row(stacked, 1)
    assert lists(second) == {"a": [3.0, 4.0], "b": 6.0}
    assert second["a"].data_ptr() == stacked["a"][1].data_ptr()


def test_rows_are_chosen_clients_in_the_order_asked_for() -> None:
    assert lists(tree.rows(pair(), torch.tensor([1, 0, 1]))) == {"a": [[3, 4], [1, 2], [3, 4]], "b": [6, 5, 6]}


def test_stack_undoes_row() -> None:
    assert lists(tree.stack([tree.row(pair(), 0), tree.row(pair(), 1)])) == lists(pair())


def test_cat_joins_stacks() -> None:
    joined = tree.cat([pair(), tree.rows(pair(), torch.tensor([0]))])
    assert lists(joined) == {"a": [[1, 2], [3, 4], [1, 2]], "b": [5, 6, 5]}
    assert lists(tree.cat([pair()])) == lists(pair())


def test_empty_trees_stay_empty() -> None:
    assert tree.stack([{}, {}]) == tree.cat([{}, {}]) == tree.repeat({}, 3) == tree.mean({}, torch.ones(2)) == {}
    assert tree.floats({}) == tree.nbytes({}) == 0


def test_repeat_gives_every_client_the_same_memory() -> None:
    value = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}
    repeated = tree.repeat(value, 3)
    assert lists(repeated) == {"a": [[1, 2]] * 3, "b": [3, 3, 3]}
    assert repeated["a"].data_ptr() == value["a"].data_ptr()
    assert repeated["a"].stride(0) == 0


def test_mean_by_hand() -> None:
    # (1 * [1, 2] + 3 * [3, 4]) / 4 = [2.5, 3.5]; (5 + 3 * 6) / 4 = 5.75
    assert lists(tree.mean(pair(), torch.tensor([1.0, 3.0]))) == {"a": [2.5, 3.5], "b": 5.75}


def test_mean_of_shared_rows_is_the_row() -> None:
    assert lists(tree.mean(tree.repeat({"a": torch.tensor([1.0, 2.0])}, 4), torch.ones(4))) == {"a": [1.0, 2.0]}


def test_mean_keeps_the_type_of_the_values() -> None:
    halves = {"a": torch.tensor([[1.0], [3.0]], dtype=torch.bfloat16)}
    assert tree.mean(halves, torch.tensor([1.0, 1.0]))["a"].dtype == torch.bfloat16


@settings(deadline=None)
@given(st.lists(numbers, min_size=1, max_size=4), weights)
def test_mean_of_equal_trees_is_the_tree(values: list[float], shares: list[float]) -> None:
    value = {"a": torch.tensor(values, dtype=torch.float64)}
    mean = tree.mean(tree.repeat(value, len(shares)), torch.tensor(shares, dtype=torch.float64))
    torch.testing.assert_close(mean, value, rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(weights, st.floats(0.001, 1000), st.randoms(use_true_random=False))
def test_mean_ignores_the_order_of_clients_and_the_scale_of_weights(
    shares: list[float], scale: float, dice: Random
) -> None:
    size = len(shares)
    value = {"a": torch.arange(2.0 * size, dtype=torch.float64).reshape(size, 2)}
    weight = torch.tensor(shares, dtype=torch.float64)
    order = torch.tensor(sorted(range(size), key=lambda _: dice.random()))
    expected = tree.mean(value, weight)
    torch.testing.assert_close(
        tree.mean(tree.rows(value, order), weight[order] * scale), expected, rtol=1e-10, atol=1e-10
    )


def test_to_moves_every_tensor() -> None:
    assert {value.device.type for value in tree.to(pair(), "meta").values()} == {"meta"}


def test_settled_copies_only_what_lies_askew() -> None:
    whole = torch.arange(40.0)
    value = {"whole": whole, "view": whole[1:5], "turned": whole.view(8, 5).mT, "wide": whole[:2].expand(3, 2)}
    found = tree.settled(value)
    assert found["whole"] is whole
    assert lists(found) == lists(value)
    for part in found.values():
        assert part.is_contiguous()
        assert part.data_ptr() % 64 == 0
    assert tree.settled({"none": torch.zeros(0, 2)})["none"].shape == (0, 2)


def test_counting() -> None:
    value = {
        "a": torch.zeros(2, 3),
        "b": torch.zeros((), dtype=torch.float64),
        "c": torch.zeros(4, dtype=torch.bfloat16),
    }
    assert tree.floats(value) == 6 + 1 + 4
    assert tree.nbytes(value) == 24 + 8 + 8
    assert tree.nbytes(tree.repeat({"a": torch.zeros(2)}, 3)) == 24


def test_inputs_are_never_changed() -> None:
    value, names = pair(), list(pair())

    def scale(part: Tensor) -> Tensor:
        return part * 2

    tree.map(scale, value), tree.pick(value, ["a"]), tree.drop(value, ["a"]), tree.row(value, 0)
    tree.rows(value, torch.tensor([1])), tree.stack([value, value]), tree.cat([value, value]), tree.repeat(value, 2)
    tree.mean(value, torch.tensor([1.0, 2.0]))
    assert list(value) == names
    assert lists(value) == lists(pair())
