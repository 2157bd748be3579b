"""The coordinator on NVIDIA FLARE: a controller that conducts the run, in FLARE's job process.

A job is disposable: all state lies in our run folder and at the sites, so whatever kills a job, the supervisor submits
the next one and the run resumes from its last finished round.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_json
from promptfed.results.folder import names
from promptfed.sites.coordinator import Busy, conduct
from promptfed.sites.exchange import Deliver, PendingRequests, Silence
from promptfed.sites.flare_letters import note_frames
from promptfed.sites.flare_limits import leave_references
from promptfed.sites.flare_waiting import Waiting, let_sites_wait
from promptfed.sites.oversight import Oversight
from promptfed.sites.revocations import OUT
from promptfed.sites.settings import Federation, read_federation

TASK = "work"  # the only task there is


class Aborted(Exception):  # noqa: N818  (ending a job is not an error)
    """The job is being ended."""


class FlareExchange:
    """Sends every site a task of its own. A task stays open until its site answers, so late answers are recognised."""

    def __init__(
        self,
        controller: "Conductor",
        fl_ctx: FLContext,
        abort: Signal,
        federation: Federation,
        revoked: Callable[[], frozenset[str]] = frozenset,
        ring: Callable[[str], None] = lambda site: None,
    ) -> None:
        self.ring = ring  # tells a site that waits for a task
        self.pending = PendingRequests()
        self.late, self.repeated = self.pending.late, self.pending.repeated
        self._controller, self._fl_ctx, self._abort, self._revoked = controller, fl_ctx, abort, revoked
        self._waiting: dict[str, Deliver] = {}  # for an answer of a site
        self._patience, self._limit = max(1, int(federation.patience_seconds)), federation.answer_bytes

    def exchange(self, round: int, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Silence]:  # noqa: A002
        """Send each site its own request; return what each of them answered."""
        return self.pending.exchange(round, requests, timeout, self._send, self._check)

    def _check(self) -> None:
        if self._abort.triggered:
            raise Aborted
        for site in self._revoked() & self._waiting.keys():  # it is cut off, and nobody waits for it
            if deliver := self._waiting.pop(site, None):
                deliver(Silence(OUT))

    def _send(self, site: str, request: bytes, deliver: Deliver) -> None:
        engine = self._fl_ctx.get_engine()
        if site not in {client.name for client in engine.get_clients()}:
            deliver(Silence("it is not connected"))
            return

        self._waiting[site] = deliver

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            answer, reason = client_task.result.get("answer"), client_task.result.get("reason")
            client_task.result = None
            self._waiting.pop(site, None)
            deliver(answer if isinstance(answer, bytes) else Silence(str(reason or "its job gave no answer")))

        data = Shareable()
        data["request"], data["limit"] = request, self._limit
        task = Task(name=TASK, data=data, timeout=self._patience, result_received_cb=received)
        self._controller.send(task=task, fl_ctx=self._fl_ctx, targets=[site])
        self.ring(site)


class Conductor(Controller):  # type: ignore[misc]
    """Conducts the run in `folder`; runs in the server's job process."""

    def __init__(self, folder: str, federation: str) -> None:
        super().__init__(task_check_period=0.05)
        self.folder, self.federation = Path(folder), Path(federation)
        self._exchange: FlareExchange | None = None
        self._waiting = Waiting()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Limit what answers can do, and let sites wait for requests; all state is in the run folder."""
        leave_references(fl_ctx)
        note_frames()
        let_sites_wait(self._waiting)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the remaining rounds."""
        federation = read_federation(self.federation)
        oversight = Oversight.of(self.federation.parent)
        self._exchange = FlareExchange(self, fl_ctx, abort_signal, federation, oversight.revoked, self._waiting.ring)
        try:
            conduct(self.folder, federation, self._exchange, lambda line: None, oversight)
        except Aborted:
            self.log_info(fl_ctx, "the job has ended; the run can continue in another one")
        except Busy as error:
            self.log_info(fl_ctx, str(error))
        except PromptFedError as error:
            write_json(self.folder / names.FAILED, {"reason": str(error)})
            self.log_error(fl_ctx, str(error))

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Send the sites away; every finished round is already saved."""
        self._waiting.close()

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Drop and count an answer to a request that is not pending: it was answered before."""
        self.log_info(fl_ctx, f"an answer of {client.name} to a request that was not pending was dropped")
        if self._exchange is not None:
            self._exchange.repeated[client.name] += 1
