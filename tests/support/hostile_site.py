"""What a hostile site's job sends in place of its worker's answers; `put_in` lets a real site's processes load it."""

import enum
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.private.fed.client.communicator import Communicator

from promptfed.sites import wire
from promptfed.sites.flare_executor import Site
from support.bad_answers import BAD, IMPLAUSIBLE, Tampering, with_head


class Odd(enum.Enum):
    """A type that the server does not know."""

    ONE = 1


CHANGES: dict[str, Tampering] = {name: change for name, (change, _) in (BAD | IMPLAUSIBLE).items()}
HEAVY = ("downloads", "unreadable", "message")
PLAN: Sequence[str] = (*CHANGES, *HEAVY)  # the first round is an honest one
CUSTOMISE = """
import sys

if "nvflare.private.fed.app.client.worker_process" in sys.orig_argv:
    from support import hostile_site

    hostile_site.install()
"""


def heavy(kind: str) -> Any:
    """Return far more than an answer may be, or what cannot be read."""
    if kind == "downloads":  # FLARE would fetch each
        return {str(number): np.ones(3 * 2**20, np.float32) for number in range(80)}
    return Odd.ONE if kind == "unreadable" else bytes(400 * 2**20)


def spoilt(request: bytes, answer: Any) -> Any:
    """Return what is sent in place of an answer to this request."""
    head = wire.unpack(request, 2**30).head
    if head["kind"] != "fit" or not 0 < head["round"] <= len(PLAN):
        return answer
    kind = PLAN[head["round"] - 1]
    return heavy(kind) if kind in HEAVY else CHANGES[kind](answer)


def install() -> None:
    """Put the hostile answers in place of the honest ones, in the job process of a site."""
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


def put_in(folder: Path, text: str = CUSTOMISE) -> dict[str, str]:
    """Write what Python loads first in a party's processes; return the environment in which they find it."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    places = (str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, places))}
