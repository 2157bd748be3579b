"""Secure aggregation: the sum is exact, dropouts are made up for, and a masked row says nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.federation.guards import secure
from promptfed.federation.guards.secure import SecureSum, decode, encode, needed, recover, secure_sum, split
from support.toy_round import apply

RESOLUTION = 2.0**-32


def numbers(clients: int, wide: int, seed: int = 0) -> dict[int, secure.Numbers]:
    rng = np.random.default_rng(seed)
    return {3 * client: rng.integers(0, 2**64, wide, np.uint64) for client in range(clients)}


def plain(rows: dict[int, secure.Numbers]) -> secure.Numbers:
    total: secure.Numbers = np.sum(np.stack(list(rows.values())), axis=0, dtype=np.uint64)
    return total


def opening(
    own: secure.Secrets,
    keys: dict[int, secure.Keys],
    sealed: dict[int, dict[int, bytes]],
    answers: dict[int, secure.Numbers],
) -> dict[int, int]:
    """Return what one client of a session with threshold 3 reveals."""
    mine = {client: texts[own.client] for client, texts in sealed.items()}
    return secure.reveal(secure.unseal(own, keys, mine), answers.keys(), 3)


# -- the sum --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [2, 3, 7])
def test_masks_cancel_in_the_sum(clients: int) -> None:
    rows = numbers(clients, 50)
    assert secure_sum(rows, needed(clients, 0.5)).tolist() == plain(rows).tolist()


@pytest.mark.parametrize("dropped", [{0}, {3, 12}, {0, 6, 15}], ids=str)
def test_who_drops_out_is_left_out_of_the_sum_and_nobody_else(dropped: set[int]) -> None:
    rows = numbers(7, 50)
    left = {client: row for client, row in rows.items() if client not in dropped}
    assert secure_sum(rows, 4, dropped).tolist() == plain(left).tolist()


def test_too_many_dropouts_get_a_sentence() -> None:
    with pytest.raises(PromptFedError, match=r"Only 3 clients are left, and secure aggregation needs 4"):
        secure_sum(numbers(7, 5), 4, {0, 3, 6, 9})


def test_some_may_go_between_answering_and_revealing() -> None:
    rows = numbers(5, 20)
    own = {client: secure.fresh(client) for client in rows}
    keys = {client: secure.public(one) for client, one in own.items()}
    sealed = {client: secure.share(one, keys, 3) for client, one in own.items()}
    answers = {client: secure.masked(own[client], keys, rows[client]) for client in (0, 3, 6, 9)}  # 12 never answers
    opened = {client: opening(own[client], keys, sealed, answers) for client in (0, 6, 9)}  # 3's answer still counts
    expected = plain({client: rows[client] for client in answers})
    assert secure.unmask(keys, answers, opened, 3).tolist() == expected.tolist()
    with pytest.raises(PromptFedError, match="Only 2 clients are left"):
        secure.unmask(keys, answers, {client: opened[client] for client in (0, 6)}, 3)


def test_a_share_that_does_not_open_is_made_up_for_by_others_while_enough_are_left() -> None:
    rows = numbers(4, 5)
    own = {client: secure.fresh(client) for client in rows}
    keys = {client: secure.public(one) for client, one in own.items()}
    sealed = {client: secure.share(one, keys, 3) for client, one in own.items()}
    answers = {client: secure.masked(own[client], keys, rows[client]) for client in rows}

    def opened() -> dict[int, dict[int, int]]:
        return {client: opening(own[client], keys, sealed, answers) for client in rows}

    sealed[9][0] = bytes(len(sealed[9][0]))
    assert 9 not in opened()[0]
    assert secure.unmask(keys, answers, opened(), 3).tolist() == plain(rows).tolist()
    sealed[9][3] = bytes(len(sealed[9][3]))
    with pytest.raises(PromptFedError, match="Too few shares of client 9's secrets can be opened"):
        secure.unmask(keys, answers, opened(), 3)


def test_wrong_shares_are_noticed() -> None:
    rows = numbers(4, 5)
    own = {client: secure.fresh(client) for client in rows}
    keys = {client: secure.public(one) for client, one in own.items()}
    sealed = {client: secure.share(one, keys, 3) for client, one in own.items()}
    answers = {client: secure.masked(own[client], keys, rows[client]) for client in (0, 3, 6)}
    opened = {client: opening(own[client], keys, sealed, answers) for client in answers}
    opened[3][9] += 1
    with pytest.raises(PromptFedError, match="shares of client 9's key do not fit"):
        secure.unmask(keys, answers, opened, 3)


@pytest.mark.parametrize(("clients", "threshold", "count"), [(10, 0.5, 6), (3, 0.5, 2), (2, 0.5, 2), (10, 1.0, 10)])
def test_how_many_must_stay(clients: int, threshold: float, count: int) -> None:
    assert needed(clients, threshold) == count


# -- what a masked row tells ----------------------------------------------------------------------------------------


def test_a_masked_row_looks_like_noise_whatever_is_behind_it() -> None:
    own = {client: secure.fresh(client) for client in range(3)}
    keys = {client: secure.public(one) for client, one in own.items()}
    wide = 20_000
    for hidden in (np.zeros(wide, np.uint64), np.full(wide, 2**40, np.uint64)):
        row = secure.masked(own[1], keys, hidden)
        counts = np.bincount(row.view(np.uint8), minlength=256)
        expected = 8 * wide / 256
        # chi-square with 255 degrees of freedom: above 400 less than once in ten million draws
        assert ((counts - expected) ** 2 / expected).sum() < 400
        assert len(np.unique(row)) == wide


def test_without_its_own_mask_a_row_is_still_hidden_and_without_the_pairs_too() -> None:
    own = {client: secure.fresh(client) for client in range(3)}
    keys = {client: secure.public(one) for client, one in own.items()}
    hidden = np.zeros(100, np.uint64)
    row = secure.masked(own[0], keys, hidden)
    alone = secure.masked(own[0], {0: keys[0]}, hidden)  # its own mask and nobody else's
    assert alone.any()
    assert (row - alone).any()


def test_only_the_receiver_opens_a_share() -> None:
    own = {client: secure.fresh(client) for client in range(3)}
    keys = {client: secure.public(one) for client, one in own.items()}
    sealed = secure.share(own[0], keys, 2)
    assert list(secure.unseal(own[2], keys, {0: sealed[2]})) == [0]
    assert secure.unseal(own[2], keys, {0: sealed[1]}) == {}


def test_a_client_reveals_one_share_of_each_and_never_both() -> None:
    held = {0: secure.Held(10, 20), 1: secure.Held(11, 21), 2: secure.Held(12, 22)}
    assert secure.reveal(held, {0, 2}, 2) == {0: 20, 1: 11, 2: 22}
    with pytest.raises(PromptFedError, match="Only 1 clients are left"):
        secure.reveal(held, {0}, 2)


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)])
def test_keys_that_agree_on_nothing_are_not_sound(point: bytes) -> None:
    good = secure.public(secure.fresh(0))
    assert secure.sound(good)
    assert not secure.sound(secure.Keys(good.sealing, point))
    assert not secure.sound(secure.Keys(point, good.masking))


# -- sharing a secret -----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.data())
def test_any_enough_shares_give_the_secret_back(secret: bytes, threshold: int, data: st.DataObject) -> None:
    places = list(range(1, 9))
    shares = dict(zip(places, split(secret, places, threshold), strict=True))
    chosen = data.draw(st.lists(st.sampled_from(places), min_size=threshold, max_size=threshold, unique=True))
    assert recover({place: shares[place] for place in chosen}) == secret


def test_too_few_shares_give_something_else() -> None:
    secret = bytes(range(32))
    shares = split(secret, [1, 2, 3], 3)
    assert recover({1: shares[0], 2: shares[1]}) != secret


# -- fixed point, and the guard -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=20))
def test_fixed_point_is_off_by_half_a_resolution_at_most(values: list[float]) -> None:
    exact = torch.tensor(values, dtype=torch.float64)
    assert float((decode(encode(exact, 3)) - exact).abs().max()) <= RESOLUTION / 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.0**31])
def test_a_number_that_does_not_fit_gets_a_sentence(value: float) -> None:
    with pytest.raises(PromptFedError, match=r"holds numbers below 1\.07e\+09.*guards\.clip"):
        encode(torch.tensor([[value]], dtype=torch.float64), 2)


def test_the_guard_hands_over_the_weighted_mean_as_one_row() -> None:
    up = {"w": torch.randn(4, 3, 2), "scale": torch.randn(4)}
    weights = torch.tensor([1.0, 10.0, 100.0, 5.0])
    clients, found, total = apply(SecureSum(), up, weights=weights)
    assert (clients.tolist(), total.tolist()) == ([0, 1, 2, 3], [116.0])
    assert {name: tuple(value.shape) for name, value in found.items()} == {"w": (1, 3, 2), "scale": (1,)}
    exact = tree.mean({name: value.double() for name, value in up.items()}, weights.double())
    for name, value in exact.items():
        torch.testing.assert_close(found[name][0].double(), value, rtol=1e-7, atol=1e-7)


def test_the_mean_is_the_plain_mean_to_the_resolution() -> None:
    up = {"w": torch.randn(5, 40, dtype=torch.float64)}
    weights = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0], dtype=torch.float64)
    _, found, _ = apply(SecureSum(), up, weights=weights)
    off = (found["w"][0] - tree.mean(up, weights)["w"]).abs().max()
    assert float(off) <= 5 * RESOLUTION / 2 / 14  # five roundings, divided by the sum of the weights


def test_the_bytes_are_those_of_the_messages() -> None:
    clients, wide = 5, 30
    own = {client: secure.fresh(client) for client in range(clients)}
    keys = {client: secure.public(one) for client, one in own.items()}
    sealed = secure.share(own[0], keys, 3)
    row = secure.masked(own[0], keys, np.zeros(wide + 1, np.uint64))
    key_bytes = len(keys[0].sealing) + len(keys[0].masking)
    others = sum(len(text) for client, text in sealed.items() if client)
    down, up = SecureSum().traffic(wide, clients)
    assert up == key_bytes + others + row.nbytes + clients * secure.SHARE
    assert down == (clients - 1) * key_bytes + others + clients * 4


def test_without_ciphers_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure, "find_spec", lambda name: None)
    with pytest.raises(PromptFedError, match=r'pip install "promptfed\[secure\]"'):
        secure.require_cryptography()
