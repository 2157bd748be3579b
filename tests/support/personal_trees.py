"""Personal trees that are told apart by one number."""

import torch

from promptfed.core.tree import Tree
from promptfed.federation.store import Store

BYTES = 2**-20  # in megabytes


def fresh(client: int) -> Tree:
    return holding(-1.0 - client)


def holding(value: float, size: int = 3) -> Tree:
    return {"prompt.up": torch.full((size,), value), "velocity": torch.full((2, 2), -value)}


def value(found: Tree) -> float:
    """Return the one number a tree was filled with, having checked the whole of it."""
    number = float(found["prompt.up"][0])
    assert list(found) == ["prompt.up", "velocity"]
    assert (found["prompt.up"] == number).all()
    assert found["velocity"].equal(torch.full((2, 2), -number))
    return number


def put(store: Store, **values: float) -> None:
    """Finish a round in which client `c<number>` arrives at the value given."""
    for client, number in values.items():
        store.put(int(client[1:]), holding(number))
    store.seal()
