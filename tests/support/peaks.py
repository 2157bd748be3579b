"""How much memory the coordinator's processes take while a run goes on."""

import contextlib
from pathlib import Path

from support.loopback import Loopback


class Peaks(dict[str, int]):
    """The most memory, in MB, that each of the coordinator's processes has taken."""

    def look(self, federation: Loopback) -> bool:
        """Look once; return False, to be looked again."""
        for module in ("server_train", "runner_process"):
            for number in federation.of_federation("nvflare", module):
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{number}/status").read_text()
                    peak = int(status.split("VmHWM:")[1].split()[0]) // 1024
                    self[module] = max(self.get(module, 0), peak)
        return False
