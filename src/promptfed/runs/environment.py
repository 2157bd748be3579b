"""Where a run happens: facts about the machine, and the precision of matrix products."""

import datetime
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from promptfed.core.ranks import ALONE, Ranks
from promptfed.core.version import __version__


def environment(device: torch.device, ranks: Ranks = ALONE) -> dict[str, object]:
    """Return the content of env.json."""
    on_gpu = device.type == "cuda"
    return {
        "promptfed": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine(),
        **({"processes": ranks.size} if ranks.size > 1 else {}),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Multiply matrices on a GPU in tf32 or in fp32 within the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
