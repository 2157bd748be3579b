"""Keyed randomness: pinned to SplitMix64's published numbers, then its statistics."""

import hashlib
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from promptfed.core import keys

MASK = 2**64 - 1
MANY = 200_000
Draw = Callable[[Tensor, tuple[int, ...]], Tensor]


def splitmix(key: int, count: int) -> list[int]:
    """Return SplitMix64's first numbers in plain integers, signed as torch shows them."""
    numbers = []
    for step in range(1, count + 1):
        z = (key + step * 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        numbers.append(z - 2**64 if z >= 2**63 else z)
    return numbers


def one(*parts: int | str) -> Tensor:
    return torch.tensor(keys.key(*parts))


def test_bits_are_the_published_numbers() -> None:
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    found = keys.bits(torch.tensor(1234567), (5,)).tolist()
    assert [number & MASK for number in found] == published


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 6))
def test_bits_are_splitmix64_of_any_key(key: int, count: int) -> None:
    assert keys.bits(torch.tensor(key), (count,)).tolist() == splitmix(key & MASK, count)


def test_uniform_takes_the_top_24_bits_of_each_half_the_lower_half_first() -> None:
    halves = [half for number in splitmix(7, 3) for half in (number & 0xFFFFFFFF, (number & MASK) >> 32)]
    expected = [(half >> 8) / 2**24 for half in halves]
    assert keys.uniform(torch.tensor(7), (6,)).tolist() == expected
    assert keys.uniform(torch.tensor(7), (5,)).tolist() == expected[:5]


def test_a_key_is_63_bits_of_the_parts_in_order() -> None:
    digest = hashlib.blake2b(b"1\x1fbatches\x1f2", digest_size=8).digest()
    assert keys.key(1, "batches", 2) == int.from_bytes(digest, "little") >> 1
    assert len({keys.key(1, 2), keys.key(2, 1), keys.key(12), keys.key("a", "bc"), keys.key("ab", "c")}) == 5
    assert all(0 <= keys.key(number) < 2**63 for number in range(100))


def test_generators_of_a_key_agree_and_of_two_keys_differ() -> None:
    first, again, other = (torch.rand(8, generator=keys.generator(0, "x", number)) for number in (1, 1, 2))
    assert first.equal(again)
    assert not first.equal(other)


@pytest.mark.parametrize("draw", [keys.bits, keys.uniform, keys.normal])
def test_the_key_decides(draw: Draw) -> None:
    assert draw(one("a"), (4, 3)).equal(draw(one("a"), (4, 3)))
    assert not draw(one("a"), (4, 3)).equal(draw(one("b"), (4, 3)))


@pytest.mark.parametrize("draw", [keys.bits, keys.uniform, keys.normal])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (0,)])
def test_stacked_keys_are_single_keys_row_by_row(draw: Draw, shape: tuple[int, ...]) -> None:
    stacked = torch.tensor([[keys.key(row, column) for column in range(3)] for row in range(2)])
    found = draw(stacked, shape)
    assert found.shape == (2, 3, *shape)
    assert found[1, 2].equal(draw(stacked[1, 2], shape))


@pytest.mark.parametrize("draw", [keys.bits, keys.uniform, keys.normal])
def test_a_single_key_gives_a_single_number(draw: Draw) -> None:
    assert draw(one("a"), ()).shape == ()
    assert draw(one("a"), ()) == draw(one("a").view(1), ())[0] == draw(one("a"), (1,))[0]


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    assert keys.uniform(one("a"), (5, 2)).flatten()[:6].equal(keys.uniform(one("a"), (6,)))
    assert keys.normal(one("a"), (9,))[:4].equal(keys.normal(one("a"), (4,)))


def test_types_and_range() -> None:
    numbers = keys.uniform(one("range"), (MANY,))
    assert numbers.dtype == keys.normal(one("range"), (2,)).dtype == torch.float32
    assert 0 <= numbers.min() < 1e-3
    assert 1 - 1e-3 < numbers.max() < 1


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_uniform_moments(name: str) -> None:
    numbers = keys.uniform(one("moments", name), (MANY,)).double()
    # five standard errors: Var[u] = 1/12; Var[(u - 1/2)²] = 1/80 - 1/144 = 1/180
    assert abs(numbers.mean() - 1 / 2) < 5 * math.sqrt(1 / 12 / MANY)
    assert abs(((numbers - 0.5) ** 2).mean() - 1 / 12) < 5 * math.sqrt(1 / 180 / MANY)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_normal_moments(name: str) -> None:
    numbers = keys.normal(one("moments", name), (MANY,)).double()
    # five standard errors: Var[z] = 1, Var[z²] = 2, Var[z³] = 15, Var[z⁴] = 105 - 9 = 96
    assert abs(numbers.mean()) < 5 * math.sqrt(1 / MANY)
    assert abs((numbers**2).mean() - 1) < 5 * math.sqrt(2 / MANY)
    assert abs((numbers**3).mean()) < 5 * math.sqrt(15 / MANY)
    assert abs((numbers**4).mean() - 3) < 5 * math.sqrt(96 / MANY)
    assert numbers.isfinite().all()


@pytest.mark.parametrize("draw", [keys.uniform, keys.normal])
def test_two_keys_are_uncorrelated(draw: Draw) -> None:
    first, near, far = (draw(key, (MANY,)).double() for key in (one("a"), one("a") + (1 << 32), one("b")))
    for other in (near, far, first.roll(1)):
        correlation = torch.corrcoef(torch.stack([first, other]))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(MANY)


def test_keys_are_left_as_they_were() -> None:
    key = torch.tensor([5, 6])
    keys.normal(key, (3,))
    assert key.tolist() == [5, 6]
