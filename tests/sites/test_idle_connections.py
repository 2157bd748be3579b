"""Connections that say nothing: a stranger cannot stop the coordinator with them, and `sites run` does not hang."""

import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from promptfed.sites.settings import read_federation
from support.loopback import Loopback, promptfed, until
from support.three_sites import NAMES, SETTINGS

PATIENCE = 240.0  # a dozen processes that import torch may share two busy cores with much else
HELLO = bytes.fromhex("16030100c8010000c40303")  # the beginning of a TLS handshake, which never goes further


def dial(port: int) -> socket.socket | None:
    """Connect without a certificate; None if nothing listens."""
    try:
        return socket.create_connection(("localhost", port), timeout=5)
    except OSError:
        return None


def listening(port: int) -> bool:
    """Say whether someone listens on the port."""
    with socket.socket() as one:
        return one.connect_ex(("localhost", port)) == 0


def closed(connection: socket.socket) -> bool:
    """Say whether the other side has hung up."""
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def idle(ports: tuple[int, ...], count: int) -> list[socket.socket]:
    """Open connections that stay silent, every other one after the first bytes of a handshake."""
    opened = [found for port in ports for _ in range(count) if (found := dial(port)) is not None]
    for number, connection in enumerate(opened):
        if number % 2:
            connection.sendall(HELLO)
    return opened


@contextmanager
def strangers(ports: tuple[int, ...], count: int) -> Iterator[list[socket.socket]]:
    """Hold silent connections open."""
    until(lambda: all(listening(port) for port in ports), PATIENCE)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connection) for connection in idle(ports, count)]


@pytest.mark.timeout(900)
def test_silent_connections_do_not_stop_the_coordinator(tmp_path: Path) -> None:
    federation = Loopback(tmp_path)
    fed = read_federation(tmp_path / "fed.toml")
    try:
        federation.start("server", "start")
        with strangers((fed.port, fed.admin_port), 20) as held:
            assert len(held) == 40
            for site in NAMES:
                federation.join(site)
            words = ("fedavg", "rounds=1", "device=cpu", *SETTINGS["fedavg"])
            federation.start("run", "run", *words, "--out", "run")
            summary = tmp_path / "run" / "summary.json"
            until(lambda: summary.exists() or federation.processes["run"].poll() is not None, PATIENCE)
            assert federation.processes["run"].wait(60) == 0, federation.said("run")
            until(lambda: all(closed(connection) for connection in held), PATIENCE)
    finally:
        federation.close()
    assert federation.left == []


@pytest.mark.timeout(300)
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
