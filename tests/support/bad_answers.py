"""Answers that a malicious site gives in place of an honest one, and what is said of each when it is refused."""

from collections.abc import Callable

import torch

from promptfed.sites import wire
from promptfed.sites.wire import Message

ANSWER_MB = 8  # the largest answer that the federations of these tests accept
BIAS = "up.head.bias"
Tampering = Callable[[bytes], bytes]


def edited(change: Callable[[Message], Message]) -> Tampering:
    """Return a tampering with the opened answer."""
    return lambda data: wire.pack(change(wire.unpack(data, 2**30)))


def with_head(**more: object) -> Tampering:
    """Return a tampering with what an answer says about itself."""
    return edited(lambda message: Message(message.head | more, message.tree))


def with_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Tampering:
    """Return a tampering with one tensor."""
    return edited(lambda message: Message(message.head, message.tree | {name: change(message.tree[name])}))


def enlarged(more: float) -> Tampering:
    """Return a tampering that adds so much to every number."""

    def change(message: Message) -> Message:
        large = {name: value + more for name, value in message.tree.items() if name.startswith("up.")}
        return Message(message.head, message.tree | large)

    return edited(change)


BAD: dict[str, tuple[Tampering, str]] = {
    "nan": (with_tensor(BIAS, lambda value: value * float("nan")), f'"{BIAS}" holds a number that is not finite'),
    "infinite": (with_tensor(BIAS, lambda value: value + float("inf")), "not finite"),
    "shape": (with_tensor(BIAS, lambda value: value[:1]), f'"{BIAS}" has shape [1], not [2]'),
    "type": (with_tensor(BIAS, lambda value: value.double()), f'"{BIAS}" has type torch.float64, not torch.float32'),
    "foreign name": (edited(lambda m: Message(m.head, m.tree | {"up.more": m.tree[BIAS]})), "not expected ['up.more']"),
    "missing name": (
        edited(lambda m: Message(m.head, {k: v for k, v in m.tree.items() if k != BIAS})),
        f"missing ['{BIAS}']",
    ),
    "weight": (with_tensor("weight", lambda value: value * 100), "its weight is 1200, but it declared 12"),
    "counts": (with_tensor("tested.correct", lambda value: value + 100), "correct predictions of 4"),
    "more tests": (
        with_tensor("tested.count", lambda value: value + 996),
        "it counts 1000 test images, but it declared 4",
    ),
    "oversize": (lambda data: data + bytes((ANSWER_MB + 1) * 2**20), f"more than the {ANSWER_MB * 2**20:,} allowed"),
    "garbage": (lambda data: b"garbage!" * 9, "bytes, more than the 1,048,576 allowed"),
    "another's": (with_head(site="north"), "its site differs from the request's"),
    "another round's": (with_head(round=0), "its round differs from the request's"),
    "replayed": (with_head(nonce="0" * 32), "its nonce differs from the request's"),
    "countless images": (with_head(images=10**400), "how many images"),
    "no images": (with_head(images="many"), "how many images"),
    "error": (edited(lambda m: Message(m.head | {"error": "out of memory"}, {})), "it says: out of memory"),
}
IMPLAUSIBLE: dict[str, tuple[Tampering, str]] = {
    f"plus {more:g}": (enlarged(more), "more than 1000 times the other sites' median") for more in (1e4, 1e30, 3e38)
}
