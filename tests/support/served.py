"""Pages that are served over HTTP from a thread: a folder, or the page of `promptfed serve`."""

import base64
import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from promptfed.serving.app import make_app
from promptfed.serving.service import make_service
from support.browser import Browser
from support.tiny_server import picture

FILL = """(async () => {
  const bytes = Uint8Array.from(atob('%s'), c => c.charCodeAt(0));
  const bag = new DataTransfer();
  bag.items.add(new File([bytes], 'photo.png', {type: 'image/png'}));
  const input = document.getElementById('%s');
  input.files = bag.files;
  input.dispatchEvent(new Event('change'));
  const words = id => document.getElementById(id).textContent;
  for (let n = 0; n < 600 && !words('where') && !/token/.test(words('status')); n++) {
    await new Promise(done => setTimeout(done, 50));
  }
})()"""
SHOWN = """(() => {
  const words = id => document.getElementById(id).textContent;
  const pen = document.getElementById('heat').getContext('2d');
  const {width, height} = document.getElementById('heat');
  const painted = pen.getImageData(0, 0, width, height).data.filter((v, n) => n % 4 === 3 && v > 0).length;
  return {
    answer: words('answer'), status: words('status'), where: words('where'), painted,
    rows: [...document.querySelectorAll('#bars tr')].map(row => row.innerText),
    focus: document.activeElement.id, page: document.documentElement.scrollWidth,
    view: document.documentElement.clientWidth, paper: getComputedStyle(document.body).backgroundColor,
    unnamed: [...document.querySelectorAll('input')].filter(i => !i.labels.length).length,
    small: [...document.querySelectorAll('input:not([type=checkbox])')]
      .filter(i => i.offsetParent && i.getBoundingClientRect().height < 44).length,
    outside: performance.getEntriesByType('resource').filter(e => !e.name.startsWith(location.origin)
      && !e.name.startsWith('blob:' + location.origin)).map(e => e.name),
    inline: document.querySelectorAll('[style], style, script:not([src])').length,
    hidden: document.getElementById('token-row').hidden,
  };
})()"""


class Visited:
    """A server in a thread."""

    def __init__(self, bundle: Path) -> None:
        self.server = uvicorn.Server(uvicorn.Config(make_app(make_service([bundle], "cpu")), port=0, log_config=None))
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> str:
        self.thread.start()
        while not self.server.started:
            self.thread.join(0.01)
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}/"

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()


def fill(browser: Browser, where: str = "picture", side: int = 64) -> dict[str, Any]:
    """Give the page a picture and return what it then shows."""
    browser.evaluate(FILL % (base64.b64encode(picture(1, side)).decode(), where))
    found: dict[str, Any] = browser.evaluate(SHOWN)
    return found


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server that prints nothing."""

    def log_message(self, format: str, *given: Any) -> None:  # noqa: A002
        return


@contextmanager
def served_files(folder: Path) -> Iterator[str]:
    """Serve a folder; yield its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
