"""Around every request: its time, its line in the log, headers that keep a page safe, and no traceback for anyone."""

import json
import logging
import time
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from promptfed.serving.metrics import Monitor

log = logging.getLogger("promptfed.serving")
KNOWN = (
    "/", "/app.js", "/app.css", "/icon.svg", "/v1/predict", "/v1/explain", "/v1/reload", "/v1/clients", "/v1/model",
    "/healthz", "/readyz", "/metrics", "/openapi.json",
)  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
FAILED = b'{"error":"Something is wrong with this server; tell who runs it."}'


class Recorder:
    """Wraps an application."""

    def __init__(self, app: ASGIApp, metrics: Monitor, known: Collection[str] = KNOWN) -> None:
        self.app, self.metrics, self.known = app, metrics, known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run the application's start and end."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 0

        async def headed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *HEADERS.items()]}
            await send(message)

        try:
            await self.app(scope, receive, headed)
        except Exception as error:  # whatever it is, the server lives, and nobody outside is told
            tell_failure(error)
            if not status:
                kind = [(b"content-type", b"application/json"), (b"content-length", str(len(FAILED)).encode())]
                await headed({"type": "http.response.start", "status": 500, "headers": kind})
                await send({"type": "http.response.body", "body": FAILED})
        finally:
            self._count(scope, status or 500, time.monotonic() - start)

    def _count(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        route = scope["path"] if scope["path"] in self.known else "other"
        self.metrics.add(route, status, seconds)
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
        log.info("request", extra={"fields": {"method": method, "route": route, "status": status, "seconds": seconds}})


def tell_failure(error: Exception) -> None:
    """Log what failed and where; an error's own words could name a file or a picture."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f"{place.tb_frame.f_code.co_filename.rpartition('/')[2]}:{place.tb_lineno}" if place else ""
    log.error("failed", extra={"fields": {"kind": type(error).__name__, "where": where}})


class JsonLines(logging.Formatter):
    """One JSON object a line; all have the fields in `always`."""

    def __init__(self, always: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self.always = dict(always or {})

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        fields = {name: round(v, 6) if isinstance(v, float) else v for name, v in getattr(record, "fields", {}).items()}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        head = {"time": stamp, "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps({**head, **self.always, **fields})
