"""What sites say about themselves before their first round: asked once, checked, and kept in the run folder."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median

import torch

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_sealed
from promptfed.results.folder.parts import read_json
from promptfed.results.folder.record import Line
from promptfed.sites.messenger import RETRY_SECONDS, Messenger
from promptfed.sites.settings import Federation
from promptfed.sites.versions import PACKED_BY
from promptfed.sites.wire import Message, Refused

MOST = 2**40  # images, or the weight of a site: more is nonsense


def introduce(path: Path, messenger: Messenger, clients: range, others: Line | None = None) -> Line:
    """Return what sites say about themselves: asked before their first round, then read from `path`.

    They must agree with each other, and with `others` if some have come before them.
    """
    if path.exists():
        known = read_json(path)
        assert known is not None
        return dict(known)
    doing = "continue" if others else "begin"
    answers, names = _ask(messenger, clients, doing), messenger.federation.sites
    first: Line = others or answers[0].head
    _check_agreement(answers, first, names)
    _check_shares(answers, others, messenger.federation, doing)
    sites: Line = {
        "classes": first["classes"],
        "shape": first["shape"],
        "weights": [float(answer.tree["weight"]) for answer in answers.values()],
        "sites": {
            names[client]: {key: answer.head.get(key) for key in ("train", "test", "sources", PACKED_BY)}
            for client, answer in answers.items()
        },
    }
    write_sealed(path, sites)
    return sites


def _ask(messenger: Messenger, clients: range, doing: str) -> dict[int, Message]:
    """Return the clients' introductions, in order; wait for those that are not there yet."""
    asked = {client: Message({"kind": "hello", "round": 0}, {}) for client in clients}
    answers, ends = dict[int, Message](), time.monotonic() + messenger.federation.patience_seconds
    while len(answers) < len(asked):
        if out := sorted(messenger.leave_out(clients, 0, 0)):
            raise PromptFedError(
                f"The run cannot {doing}: {' and '.join(out)} must take part, and is revoked; let it in again with: "
                f"promptfed sites renew {' '.join(out)}"
            )
        missing = {client: message for client, message in asked.items() if client not in answers}
        answers |= messenger.gather(missing, 0, partial(_check, messenger.federation.max_images), 0)
        if messenger.events.refused or (len(answers) < len(asked) and time.monotonic() > ends):
            raise PromptFedError(f"The run cannot {doing}: {messenger.complaints()}")
        if len(answers) < len(asked):
            time.sleep(RETRY_SECONDS)
    return dict(sorted(answers.items()))


def _check(most: int, site: str, answer: Message) -> None:
    """Refuse an introduction that is incomplete or impossible."""
    classes, shape = answer.head.get("classes"), answer.head.get("shape")
    if not (isinstance(classes, list) and classes and all(isinstance(name, str) for name in classes)):
        raise Refused("it does not name its classes")
    if not all(name.isprintable() for name in classes):
        raise Refused("its classes have names that cannot be shown")
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(side) is int for side in shape)):
        raise Refused("it does not say how large its images are")
    for key, what in (("train", "training"), ("test", "test")):
        count = answer.head.get(key)
        if type(count) is not int or count < 0:
            raise Refused(f"it does not say how many {what} images it has")
        if count > most:
            raise Refused(f"it declares {count:,} {what} images, more than max_images={most:,} in fed.toml")
    sources = answer.head.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(digest, str) for digest in sources.values()):
        raise Refused("its digests of images and weights are not digests")
    weight = answer.tree.get("weight")
    if weight is None or weight.ndim or weight.dtype != torch.float32 or not 0 < float(weight) < MOST:
        raise Refused("its weight is not a positive number")


def _check_shares(answers: Mapping[int, Message], others: Line | None, federation: Federation, doing: str) -> None:
    """Refuse a site that would count for far more than the others: it would own the mean."""
    before: list[float] = others["weights"] if others else []
    for client, answer in answers.items():
        weight = float(answer.tree["weight"])
        rest = [*before, *(float(other.tree["weight"]) for number, other in answers.items() if number != client)]
        if rest and weight > federation.max_ratio * median(rest):
            raise PromptFedError(
                f"The run cannot {doing}: {federation.sites[client]} declares {weight:,.0f} images, more than "
                f"max_ratio={federation.max_ratio:g} times the other sites' median of {median(rest):,.0f}; check its "
                "data, or raise max_ratio in fed.toml."
            )


def _check_agreement(answers: Mapping[int, Message], first: Line, names: tuple[str, ...]) -> None:
    """Refuse sites whose classes or image sizes differ."""
    for client, answer in answers.items():
        for key, what in (("classes", "classes"), ("shape", "image size")):
            if answer.head[key] != first[key]:
                raise PromptFedError(
                    f"{names[client]} and {names[0]} differ in their {what}: {answer.head[key]} and {first[key]}; "
                    + ("name all classes in fed.toml." if key == "classes" else "set data.size in the recipe.")
                )
