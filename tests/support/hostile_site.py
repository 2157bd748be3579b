"""What a hostile site's processes do in place of the honest thing; `Harm` lets a real site's processes load it.

A file says what they do, so that a test can change it between two runs, or in the middle of one.
"""

import enum
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptfed.core.tree import Tree
from promptfed.sites import wire
from promptfed.sites.masks import Masks
from promptfed.sites.wire import Header
from support.bad_answers import BAD, IMPLAUSIBLE, Tampering, enlarged, with_head, with_tensor

PLACE = "PROMPTFED_TEST_HARM"
BAD_ANSWERS, BOAST, SPOIL_SUMS, POISON, WAIT = "bad answers", "boast", "spoil sums", "poison", "wait"
CHANGES: dict[str, Tampering] = {name: change for name, (change, _) in (BAD | IMPLAUSIBLE).items()}
HEAVY = ("downloads", "unreadable", "message")
PLAN = (*CHANGES, *HEAVY)  # of bad answers, one a round; the first round is an honest one
POISONED = 0.05  # what poison adds to every number: plausible, and far more than a round of training does
UNDER_MASKS = 1e4
IMAGES = 10**12
CUSTOMISE = """
import sys

if "nvflare.private.fed.app.client.worker_process" in sys.orig_argv:
    from support import hostile_site

    hostile_site.install_in_job()
elif "promptfed.sites.worker_process" in sys.orig_argv:
    from support import hostile_site

    hostile_site.install_in_worker()
"""


class Odd(enum.Enum):
    """A type that the server does not know."""

    ONE = 1


class Harm:
    """What one party's processes find before anything else."""

    def __init__(self, folder: Path, does: str = "", text: str = CUSTOMISE) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(text)
        places = (str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
        self.path = folder / "does"
        self.environment = {"PYTHONPATH": os.pathsep.join(filter(None, places)), PLACE: str(self.path)}
        self.do(does)

    def do(self, what: str) -> None:
        """Do something else from now on; nothing is honest."""
        self.path.write_text(what)


def does() -> str:
    """Return what this process should do."""
    return Path(os.environ[PLACE]).read_text()


def heavy(kind: str) -> Any:
    """Return far more than an answer may be, or what cannot be read."""
    if kind == "downloads":  # FLARE would fetch each
        return {str(number): np.ones(3 * 2**20, np.float32) for number in range(80)}
    return Odd.ONE if kind == "unreadable" else bytes(400 * 2**20)


def bad(head: Header, answer: Any) -> Any:
    """Return the bad answer of this round."""
    if head["kind"] != "fit" or not 0 < head["round"] <= len(PLAN):
        return answer
    kind = PLAN[head["round"] - 1]
    return heavy(kind) if kind in HEAVY else CHANGES[kind](answer)


def spoilt(request: bytes, answer: Any) -> Any:
    """Return what is sent in place of an answer to this request."""
    head, what = wire.unpack(request, 2**30).head, does()
    if what == BAD_ANSWERS:
        return bad(head, answer)
    if what == BOAST and head["kind"] == "hello":
        return with_head(train=IMAGES)(with_tensor("weight", lambda value: torch.full_like(value, IMAGES))(answer))
    if what == POISON and head["kind"] == "fit":
        return enlarged(POISONED)(answer)
    if what == SPOIL_SUMS and (head["kind"], head["round"]) == ("shares", 0):
        return with_tensor("sealed", torch.zeros_like)(answer)
    while does() == WAIT and head["kind"] == "fit":
        time.sleep(0.05)
    return answer


def install_in_job() -> None:
    """Put hostile answers in place of honest ones, in the job process of a site."""
    from nvflare.apis.shareable import Shareable
    from nvflare.fuel.f3.cellnet.defs import ReturnCode
    from nvflare.private.fed.client.communicator import Communicator

    from promptfed.sites.flare_executor import Site

    execute, submit, last = Site.execute, Communicator.submit_update, dict[str, bytes]()

    def spoilt_execute(self: Site, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        reply = execute(self, task_name, shareable, fl_ctx, abort_signal)
        if "answer" in reply:
            last["answer"] = reply["answer"]
            reply["answer"] = spoilt(shareable["request"], reply["answer"])
        return reply

    def submit_update(self: Any, *given: Any, **named: Any) -> Any:
        """Tell what became of an answer that did not arrive; the engine would send the same one for ever."""
        if (code := submit(self, *given, **named)) != ReturnCode.OK:
            (reply,) = (one for one in (*given, *named.values()) if isinstance(one, Shareable))
            reply["answer"] = with_head(error=f"it came to {code}")(last["answer"])
            code = submit(self, *given, **named)
        return code

    Site.execute = spoilt_execute  # type: ignore[method-assign]
    Communicator.submit_update = submit_update


def install_in_worker() -> None:
    """Hide something else under the masks, in the worker process of a site."""
    honest = Masks.masked

    def masked(self: Masks, up: Tree, weight: torch.Tensor) -> Tree:
        more = UNDER_MASKS if does() == SPOIL_SUMS and self.round > 0 else 0.0
        return honest(self, {name: value + more for name, value in up.items()}, weight)

    Masks.masked = masked  # type: ignore[method-assign]
