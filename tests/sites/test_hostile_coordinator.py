"""A coordinator that asks a site for more than a job: FLARE would do it, the site does not."""

import contextlib
import io
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from promptfed.sites.provisioning import ADMIN
from support.loopback import Loopback, rounds, until
from support.three_sites import NAMES, SETTINGS

PATIENCE = 240.0  # a dozen processes that import torch may share two busy cores with much else
# a site looks at its owner's rights only if the server's message says that it should; this server never says so
HOSTILE = """
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


@pytest.mark.timeout(900)
def test_a_coordinator_cannot_read_files_or_change_settings_at_a_site(tmp_path: Path) -> None:
    federation = Loopback(tmp_path)
    (tmp_path / "hostile").mkdir()
    (tmp_path / "hostile" / "sitecustomize.py").write_text(HOSTILE)
    try:
        places = [str(tmp_path / "hostile"), os.environ.get("PYTHONPATH", "")]
        federation.start("server", "start", PYTHONPATH=os.pathsep.join(filter(None, places)))
        for site in NAMES:
            federation.join(site)
        words = ("fedavg", "rounds=500", "device=cpu", *SETTINGS["fedavg"])
        federation.start("run", "run", *words, "--out", "run")
        until(lambda: rounds(tmp_path / "run") > 0, PATIENCE)
        job = json.loads((tmp_path / "run" / "job.json").read_text())["job"]
        with session(tmp_path) as opened:
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
        before = rounds(tmp_path / "run")
        until(lambda: rounds(tmp_path / "run") > before, PATIENCE)
    finally:
        federation.close()
