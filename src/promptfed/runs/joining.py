"""Joining the other processes of a run: those that torchrun, or `promptfed run --gpus`, has started."""

import os

import torch

from promptfed.core.errors import PromptFedError
from promptfed.core.group import Group
from promptfed.runs.planning import pick_device


def join(device: str, patience: float) -> Group:
    """Meet the others; on a machine with GPUs each takes one, unless the recipe's device is the CPU.

    A process that has not been heard of for `patience` seconds is taken for dead.
    """
    where, local = pick_device(device), int(os.environ.get("LOCAL_RANK", "0"))
    if where.type == "cuda":
        if where.index is not None:
            raise PromptFedError(f"device={device} is one GPU, and each process takes one of its own; set device=cuda.")
        check_gpus(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        torch.cuda.set_device(local)
        where = torch.device("cuda", local)
    return Group(where, local, patience)


def check_gpus(wanted: int) -> None:
    """Refuse more processes on this machine than it has GPUs."""
    found = torch.cuda.device_count()
    if not found:
        raise PromptFedError(
            "--gpus needs GPUs, and torch sees none here; --processes shares the run between processes on the CPU."
        )
    if wanted > found:
        raise PromptFedError(
            f"A process for each GPU: {wanted} are too many for the {found} of this machine; use {found}."
        )
