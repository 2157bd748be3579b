"""The server's routes; every answer is JSON, but for the page and the metrics."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import resources
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from torch import Tensor

from promptfed.core.errors import PromptFedError
from promptfed.core.version import __version__
from promptfed.data.dataset import Images
from promptfed.serving import access, explain
from promptfed.serving.batcher import QueueFullError
from promptfed.serving.crew import together
from promptfed.serving.openapi import document
from promptfed.serving.pictures import read_picture
from promptfed.serving.recorder import Recorder
from promptfed.serving.refusals import Refusal, refuse_busy
from promptfed.serving.service import Address, Service
from promptfed.serving.uploads import uploaded

PAGE = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/app.css": ("app.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
CLIENTS = 1000  # listed at a time
Handler = Callable[[Request], Awaitable[Response]]
Result = TypeVar("Result")


def make_app(service: Service) -> Recorder:
    """Return the ASGI application of a service."""

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        batches = asyncio.create_task(service.batcher.run())
        yield
        batches.cancel()
        with suppress(asyncio.CancelledError):
            await batches
        service.decoders.shutdown(wait=False, cancel_futures=True)

    def bound(handler: Callable[[Request, Service], Awaitable[Response]]) -> Handler:
        async def checked(request: Request) -> Response:
            access.check_origin(request, service)
            return await handler(request, service)

        return checked

    routes = [Route(path, _page(*file)) for path, file in PAGE.items()]
    for method, path, handler in ROUTES:
        routes.append(Route(path, bound(handler), methods=[method]))
    handlers: Any = {HTTPException: _unknown, Refusal: _refused}
    return Recorder(Starlette(routes=routes, lifespan=running, exception_handlers=handlers), service.metrics)


# -- answers ----------------------------------------------------------------------------------------------------------


async def predict(request: Request, service: Service) -> Response:
    """Answer with the likeliest classes of every image."""
    name, address = access.find_client(request, service, access.authorise(request, service))
    classes = address.served.about.classes
    top = min(_number(request, "top", 3, 1, 10**6), len(classes))
    async with uploaded(request, service) as contents:
        logits = await _unless_gone(request, _answered(service, address, contents, _stack))
    chances, places = logits.softmax(-1).topk(top, -1)
    images = [
        {"classes": [{"class": classes[place], "probability": chance} for chance, place in zip(*pair, strict=True)]}
        for pair in zip(chances.tolist(), places.tolist(), strict=True)
    ]
    return JSONResponse({"client": name, "images": images})


async def show(request: Request, service: Service) -> Response:
    """Answer with the likeliest class of an image and what it loses when parts are covered."""
    name, address = access.find_client(request, service, access.authorise(request, service))
    about = address.served.about
    cells = _number(request, "grid", 7, 2, min(service.limits.grid, *about.shape))
    async with uploaded(request, service) as contents:
        if len(contents) > 1:
            raise Refusal(400, "An explanation is of one image; send one.")
        look = lambda images: explain.covered(images[0], cells, about.mean)  # noqa: E731
        logits = await _unless_gone(request, _answered(service, address, contents, look))
    best, chance, grid = explain.drops(logits, cells)
    return JSONResponse({"client": name, "class": about.classes[best], "probability": chance, "grid": grid})


def _stack(images: Sequence[Images]) -> Images:
    return np.stack(images)


async def _answered(
    service: Service, address: Address, contents: Sequence[bytes], arrange: Callable[[Sequence[Images]], Images]
) -> Tensor:
    """Decode images and return their logits, or refuse when that takes too long."""
    limits, loop = service.limits, asyncio.get_running_loop()
    if service.pending + len(contents) > limits.queue:
        refuse_busy()
    service.pending += len(contents)
    shape, end = address.served.about.shape, loop.time() + service.limits.deadline
    try:
        async with asyncio.timeout_at(end):
            decoded = [
                loop.run_in_executor(service.decoders, read_picture, content, shape, limits.pixels)
                for content in contents
            ]
            images = arrange(await asyncio.gather(*decoded))
            return await service.batcher.ask(address.served, address.row, images, end - loop.time())
    except TimeoutError as error:
        raise Refusal(504, f"There was no answer within {limits.deadline:g} seconds.") from error
    except QueueFullError:
        refuse_busy()
    except PromptFedError as error:
        raise Refusal(503, "The model of this client cannot answer; tell who runs this server.") from error
    finally:
        service.pending -= len(contents)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what `work` does, or stop it when the client has left."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.create_task(work), asyncio.create_task(leave())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal(499, "The client has left.")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """Return a whole number of the query."""
    given = request.query_params.get(name)
    if given is None:
        return min(default, most)
    if not (given.isascii() and given.isdigit() and len(given) < 9 and least <= int(given) <= most):
        raise Refusal(400, f"Give {name} as a whole number from {least} to {most}.")
    return int(given)


# -- what there is ----------------------------------------------------------------------------------------------------


async def clients(request: Request, service: Service) -> Response:
    """List the clients that the request may ask for."""
    found = access.visible(service, access.authorise(request, service))
    limit, offset = _number(request, "limit", CLIENTS, 1, CLIENTS), _number(request, "offset", 0, 0, 10**8)
    listed = [
        {"client": name, "name": about.name, "accuracy": about.accuracy}
        for name, address in list(found.items())[offset : offset + limit]
        for about in [address.served.about.clients[address.client]]
    ]
    return JSONResponse({"total": len(found), "clients": listed})


async def model(request: Request, service: Service) -> Response:
    """Describe the bundles."""
    access.authorise(request, service)
    found = [
        {
            "bundle": served.name,
            "method": served.about.method["name"],
            "backbone": served.about.backbone["name"],
            "classes": served.about.classes,
            "image": {"height": served.about.shape[0], "width": served.about.shape[1]},
            "clients": len(served.order),
            "round": served.about.round,
        }
        for served in service.opened.bundles
    ]
    return JSONResponse({"promptfed": __version__, "tokens": service.tokens.used, "bundles": found})


async def health(request: Request, service: Service) -> Response:
    """Say that the server lives."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request, service: Service) -> Response:
    """Say whether there is room for another request, in any of the processes."""
    if not any(one.room for one in await service.crew.states()):
        raise Refusal(503, "The queue is full.")
    return JSONResponse({"status": "ready"})


async def metrics(request: Request, service: Service) -> Response:
    """Return what is counted, by all processes together."""
    access.require_operator(request, service)
    return PlainTextResponse(together(await service.crew.states()), media_type="text/plain; version=0.0.4")


async def reload(request: Request, service: Service) -> Response:
    """Open the bundles again."""
    access.require_operator(request, service)
    try:
        await service.crew.reload()
    except (PromptFedError, OSError) as error:
        raise Refusal(409, "The bundles cannot be opened; those before are still served.") from error
    return JSONResponse({"clients": len(service.opened.clients)})


async def description(request: Request, service: Service) -> Response:
    """Return the description of all routes."""
    return JSONResponse(document())


ROUTES: tuple[tuple[str, str, Callable[[Request, Service], Awaitable[Response]]], ...] = (
    ("POST", "/v1/predict", predict),
    ("POST", "/v1/explain", show),
    ("POST", "/v1/reload", reload),
    ("GET", "/v1/clients", clients),
    ("GET", "/v1/model", model),
    ("GET", "/healthz", health),
    ("GET", "/readyz", ready),
    ("GET", "/metrics", metrics),
    ("GET", "/openapi.json", description),
)


def _page(name: str, kind: str) -> Handler:
    content = resources.files("promptfed.serving").joinpath("page", name).read_bytes()

    async def send(request: Request) -> Response:
        return Response(content, media_type=kind)

    return send


# -- refusals ---------------------------------------------------------------------------------------------------------


async def _refused(request: Request, refusal: Refusal) -> Response:
    return JSONResponse({"error": refusal.sentence}, refusal.status, refusal.headers)


async def _unknown(request: Request, error: HTTPException) -> Response:
    sentences = {404: "There is no such address; see /openapi.json.", 405: "This address takes another method."}
    sentence = sentences.get(error.status_code, "The request cannot be answered.")
    return JSONResponse({"error": sentence}, error.status_code, error.headers)
