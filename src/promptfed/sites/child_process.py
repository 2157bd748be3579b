"""A worker as a child process: requests and answers are frames on its pipes, and a dead child is restarted."""

import contextlib
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from promptfed.core.files import make_private, private


def write_frame(file: IO[bytes], data: bytes) -> None:
    """Write the length and the data."""
    file.write(len(data).to_bytes(8, "little") + data)
    file.flush()


def read_frame(file: IO[bytes]) -> bytes | None:
    """Return the next data, or None at the end of the stream."""
    size = file.read(8)
    if len(size) < 8:
        return None
    wanted = int.from_bytes(size, "little")
    data = file.read(wanted)
    return data if len(data) == wanted else None


class Child:
    """A process that answers one request at a time. If it dies, that request fails and the next one restarts it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command, self.log = list(command), log
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process, if it is not running."""
        with self._lock:
            self._running()

    def ask(self, request: bytes) -> bytes:
        """Return the answer to the request."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                write_frame(process.stdin, request)
                answer = read_frame(process.stdout)
            except (OSError, ValueError):
                answer = None
            if answer is None:
                self._end(process)
                raise OSError(f"its worker ended with code {process.returncode}")
            return answer

    def _running(self) -> "subprocess.Popen[bytes]":
        if self.process is None or self.process.poll() is not None:
            if self.process is not None:
                self._end(self.process)
            make_private(self.log.parent)
            with open(self.log, "ab", opener=private) as log:
                self.process = subprocess.Popen(
                    self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, umask=0o077
                )
            self.starts += 1
        return self.process

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()
        process.wait()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        process = self.process
        if process is not None:
            process.kill()
            process.wait()
            if self._lock.acquire(timeout=5):
                self._end(process)
                self._lock.release()
