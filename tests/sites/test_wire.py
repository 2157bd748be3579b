"""What travels comes out as it went in; what should not travel is refused, whatever it is."""

import contextlib

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from promptfed.core.version import __version__
from promptfed.sites import wire
from promptfed.sites.wire import Message, Refused

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=8),
        st.tuples(st.lists(st.integers(0, 3), max_size=3), st.sampled_from(TYPES)),
        max_size=4,
    )
)
def test_a_message_comes_back_as_it_was(content: dict[str, tuple[list[int], torch.dtype]]) -> None:
    tree = {name: torch.randn(shape).to(dtype) for name, (shape, dtype) in content.items()}
    message = wire.unpack(wire.pack(Message({"round": 3, "site": "nörd"}, tree)), 2**20)
    assert message.head == {"format": 1, "promptfed": __version__, "round": 3, "site": "nörd"}
    assert list(message.tree) == list(tree)
    assert wire.shapes(message.tree) == wire.shapes(tree)
    assert all(torch.equal(message.tree[name], value) for name, value in tree.items())
    assert all(value.data_ptr() % 64 == 0 for value in message.tree.values())  # where sums round as at the sender's


def test_tensors_that_share_memory_or_are_views_travel_too() -> None:
    row = torch.arange(3.0)
    tree = wire.unpack(wire.pack(Message({}, {"a": row.expand(2, 3), "b": row, "c": row})), 2**20).tree
    assert tree["a"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert tree["b"].tolist() == tree["c"].tolist() == [0, 1, 2]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_either_a_message_or_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        wire.unpack(data, 2**20)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_damaged_message_is_read_or_refused_but_never_breaks(data: st.DataObject) -> None:
    whole = bytearray(wire.pack(Message({"round": 1}, {"w": torch.ones(4)})))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(Refused):
        message = wire.unpack(bytes(whole), 2**20)
        assert all(isinstance(value, torch.Tensor) for value in message.tree.values())


def test_a_message_over_the_limit_is_refused() -> None:
    data = wire.pack(Message({}, {"w": torch.zeros(100)}))
    assert wire.unpack(data, len(data)).tree["w"].shape == (100,)
    with pytest.raises(Refused, match=f"it has {len(data)} bytes, more than the {len(data) - 1} allowed"):
        wire.unpack(data, len(data) - 1)


def test_names_shapes_types_and_finiteness_are_checked() -> None:
    tree = {"w": torch.zeros(2, 3), "n": torch.tensor(4)}
    expected = wire.shapes(tree)
    wire.check(tree, expected)
    for bad, sentence in (
        ({"w": torch.zeros(2, 3)}, r"missing \['n'\], not expected \[\]"),
        (tree | {"x": torch.zeros(1)}, r"missing \[\], not expected \['x'\]"),
        (tree | {"w": torch.zeros(3, 2)}, r'"w" has shape \[3, 2\], not \[2, 3\]'),
        (tree | {"n": torch.tensor(4.0)}, '"n" has type torch.float32, not torch.int64'),
        (tree | {"w": torch.full((2, 3), float("nan"))}, '"w" holds a number that is not finite'),
    ):
        with pytest.raises(Refused, match=sentence):
            wire.check(bad, expected)
