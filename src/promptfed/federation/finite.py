"""Whether a round's numbers are finite, asked without waiting for a GPU."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FiniteCheck:
    """Whether the numbers after a round are finite; the answer is on its way to the host."""

    round: int
    each: Tensor
    arrived: torch.cuda.Event | None  # waiting for it does not wait for what the GPU was given since

    @classmethod
    def begin(cls, t: int, each: Tensor) -> "FiniteCheck":
        """Send the answer to the host without waiting for it."""
        if not each.is_cuda:
            return cls(t, each, None)
        host = torch.empty_like(each, device="cpu", pin_memory=True).copy_(each, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return cls(t, host, arrived)

    def finite(self) -> bool:
        """Wait for the answer and return it."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return bool(self.each.all())
