"""What a GPU can do."""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


def has_triton(x: Tensor) -> bool:
    """Say whether kernels in Triton can take x: float32 on a chip they were compiled for, NVIDIA's since Ampere."""
    return x.dtype == torch.float32 and runs_triton(x)


def runs_triton(x: Tensor) -> bool:
    """Say whether x lies on such a chip, whatever its numbers are."""
    return x.is_cuda and _is_known(x.device)


@cache
def _is_known(device: torch.device) -> bool:
    nvidia = find_spec("triton") is not None and torch.version.cuda is not None
    return nvidia and torch.cuda.get_device_capability(device) >= (8, 0)
