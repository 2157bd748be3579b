"""Connections that say nothing, when they are too many; and a server that says nothing. See test_tls.py for a few."""

import contextlib
import resource
import socket
import time
from pathlib import Path

import pytest

from promptfed.sites.flare_workspace import build_site_workspace
from promptfed.sites.kits import read_kit
from promptfed.sites.settings import read_federation
from support.loopback import Loopback, promptfed, until
from support.silent_connections import handshake, listening, strangers


@pytest.mark.real_processes
def test_a_run_without_a_server_ends_with_a_sentence(tmp_path: Path) -> None:
    Loopback(tmp_path)
    fed = read_federation(tmp_path / "fed.toml")
    with contextlib.ExitStack() as stack:
        for port in (fed.port, fed.admin_port):  # someone listens and says nothing
            listener = stack.enter_context(socket.socket())
            listener.bind(("localhost", port))
            listener.listen()
        began = time.monotonic()
        done = promptfed("sites", "run", "fedavg", "rounds=1", "--wait", "5", "--out", "run", cwd=tmp_path)
        assert time.monotonic() - began < 120
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    assert "has not answered for 5 seconds" in said
    assert "promptfed sites run --resume" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.real_processes
def test_who_takes_all_sockets_keeps_others_out_while_it_lasts(tmp_path: Path) -> None:
    federation = Loopback(tmp_path)
    fed, own = read_federation(tmp_path / "fed.toml"), tmp_path / "north" / "startup"
    build_site_workspace(read_kit(tmp_path / "federation" / "kits" / "north.zip"), tmp_path / "north")
    try:
        federation.start("server", "start")
        until(lambda: listening(fed.port))

        def knock() -> str:
            return handshake(fed.port, own / "rootCA.pem", own / "client.crt", own / "client.key")

        assert knock() == "accepted"
        (server,) = federation.of_federation("server_train")
        few = len(list(Path(f"/proc/{server}/fd").iterdir())) + 8
        resource.prlimit(server, resource.RLIMIT_NOFILE, (few, few))
        with strangers((fed.port,), 40, 60):
            assert knock() == "refused"
        until(lambda: knock() == "accepted", 60)
    finally:
        federation.close()
