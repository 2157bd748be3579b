"""A site's worker as a process of its own: it reads requests from standard input and writes the answers."""

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from promptfed.core.errors import PromptFedError
from promptfed.core.files import make_private
from promptfed.sites.child_process import read_frame, write_frame
from promptfed.sites.failures import FULL, describe_failure
from promptfed.sites.pid_file import acquire
from promptfed.sites.worker import Worker


def main() -> None:
    """Answer requests from standard input until it ends."""
    parser = argparse.ArgumentParser()
    for name in ("site", "home", "data", "device"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--signed", action="store_true")
    given: Any = parser.parse_args()
    # what libraries print must not be mixed with the answers
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    home = Path(given.home)
    make_private(home)
    with (home / "lock").open("a+") as lock:
        _replace_predecessor(lock)
        worker = Worker(given.site, home, given.data, given.device, signed=given.signed)
        while (request := read_frame(sys.stdin.buffer)) is not None:
            write_frame(answers, worker.answer(request))


def _replace_predecessor(lock: IO[str]) -> None:
    """Become the site's only worker: the worker of an abandoned job is ended."""
    while True:
        try:
            acquire(lock)
            return
        except BlockingIOError:
            lock.seek(0)
            if number := lock.read():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(number), signal.SIGKILL)
            time.sleep(0.1)
        except OSError as error:  # the lock is held, but this process's number does not fit on the disk
            if error.errno not in FULL:
                raise
            logging.getLogger("promptfed.site").error("%s", describe_failure(error))
            return


def _exit_with_parent(parent: int) -> None:
    """End this process when its parent has ended, even in the middle of a round."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    try:
        main()
    except (PromptFedError, KeyboardInterrupt) as error:
        sys.exit(f"promptfed: {error}")
