"""An HTTP proxy that opens tunnels with CONNECT, for those who know its password."""

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

END = b"\r\n\r\n"


class ConnectProxy:
    """A proxy on a port of its own; `asked` has the targets it was asked for, `refused` those without the password."""

    def __init__(self, word: str = "", answer: bytes = b"") -> None:
        self.word, self.answer = word, answer
        self.asked: list[str] = []
        self.refused: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self._open: list[socket.socket] = []

    @property
    def url(self) -> str:
        """Return its address, with the password."""
        return f"http://{f'user:{self.word}@' if self.word else ''}127.0.0.1:{self.port}"

    def serve(self) -> None:
        """Serve until it is closed."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self._open.append(client)
                threading.Thread(target=self._tunnel, args=(client,), daemon=True).start()

    def _tunnel(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            head = b""
            while END not in head and (found := client.recv(1)):
                head += found
            target = head.split()[1].decode()
            expected = f"Basic {base64.b64encode(f'user:{self.word}'.encode()).decode()}".encode()
            if self.word and expected not in head:
                self.refused.append(target)
                client.sendall(b"HTTP/1.1 407 Proxy Authentication Required" + END)
                client.close()
                return
            self.asked.append(target)
            if self.answer:
                client.sendall(self.answer)
                client.close()
                return
            host, _, port = target.rpartition(":")
            server = socket.create_connection((host, int(port)))
            self._open.append(server)
            client.sendall(b"HTTP/1.1 200 Connection established" + END)
            threading.Thread(target=_pump, args=(server, client), daemon=True).start()
            _pump(client, server)

    def close(self) -> None:
        """Close every connection."""
        for one in (self.listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def connect_proxy(word: str = "", answer: bytes = b"") -> Iterator[ConnectProxy]:
    """Run a proxy; with an `answer` it opens no tunnel but answers that."""
    proxy = ConnectProxy(word, answer)
    threading.Thread(target=proxy.serve, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
