"""What NVIDIA FLARE's processes may be made to do from afar: components of ours that take away the rest.

FLARE builds them first, in the parent process of a party and in each of its jobs.
"""

from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet import cell as cells
from nvflare.fuel.f3.cellnet.defs import CellChannel
from nvflare.private.fed.client import admin_commands, client_req_processors, scheduler_cmds, training_cmds

from promptfed.sites.flare_port import guard_port
from promptfed.sites.flare_streams import bound_streams

CHANNELS = frozenset(
    (
        CellChannel.CLIENT_MAIN,
        CellChannel.AUX_COMMUNICATION,
        CellChannel.SERVER_MAIN,
        CellChannel.SERVER_COMMAND,
        CellChannel.SERVER_PARENT_LISTENER,
        CellChannel.CLIENT_COMMAND,
        CellChannel.RETURN_ONLY,
    )
)
# All that a server may ask of a site: to run one of our jobs, and to end it. FLARE would also list and read files
# of its folder, the private key among them, and change its logging; it looks at the owner's rights only if the server's
# message says that it should.
REQUESTS = (
    training_cmds.ClientStatusProcessor,
    training_cmds.AbortAppProcessor,
    training_cmds.AbortTaskProcessor,
    training_cmds.DeployProcessor,
    training_cmds.DeleteRunNumberProcessor,
    training_cmds.NotifyJobStatusProcessor,
    scheduler_cmds.StartJobProcessor,
    scheduler_cmds.CheckResourceProcessor,
    scheduler_cmds.CancelResourceProcessor,
    scheduler_cmds.ReportVersionProcessor,
)
COMMANDS = (
    admin_commands.CheckStatusCommand,
    admin_commands.AbortCommand,
    admin_commands.AbortTaskCommand,
    admin_commands.ByeCommand,
)


def leave_references(fl_ctx: FLContext) -> None:
    """Leave references in messages to this process as they are: FLARE would fetch what they name, however much."""
    cell: Any = fl_ctx.get_engine().get_cell()
    cell.decode_pass_through_channels.update(CHANNELS)


class ServerLimits(FLComponent):  # type: ignore[misc]
    """The server's: an answer that cannot be read is lost, and nothing else."""

    def __init__(self, revoked: str, sites: list[str], largest: int) -> None:
        super().__init__()
        # FLARE asks this before it ends the whole job because one site's answer cannot be decoded
        cells._is_server_job_cell = lambda info: False
        guard_port(Path(revoked), frozenset(sites))
        bound_streams(largest)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Limit the server's parent process; its jobs limit themselves."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            leave_references(fl_ctx)


class SiteLimits(FLComponent):  # type: ignore[misc]
    """A site's: a server may have one of our jobs run and end it, and no more."""

    def __init__(self) -> None:
        super().__init__()
        _keep(client_req_processors.ClientRequestProcessors.request_processors, REQUESTS)
        _keep(admin_commands.AdminCommands.commands, COMMANDS)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Limit the site's parent process; its jobs limit themselves."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            leave_references(fl_ctx)


def _keep(registered: list[Any], wanted: tuple[type, ...]) -> None:
    """Remove from FLARE's own list, which its processes read, what is not wanted."""
    registered[:] = [one for one in registered if isinstance(one, wanted)]
