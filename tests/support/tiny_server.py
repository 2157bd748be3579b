"""A tiny bundle, and a server of it in this process: no sockets, but all of the application."""

import asyncio
import io
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
from PIL import Image

from promptfed.analysis.bundle.making import make_bundle
from promptfed.runs import runner
from promptfed.serving.app import make_app
from promptfed.serving.limits import ServingLimits
from promptfed.serving.service import Service, make_service
from support.tiny_runs import tiny, write_images

Result = TypeVar("Result")


def tiny_bundle(base: Path, name: str = "shops", clients: int = 4) -> Path:
    """Return a bundle of pFedPT, trained unless it is there; a test that changes it takes a copy."""
    folder = base / name
    if not folder.exists():
        words = tiny(write_images(base / f"{name}.npz"), "device=cpu", "evaluate.after=false", "rounds=1")
        ran = runner.run("pfedpt", out=base / f"{name}.run", overrides=(*words, f"clients={clients}"))
        make_bundle(ran.folder, folder, "cpu")
    return folder


def copied(bundle: Path, target: Path) -> Path:
    """Return a copy of a bundle that a test may change."""
    shutil.copytree(bundle, target)
    return target


def picture(seed: int = 0, side: int = 8, kind: str = "PNG") -> bytes:
    """Return an image file of noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, kind)
    return stream.getvalue()


def visit(
    *bundles: Path, work: Callable[[httpx.AsyncClient, Service], Awaitable[Result]], limits: ServingLimits | None = None
) -> Result:
    """Start a server of bundles, let `work` ask it, and stop it."""

    async def run() -> Result:
        service = make_service(bundles, "cpu", limits=limits)
        app = make_app(service)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await work(client, service)

    return asyncio.run(run())


class lifespan:  # noqa: N801  (it is used as a verb)
    """Runs the application's start and end, as a server does."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> None:
        self.task = asyncio.create_task(self.app({"type": "lifespan"}, self.told.get, self.heard.put))
        await self.told.put({"type": "lifespan.startup"})
        assert (await self.heard.get())["type"] == "lifespan.startup.complete"

    async def __aexit__(self, *_: object) -> None:
        await self.told.put({"type": "lifespan.shutdown"})
        assert (await self.heard.get())["type"] == "lifespan.shutdown.complete"
        await self.task
