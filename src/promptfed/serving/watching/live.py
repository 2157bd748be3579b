"""The routes of the live view, and its server."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from promptfed.core.errors import PromptFedError
from promptfed.results.report.page import stylesheet
from promptfed.serving import listening
from promptfed.serving.limits import ServingLimits
from promptfed.serving.metrics import Monitor
from promptfed.serving.origins import check_name
from promptfed.serving.recorder import Recorder
from promptfed.serving.refusals import Refusal
from promptfed.serving.watching.board import Board
from promptfed.serving.watching.stream import Broadcast

PAGE = {
    "/": ("watching/page/index.html", "text/html"),
    "/watch.js": ("watching/page/watch.js", "text/javascript"),
    "/watch.css": ("watching/page/watch.css", "text/css"),
    "/icon.svg": ("page/icon.svg", "image/svg+xml"),
}
LONGEST = 400  # letters of a query


def watch(root: Path, host: str, port: int, ready: Callable[[int], None], *, everyone: bool = False) -> None:
    """Show the runs below a folder until SIGTERM or Ctrl-C. `ready` is told the port."""
    if not root.is_dir():
        raise PromptFedError(f"{root} is a file; give a folder of runs, or the folder of one.")
    risk = f"Anyone who reaches {host} could see these runs; if that is what you want, say --open."
    hosts = listening.names(host, everyone=everyone, risk=risk)
    broadcast = Broadcast(Board(root))
    with listening.listen(host, port) as taken:
        listening.log_json(logging.WARNING)
        config = listening.configure(make_live_app(broadcast, hosts), ServingLimits())
        server = listening.PoliteServer(config, lambda: ready(taken.getsockname()[1]), ending=broadcast.end)
        server.run(sockets=[taken])


def make_live_app(broadcast: Broadcast, hosts: frozenset[str] | None) -> Recorder:
    """Return the ASGI application of the live view."""

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        yield
        await broadcast.close()

    async def events(request: Request) -> Response:
        check_name(request, hosts, "promptfed watch --open")
        if len(request.url.query) > LONGEST:
            raise Refusal(400, "The address is too long.")
        last = request.headers.get("last-event-id") or request.query_params.get("since", "")
        told = broadcast.events(request.query_params.get("show"), last)
        return StreamingResponse(told, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def health(request: Request) -> Response:
        check_name(request, hosts, "promptfed watch --open")
        return JSONResponse({"status": "ok"})

    style = stylesheet().encode()
    routes = [Route(path, _sent(_content(name), kind)) for path, (name, kind) in PAGE.items()]
    routes += [Route("/report.css", _sent(style, "text/css"))]
    routes += [Route("/v1/events", events), Route("/healthz", health)]
    handlers: Any = {HTTPException: _unknown, Refusal: _refused}
    known = [route.path for route in routes]
    return Recorder(Starlette(routes=routes, lifespan=running, exception_handlers=handlers), Monitor(), known)


def _content(name: str) -> bytes:
    return resources.files("promptfed.serving").joinpath(*name.split("/")).read_bytes()


def _sent(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def send(request: Request) -> Response:
        return Response(content, media_type=kind)

    return send


async def _refused(request: Request, refusal: Refusal) -> Response:
    return JSONResponse({"error": refusal.sentence}, refusal.status, refusal.headers)


async def _unknown(request: Request, error: HTTPException) -> Response:
    sentences = {404: "There is no such address.", 405: "This address takes another method."}
    sentence = sentences.get(error.status_code, "The request cannot be answered.")
    return JSONResponse({"error": sentence}, error.status_code, error.headers)
