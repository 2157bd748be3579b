"""The live view of runs: a server of it in a thread, and someone who listens to its events."""

import http.client
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from promptfed.serving.watching.board import Board
from promptfed.serving.watching.live import make_live_app
from promptfed.serving.watching.stream import Broadcast

LOCAL = frozenset({"localhost", "127.0.0.1"})


class Shown:
    """A server of the runs below a folder, which looks at them all the time."""

    def __init__(self, root: Path, port: int = 0) -> None:
        self.broadcast = Broadcast(Board(root, sparing=0), every=0.02)
        app = make_live_app(self.broadcast, LOCAL)
        self.server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, timeout_graceful_shutdown=20))
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> int:
        self.thread.start()
        while not self.server.started:
            self.thread.join(0.01)
        port: int = self.server.servers[0].sockets[0].getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        loop = self.server.servers[0].get_loop() if self.server.servers else None
        if loop is not None:
            loop.call_soon_threadsafe(self.broadcast.end)
        self.thread.join()


class Listener:
    """Reads events."""

    def __init__(self, port: int, query: str = "", last: str = "") -> None:
        self.line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.line.request("GET", f"/v1/events{query}", headers={"Last-Event-ID": last} if last else {})
        self.answer = self.line.getresponse()
        assert self.answer.status == 200
        self.last = ""

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()
        self.answer.close()

    def next(self, wanted: str) -> dict[str, Any]:
        """Return the data of the next event of a kind."""
        kind = ""
        while line := self.answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "id":
                self.last = value
            elif name == "event":
                kind = value
            elif name == "data" and kind == wanted:
                found: dict[str, Any] = json.loads(value)
                return found
        raise AssertionError("the stream has ended")

    def until(self, wanted: str, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the data of the next event of a kind that is as it should be."""
        while not enough(found := self.next(wanted)):
            pass
        return found

    def rest(self) -> bytes:
        """Return what else comes until the stream ends."""
        return self.answer.read()
