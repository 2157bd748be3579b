"""A model hub on this machine, which serves folders as the real one does."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

API = re.compile(r"/api/models/(?P<name>[^/]+/[^/]+)/revision/(?P<revision>[^/?]+)")
FILE = re.compile(r"/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>[^?]+)")


def commit(folder: Path) -> str:
    """Return the commit of a folder, which its contents make."""
    content = hashlib.sha1(usedforsecurity=False)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return content.hexdigest()


class Hub(ThreadingHTTPServer):
    """Serves models: by name, each revision's folder, "main" and the commits among them."""

    def __init__(self, models: Mapping[str, Mapping[str, Path]]) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.models = {
            name: dict(revisions) | {commit(folder): folder for folder in revisions.values()}
            for name, revisions in models.items()
        }
        self.asked: list[str] = []


class HubHandler(BaseHTTPRequestHandler):
    """Answers what huggingface_hub asks to download a model."""

    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        found = API.fullmatch(self.path.partition("?")[0]) or FILE.fullmatch(self.path)
        folder = self.server.models.get(found["name"], {}).get(found["revision"]) if found else None
        if found is None or folder is None:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound" if found else "EntryNotFound"})
        elif found.re is API:
            files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
            about = {"id": found["name"], "sha": commit(folder), "siblings": [{"rfilename": one} for one in files]}
            self.answer(200, json.dumps(about).encode(), {"Content-Type": "application/json"})
        elif not (folder / found["file"]).is_file():
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            content = (folder / found["file"]).read_bytes()
            tag = hashlib.sha256(content).hexdigest()
            self.answer(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": commit(folder)})

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def stand_in_hub(models: Mapping[str, Mapping[str, Path]]) -> Iterator[tuple[Hub, str]]:
    """Serve models; yield the hub and its address."""
    with Hub(models) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub, f"http://127.0.0.1:{hub.server_port}"
        finally:
            hub.shutdown()
            thread.join()
