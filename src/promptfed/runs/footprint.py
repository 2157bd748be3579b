"""The least memory that training a model takes, known from the shapes of its weights, before any of them is made."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.memory import require
from promptfed.core.method import Method, Task
from promptfed.data.batches import Shards
from promptfed.federation.loop import rng_for
from promptfed.runs import memory

COPIES = 2  # of all that a client has while it trains: as it came, and as it has become


def require_room(method: Method, task: Task, shards: Shards, width: int) -> None:
    """Refuse a model that cannot be trained for `width` clients at a time in the memory of the device.

    Momentum, activations and the answers of other clients come on top. Finding shapes may take torch two seconds,
    so this is for runs of which some key is far above its default.
    """
    device = shards.pool.x.device
    there = float(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else None
    require(least_bytes(method, task, shards, width), there=there)


def least_bytes(method: Method, task: Task, shards: Shards, width: int) -> int:
    """Return the bytes of the server's tree, and of `width` clients' trees while they train; 0 if they are not known.

    The method makes its trees itself, of tensors that have a shape and no numbers.
    """
    for without_numbers in (_meta, _fake):
        try:
            with without_numbers():
                server = method.init_server(task, rng_for(0, "server"))
                down = method.download(task, server, torch.zeros(1, dtype=torch.int64, device="cpu"))
                personal = method.init_client(task, shards.data([0], 0, stacked=False), rng_for(0, 0))
        except PromptFedError:
            raise
        except Exception as error:
            if memory.ran_out(error):  # a single weight is beyond all memory
                raise
            continue  # a method may look at numbers, which are not there
        return tree.nbytes(server) + COPIES * width * (tree.nbytes(down) + tree.nbytes(personal))
    return 0


def _meta() -> AbstractContextManager[Any]:
    return torch.device("meta")


def _fake() -> AbstractContextManager[Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)
