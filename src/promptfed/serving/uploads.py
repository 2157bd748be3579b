"""The images of a request: read within its limits, in memory alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from promptfed.serving.forms import read_form
from promptfed.serving.refusals import Refusal, refuse_busy
from promptfed.serving.service import Service

RAW = ("", "application/octet-stream")
KINDS = "image/…, application/octet-stream or multipart/form-data"


@asynccontextmanager
async def uploaded(request: Request, service: Service) -> AsyncIterator[list[bytes]]:
    """Read the request's images; their bytes count as held until they are done with."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    form = kind == "multipart/form-data"
    if not (form or kind in RAW or kind.startswith("image/")):
        raise Refusal(415, f"Images come as {KINDS}.")
    content = bytearray()
    try:
        await _read(request, service, content)
        kind = request.headers.get("content-type", "")
        yield read_form(kind, bytes(content), service.limits.images) if form else [bytes(content)]
    finally:
        service.held -= len(content)


async def _read(request: Request, service: Service, content: bytearray) -> None:
    """Read the body, no more than is allowed and no longer than is patient."""
    limits = service.limits
    declared = request.headers.get("content-length", "0")
    too_large = Refusal(413, f"The request is too large; up to {limits.body:,} bytes are read.")
    if declared.isdigit() and int(declared) > limits.body:
        raise too_large
    try:
        async with asyncio.timeout(limits.patience):
            async for chunk in request.stream():
                if len(content) + len(chunk) > limits.body:
                    raise too_large
                if service.held + len(chunk) > limits.held:
                    refuse_busy()
                content += chunk
                service.held += len(chunk)
    except TimeoutError as error:
        raise Refusal(408, f"The request took longer than {limits.patience:g} seconds to arrive.") from error
    except ClientDisconnect as error:
        raise Refusal(400, "The upload was cut off.") from error
    if declared.isdigit() and 0 < int(declared) != len(content):
        raise Refusal(400, "The upload was cut off.")
