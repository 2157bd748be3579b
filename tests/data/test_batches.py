"""Batches: every example once, the same alone and stacked, and every number in them by hand."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.core import keys, tree
from promptfed.core.protocols import Batch, Draw
from promptfed.core.schedule import Schedule
from promptfed.core.tree import Tree
from promptfed.data.batches import ClientData, Pool, Shards
from promptfed.data.dataset import Dataset
from promptfed.data.training import Training
from support.toys import Linear, dataset, numbered, shards, shares

DRAWS = {"noise": Draw((2,)), "angle": Draw((2,), "normal"), "where": Draw((3,), per="batch")}


def alone(sizes: list[int], client: int = 0, round: int = 0, seed: int = 0) -> ClientData:  # noqa: A002
    return numbered(sizes, seed, DRAWS).data([client], round, stacked=False)


def together(sizes: list[int], round: int = 0) -> ClientData:  # noqa: A002
    return numbered(sizes, 0, DRAWS).data(range(len(sizes)), round, stacked=True)


def seen(batch: Batch) -> list[int]:
    """Return the examples of one client's batch that count."""
    return batch["index"][batch["mask"] > 0].tolist()


def shade(batch: Batch) -> float:
    """Return the one value every pixel has."""
    assert batch["x"].min() == batch["x"].max()
    return batch["x"].max().item()


# -- which examples -----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 3))
def test_every_example_once_per_epoch(count: int, size: int, epochs: int) -> None:
    steps = list(alone([count]).batches(size=size, epochs=epochs))
    per_epoch = -(-count // size)
    assert len(steps) == epochs * per_epoch
    for epoch in range(epochs):
        part = [seen(batch) for batch in steps[epoch * per_epoch :][:per_epoch]]
        assert sorted(chain(*part)) == list(range(count))
        assert [len(each) for each in part[:-1]] == [size] * (per_epoch - 1)


def test_the_last_batch_is_short_by_its_mask() -> None:
    masks = [batch["mask"].tolist() for batch in alone([5]).batches(size=2)]
    assert masks == [[1, 1], [1, 1], [1, 0]]


def test_ordered_batches_keep_the_order() -> None:
    assert [seen(batch) for batch in alone([5]).batches(size=2, epochs=2, ordered=True)] == [[0, 1], [2, 3], [4]] * 2


def test_drop_last_leaves_out_what_does_not_fill_a_batch() -> None:
    batches = list(alone([5]).batches(size=2, drop_last=True))
    assert [batch["mask"].tolist() for batch in batches] == [[1, 1], [1, 1]]
    assert len(set(seen(batches[0]) + seen(batches[1]))) == 4


def test_drop_last_keeps_the_only_batch_of_a_small_client() -> None:
    (batch,) = alone([3]).batches(size=5, drop_last=True)
    assert batch["mask"].tolist() == [1, 1, 1, 0, 0]
    assert sorted(seen(batch)) == [0, 1, 2]


@pytest.mark.parametrize("drop_last", [False, True])
def test_drop_last_changes_nothing_where_batches_are_full(drop_last: bool) -> None:
    batches = alone([4]).batches(size=2, drop_last=drop_last, ordered=True)
    assert [seen(batch) for batch in batches] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("steps", [0, 1, 3, 7])
def test_exactly_as_many_steps_as_asked_for(steps: int) -> None:
    batches = alone([5]).batches(size=2, steps=steps)
    assert batches.steps == len(list(batches)) == steps


def test_steps_go_on_with_new_passes() -> None:
    batches = [seen(batch) for batch in alone([4]).batches(size=2, steps=5)]
    counts = Counter(chain(*batches[:4]))
    assert set(counts.values()) == {2}
    assert len(batches[4]) == 2


def test_batches_are_reshuffled_every_pass_round_purpose_client_and_seed() -> None:
    def order(data: ClientData, purpose: str = "train") -> list[int]:
        return list(chain(*(seen(batch) for batch in data.batches(purpose, size=4))))

    first = order(alone([12, 12]))
    assert first == order(alone([12, 12]))
    others = [
        order(alone([12, 12], round=1)),
        order(alone([12, 12]), "other"),
        order(alone([12, 12], client=1)),
        order(alone([12, 12], seed=1)),
        list(chain(*(seen(batch) for batch in list(alone([12, 12]).batches(size=4, epochs=2))[3:]))),
    ]
    assert len({tuple(found) for found in [first, *others]}) == 6


def test_the_first_pass_does_not_depend_on_how_many_follow() -> None:
    short, long = (list(alone([7]).batches(size=3, epochs=epochs)) for epochs in (1, 3))
    assert [seen(batch) for batch in short] == [seen(batch) for batch in long[:3]]


# -- what is in a batch -------------------------------------------------------------------------------------------


def test_images_labels_and_index_belong_together() -> None:
    for batch in alone([3, 6], client=1).batches(size=2):
        for place, index in enumerate(seen(batch)):
            image = 3 + index  # the client's images follow the first client's three
            torch.testing.assert_close(batch["x"][place], torch.full((3, 2, 2), image / 255))
            assert batch["y"][place] == image % 2


def test_normalisation_by_hand() -> None:
    plain = dataset([0], [0])
    pixel = np.zeros((1, 2, 2, 3), np.uint8)
    pixel[0, 1, 0] = (255, 51, 102)  # 1, 0.2 and 0.4 of white
    coloured = Dataset(
        "toy", pixel, plain.labels, plain.test, plain.classes, plain.domains, plain.domain_names,
        mean=(0.5, 0.2, 0.0), std=(0.5, 0.1, 0.2),
    )  # fmt: skip
    image = Pool(coloured, torch.device("cpu")).images(torch.tensor([[0]]))
    assert image.shape == (1, 1, 3, 2, 2)
    # (1 − 0.5) / 0.5, (0.2 − 0.2) / 0.1, (0.4 − 0) / 0.2, and black: −0.5 / 0.5, −0.2 / 0.1, 0
    torch.testing.assert_close(image[0, 0, :, 1, 0], torch.tensor([1.0, 0.0, 2.0]), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(image[0, 0, :, 0, 1], torch.tensor([-1.0, -2.0, 0.0]), rtol=1e-6, atol=1e-6)


def test_facts_are_what_a_client_knows_of_its_training_data() -> None:
    data = dataset([0] * 6, [0, 2, 2, 1, 1, 1], classes=4, domains=[0, 1, 1, 0, 2, 2])
    own = shards(data, [3, 3], test=shares([1, 5]))
    facts = own.facts([1, 0])
    assert {name: value.tolist() for name, value in facts.items()} == {
        "client": [1, 0], "size": [3, 3], "counts": [[0, 3, 0, 0], [1, 0, 2, 0]], "domain": [2, 1],
    }  # fmt: skip
    (batch,) = own.data([1], 0, "test", stacked=False).batches(size=5)
    found = {name: batch[name].tolist() for name in facts}
    assert found == {"client": 1, "size": 3, "counts": [0, 3, 0, 0], "domain": 2}


def test_draws_have_their_shapes_and_change_with_the_step() -> None:
    first, second = alone([4]).batches(size=3)
    assert (first["noise"].shape, first["angle"].shape, first["where"].shape) == ((3, 2), (3, 2), (3,))
    for name in DRAWS:
        assert not first[name].equal(second[name])
    assert first["noise"].min() >= 0
    assert first["noise"].max() < 1


def test_draws_are_keyed_by_name_purpose_client_round_and_step() -> None:
    batches = list(alone([4, 4], client=1, round=3, seed=5).batches("mine", size=2))
    key = torch.tensor(keys.key(5, "noise", "mine", 1, 3) + (1 << 32))
    assert batches[1]["noise"].equal(keys.uniform(key, (2, 2)))


class Dropping(Linear):
    """A backbone whose dropout draws `noise`."""

    def draws(self) -> dict[str, Draw]:
        return {"noise": DRAWS["noise"]}


def test_testing_leaves_out_the_draws_of_dropout_and_no_others() -> None:
    tested = alone([4]).without_dropout(Dropping())
    assert list(tested.draws) == ["angle", "where"]
    (batch,), (whole,) = tested.batches(size=4), alone([4]).batches(size=4)
    assert "noise" not in batch
    assert all(batch[name].equal(whole[name]) for name in batch)


@pytest.mark.parametrize("stacked", [False, True])
def test_one_number_for_the_whole_batch_may_be_drawn(stacked: bool) -> None:
    data = numbered([4, 4], draws={"time": Draw(per="batch")}).data([0, 1] if stacked else [0], 0, stacked=stacked)
    assert [batch["time"].shape for batch in data.batches(size=4)] == [(2,) if stacked else ()]


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_draws_outside_of_batches_are_the_clients_own(kind: Any) -> None:
    stack = numbered([4, 4, 4], seed=5).data([2, 0], 3, stacked=True).draw("groups", (2, 5), kind)
    assert stack.shape == (2, 2, 5)
    for row, client in enumerate((2, 0)):
        own = numbered([4, 4, 4], seed=5).data([client], 3, stacked=False)
        assert own.draw("groups", (2, 5), kind).equal(stack[row])
        list(own.batches(size=4))
        assert own.draw("groups", (2, 5), kind).equal(stack[row])  # batches change nothing
    other = numbered([4, 4, 4], seed=5).data([2], 4, stacked=False)
    assert not other.draw("groups", (2, 5), kind).equal(stack[0])
    assert not numbered([4, 4, 4], seed=5).data([2], 3, stacked=False).draw("slots", (2, 5), kind).equal(stack[0])
    assert own.draw("one").shape == ()


def test_a_client_knows_the_rate_of_its_round() -> None:
    plain = numbered([4, 4])
    assert plain.data([1], 7, stacked=False).rate.tolist() == 1.0
    falling = Training(schedule=Schedule(10, 0, "linear"))
    own = Shards(plain.pool, shares([4, 4]), shares([4, 4]), 0, {}, training=falling)
    assert own.data([0, 1], 7, stacked=True).rate.tolist() == pytest.approx([0.3, 0.3])
    (batch,) = own.data([1], 7, stacked=False).batches(size=4)
    assert batch["rate"].equal(own.data([1], 7, stacked=False).rate)


@pytest.mark.parametrize("sizes", [[5, 5, 5], [2, 7, 4], [1, 9, 3]])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_client_sees_the_same_alone_and_stacked(sizes: list[int], drop_last: bool) -> None:
    stack = list(together(sizes, round=2).batches(size=3, epochs=2, drop_last=drop_last))
    for client in range(3):
        own = list(alone(sizes, client, round=2).batches(size=3, epochs=2, drop_last=drop_last))
        for step, batch in enumerate(own):
            row = tree.row(stack[step], client)
            assert set(row) == set(batch)
            for name in batch:
                assert row[name].equal(batch[name]), name
        assert all(batch["active"][client] == 0 for batch in stack[len(own) :])


def test_a_client_sees_the_same_in_any_company() -> None:
    own = numbered([4, 4, 4], 0, DRAWS)
    (alone_,), (company,) = (own.data(who, 1, stacked=True).batches(size=4) for who in ([2], [0, 2]))
    for name, value in tree.row(company, 1).items():
        assert value.equal(alone_[name][0]), name


def test_active_says_who_still_has_examples() -> None:
    found = [batch["active"].tolist() for batch in together([1, 5]).batches(size=2)]
    assert found == [[1, 1], [0, 1], [0, 1]]


@pytest.mark.parametrize(("sizes", "ragged"), [([4, 4], False), ([3, 4], False), ([2, 4], True), ([5, 4], True)])
def test_ragged_says_whether_a_client_ends_early(sizes: list[int], ragged: bool) -> None:
    assert together(sizes).batches(size=2).ragged is ragged


def test_every_stacked_client_has_its_own_number_of_steps() -> None:
    assert together([1, 5, 4]).batches(size=2, epochs=2).lengths == (2, 6, 4)
    assert together([1, 5, 4]).batches(size=2, epochs=2, drop_last=True).lengths == (2, 4, 4)
    assert together([1, 5, 4]).batches(size=2, steps=3).lengths == (3, 3, 3)


def test_one_client_alone_is_never_ragged() -> None:
    batches = alone([5]).batches(size=2)
    assert (batches.ragged, batches.lengths) == (False, ())


@pytest.mark.parametrize("stacked", [False, True])
def test_a_client_without_test_images_has_one_batch_that_counts_nothing(stacked: bool) -> None:
    own = shards(dataset([0] * 4, [0, 1, 0, 1]), [2, 2], test=[np.zeros(0, np.int64), np.array([1, 3])])
    (batch,) = own.data([0, 1] if stacked else [0], 0, "test", stacked=stacked).batches("test", size=2, ordered=True)
    mask = batch["mask"].tolist()
    assert mask == ([[0, 0], [1, 1]] if stacked else [0, 0])
    assert batch["x"].isfinite().all()


def test_training_examples_are_counted_test_examples_are_not() -> None:
    data = together([2, 5])
    data.batches(size=2, epochs=3)
    assert data.pool.seen == 21
    data.batches("test", size=2)
    assert data.pool.seen == 21


def test_a_batch_is_a_function_of_its_step() -> None:
    batches = together([2, 5]).batches(size=2)
    for step, batch in enumerate(batches):
        again = batches.at(batches.tensors, torch.tensor(step))
        assert all(again[name].equal(batch[name]) for name in batch)


# -- map ----------------------------------------------------------------------------------------------------------


def brighter(tensors: Tree, batch: Batch) -> Batch:
    return batch | {"x": batch["x"] + tensors["light"]}


def doubled(tensors: Tree, batch: Batch) -> Batch:
    return batch | {"x": 2 * batch["x"]}


def test_map_changes_every_batch_and_composes_in_order() -> None:
    data = alone([1])
    changed = (
        data.map(brighter, {"light": torch.tensor(0.25)}).map(doubled, {}).map(brighter, {"light": torch.tensor(1.0)})
    )
    (batch,) = changed.batches(size=1)
    assert shade(batch) == 1.5  # 2 (0 + 0.25) + 1
    (plain,) = data.batches(size=1)
    assert shade(plain) == 0


def test_mapped_tensors_travel_with_the_batches() -> None:
    batches = alone([1]).map(brighter, {"light": torch.tensor(0.25)}).batches(size=1)
    (name,) = (name for name in batches.tensors if name.endswith("light"))
    other = batches.at(batches.tensors | {name: torch.tensor(0.5)}, torch.tensor(0))
    assert shade(other) == 0.5


def test_batches_of_the_same_kind_share_a_key() -> None:
    own = numbered([4, 4], 0, DRAWS)
    first, second = (own.data([0, 1], number, stacked=True).batches(size=2) for number in range(2))
    assert first.key == second.key
    assert hash(first.key) == hash(second.key)
    assert first.key != own.data([0, 1], 0, stacked=True).batches(size=3).key
    assert first.key != own.data([0, 1], 0, stacked=True).map(doubled, {}).batches(size=2).key


def test_shards_know_how_many_clients_there_are() -> None:
    assert len(numbered([1, 2, 3])) == 3
