"""A site on NVIDIA FLARE: an executor that passes every request to the site's worker, in FLARE's job process."""

import os
import threading
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from promptfed.sites.child_process import Child
from promptfed.sites.flare_letters import send_letters
from promptfed.sites.flare_limits import leave_references
from promptfed.sites.worker_command import DATA, DEVICE, HOME, worker_command

POLL_SECONDS = 0.1


class Site(Executor):  # type: ignore[misc]
    """Passes requests to the site's worker, a child process whose death this process survives."""

    def __init__(self) -> None:
        super().__init__()
        self._child: Child | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Return the worker's answer, or why there is none."""
        reply = Shareable()
        try:
            child = self._worker(fl_ctx)
            outcome: dict[str, object] = {}
            asking = threading.Thread(target=_ask, args=(child, shareable["request"], outcome), daemon=True)
            asking.start()
            while asking.is_alive():
                asking.join(POLL_SECONDS)
                if abort_signal.triggered:
                    self.close()
            reply.update(_within(outcome, shareable["limit"]))
        except Exception as error:  # if the job process failed, FLARE would end the whole job
            reply["reason"] = f"its job failed: {type(error).__name__}"
            self.log_exception(fl_ctx, "a request failed")
        return reply

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start the worker with the job, so that it is ready for the first request, and end it with the job."""
        if event_type == EventType.START_RUN:
            leave_references(fl_ctx)
            send_letters(fl_ctx.get_engine().get_cell(), fl_ctx.get_run_abort_signal())
            self._worker(fl_ctx).start()
        elif event_type == EventType.END_RUN:
            self.close()

    def close(self) -> None:
        """End the worker."""
        if self._child is not None:
            self._child.close()

    def _worker(self, fl_ctx: FLContext) -> Child:
        if self._child is None:
            site, home = fl_ctx.get_identity_name(), Path(os.environ[HOME])
            command = worker_command(site, home, os.environ[DATA], os.environ.get(DEVICE, "auto"), signed=True)
            self._child = Child(command, home / "worker.log")
        return self._child


def _ask(child: Child, request: bytes, outcome: dict[str, object]) -> None:
    try:
        outcome["answer"] = child.ask(request)
    except OSError as error:
        outcome["reason"] = str(error)


def _within(outcome: dict[str, object], limit: int) -> dict[str, object]:
    """Return the outcome, or in place of an answer that would be refused the reason: the coordinator sees only that."""
    answer = outcome.get("answer")
    if isinstance(answer, bytes) and len(answer) > limit:
        return {"reason": f"its answer has {len(answer):,} bytes, more than the {limit:,} that answer_mb allows"}
    return outcome
