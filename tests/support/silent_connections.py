"""Who connects to a coordinator: strangers who say nothing, and whoever has a certificate."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.loopback import until

HELLO = bytes.fromhex("16030100c8010000c40303")  # the beginning of a TLS handshake, which never goes further


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


@contextmanager
def strangers(ports: tuple[int, ...], count: int, patience: float) -> Iterator[list[socket.socket]]:
    """Hold so many silent connections open to each port, every other one after the first bytes of a handshake."""
    until(lambda: all(listening(port) for port in ports), patience)
    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("localhost", port), timeout=5))
            for port in ports
            for _ in range(count)
        ]
        for connection in held[::2]:
            connection.sendall(HELLO)
        yield held


def handshake(port: int, root: Path, own: Path | None = None, key: Path | None = None) -> str:
    """Dial the server with a certificate and its key, trusting it; return what it makes of us."""
    context = ssl.create_default_context(cafile=root)
    context.set_alpn_protocols(["h2"])
    if own is not None:
        context.load_cert_chain(own, key)
    with socket.create_connection(("localhost", port), timeout=10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secured:
                secured.settimeout(10)
                return "accepted" if secured.recv(1) else "refused"  # HTTP/2 settings come without being asked for
        except (ssl.SSLError, ConnectionError, TimeoutError):
            return "refused"
