"""A server that says nothing: `sites run` does not hang. Silent clients are in test_tls.py."""

import contextlib
import socket
import time
from pathlib import Path

import pytest

from promptfed.sites.settings import read_federation
from support.loopback import Loopback, promptfed


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
