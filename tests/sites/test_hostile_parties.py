"""One federation of real processes with a hostile coordinator and a hostile site: its two honest sites go on.

FLARE would do more for the coordinator than run a job; the site answers with whatever could do harm, one kind a round.
"""

import contextlib
import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from promptfed.sites.provisioning import ADMIN
from support.bad_answers import ANSWER_MB, BAD, IMPLAUSIBLE
from support.hostile_site import BAD_ANSWERS, HEAVY, PLAN, Harm
from support.loopback import Loopback, rounds, until
from support.peaks import Peaks
from support.three_sites import SETTINGS, lines, server_tree

PATIENCE = 240.0  # a dozen processes that import torch may share two busy cores with much else
BOUND = 900  # MB; the server's job takes 350 without hostile answers
# a site looks at its owner's rights only if the server's message says that it should; this server never says so
HOSTILE_SERVER = """
import sys

if "nvflare.private.fed.app.server.server_train" in sys.orig_argv:
    from nvflare.fuel.sec.authz import AuthorizationService
    from nvflare.private.admin_defs import Message
    from nvflare.private.defs import RequestHeader

    honest = Message.set_header

    def set_header(self, key, value):
        if key not in (RequestHeader.REQUIRE_AUTHZ, RequestHeader.ADMIN_COMMAND):
            honest(self, key, value)

    Message.set_header = set_header
    AuthorizationService.authorize = staticmethod(lambda ctx: (True, ""))
"""


@pytest.mark.timeout(900)
@pytest.mark.real_processes
def test_a_hostile_coordinator_and_a_hostile_site_do_no_harm(tmp_path: Path) -> None:
    federation = Loopback(tmp_path, f"answer_mb = {ANSWER_MB}", "min_sites = 2", "round_seconds = 15")
    run, peaks = tmp_path / "run", Peaks()
    try:
        federation.start("server", "start", **Harm(tmp_path / "hostile server", text=HOSTILE_SERVER).environment)
        federation.join("north")
        federation.join("south")
        federation.join("west", **Harm(tmp_path / "hostile site", BAD_ANSWERS).environment)
        words = ("fedavg", f"rounds={1 + len(PLAN)}", "device=cpu", *SETTINGS["fedavg"], "evaluate.after=false")
        federation.start("run", "run", *words, "--out", "run")
        command = federation.processes["run"]
        check_the_coordinator(federation)
        until(lambda: peaks.look(federation) or command.poll() is not None, PATIENCE)
        assert command.poll() == 0, federation.said("run")
    finally:
        federation.close()
    check_rounds(run)
    assert peaks.keys() == {"server_train", "runner_process"}
    assert max(peaks.values()) < BOUND, peaks


# -- the coordinator --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def session(folder: Path) -> Iterator[Any]:
    """Open the coordinator's admin session."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    with contextlib.redirect_stdout(io.StringIO()):
        opened = new_secure_session(ADMIN, str(folder / "federation" / "kits" / "admin"), timeout=60)
    try:
        yield opened
    finally:
        opened.close()


def ask(opened: Any, *words: str) -> str:
    """Give a command to the server; return what it says."""
    try:
        return str(opened._do_command(shlex.join(words), enforce_meta=False))
    except Exception as error:  # a refusal is what is hoped for
        return str(error)


def check_the_coordinator(federation: Loopback) -> None:
    """Ask a site for its files and for other settings, as FLARE lets a coordinator do, while its job is at work."""
    run, command = federation.folder / "run", federation.processes["run"]
    until(lambda: (run / "job.json").exists() or command.poll() is not None, PATIENCE)
    job = json.loads((run / "job.json").read_text())["job"]
    with session(federation.folder) as opened:
        until(lambda: rounds(run) > 0 or command.poll() is not None, PATIENCE)
        assert "north" in ask(opened, "check_status", "client", "north")
        for asked in (
            ("ls", "north"),
            ("cat", "north", "startup/fed_client.json"),
            ("configure_job_log", job, "client", "north", "DEBUG"),
            ("configure_site_log", "client", "north", "DEBUG"),
            ("report_env", "north"),
        ):
            said = ask(opened, *asked)
            assert "invalid_request" in said, (asked, said)
        assert command.poll() is None


# -- the site ---------------------------------------------------------------------------------------------------------


def check_rounds(run: Path) -> None:
    """See that every bad answer was refused by name, that what is too heavy was lost, and that the others went on."""
    first, *later = lines(run)
    assert first["clients"] == [0, 1, 2]
    assert [line["clients"] for line in later] == [[0, 1]] * len(PLAN)
    told: list[Any] = [line["sites"] for line in later]
    for (name, (_, sentence)), found in zip((BAD | IMPLAUSIBLE).items(), told, strict=False):
        assert sentence in found["refused"]["west"][0], (name, found)
    heavy = dict(zip(HEAVY, told[-len(HEAVY) :], strict=True))
    assert heavy["downloads"]["silent"] == {"west": "its job gave no answer"}
    for name in ("unreadable", "message"):  # what the site tells after its answer was refused in the transport
        assert heavy[name]["refused"] == {"west": ["it says: it came to comm_error"]}, name
    assert max(float(value.abs().max()) for value in server_tree(run).values()) < 10
