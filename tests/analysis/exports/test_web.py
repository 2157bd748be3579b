"""The page in a real browser: it answers as PromptFed does, asks nothing from elsewhere, and says what is missing."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from promptfed.analysis.exports.web import RUNTIME, export_page
from promptfed.runs import runner
from support.browser import Browser, browsing
from support.exported import expected
from support.served import served_files
from support.tiny_runs import tiny, write_images

FAST = ("device=cpu", "rounds=1", "evaluate.after=false")
RESIZED = """(async () => {
  const taken = await pixelsOf(await (await fetch('photo.png')).blob());
  return Array.from(resize(taken.rgb, taken.rows, taken.columns, %d, %d));
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a run, and the page of its client 1 with a photograph in the folder."""
    base = tmp_path_factory.mktemp("web")
    words = tiny(write_images(base / "small.npz"), *FAST, "method.size=1")
    runner.run("pfedpt", out=base / "run", overrides=tuple(words))
    export_page(base / "run", base / "page", client=1)
    pixels = np.random.default_rng(7).integers(0, 256, (23, 31, 3), np.uint8)
    Image.fromarray(pixels).save(base / "page" / "photo.png")
    return base / "run", base / "page"


def test_a_page_without_the_runtime_says_what_is_missing(made: tuple[Path, Path], browser: Browser) -> None:
    with served_files(made[1]) as address:
        browser.open(address, 375, "light")
        browser.evaluate("ready.catch(() => 0)")
        said = browser.evaluate("document.getElementById('said').textContent")
        assert said.startswith("The model cannot be loaded. ort.wasm.min.js is missing: copy the three files")
        assert browser.evaluate("document.getElementById('photo').disabled") is True
        assert browser.evaluate("document.documentElement.scrollWidth") <= 375


def test_photographs_are_scaled_as_pillow_does_it(made: tuple[Path, Path], browser: Browser) -> None:
    photo = Image.open(made[1] / "photo.png")
    with served_files(made[1]) as address:
        browser.open(address, 1280, "light")
        for height, width in ((8, 8), (40, 16), (23, 50), (23, 31)):
            found = np.array(browser.evaluate(RESIZED % (height, width)), np.uint8).reshape(height, width, 3)
            wanted = np.asarray(photo.resize((width, height), Image.Resampling.BICUBIC))
            assert np.array_equal(found, wanted)


def test_the_page_may_not_send_anything_elsewhere(made: tuple[Path, Path], browser: Browser) -> None:
    with served_files(made[1]) as address, served_files(made[1]) as elsewhere:
        browser.open(address, 1280, "light")
        assert browser.evaluate(f"fetch('{address}model.json').then(() => 'came', () => 'refused')") == "came"
        assert browser.evaluate(f"fetch('{elsewhere}model.json').then(() => 'came', () => 'refused')") == "refused"


@pytest.mark.slow
def test_the_model_runs_in_the_browser(made: tuple[Path, Path], browser: Browser, tmp_path: Path) -> None:
    runtime = os.environ.get("PROMPTFED_ORT_WEB")
    if not runtime:
        pytest.skip("PROMPTFED_ORT_WEB does not name the dist folder of the npm package onnxruntime-web.")
    run, page = made
    folder = shutil.copytree(page, tmp_path / "page")
    for name in RUNTIME:
        shutil.copyfile(Path(runtime) / name, folder / name)
    with served_files(folder) as address:
        browser.open(address, 375, "dark")
        browser.evaluate("ready.then(() => 0)")
        ask = "(async () => classify(await ready, await (await fetch('photo.png')).blob()))()"
        found = browser.evaluate(ask)
        assert found == pytest.approx(expected(run, folder / "photo.png", 1), abs=1e-4)
        choose(browser, folder / "photo.png")
        rows = json.loads(browser.evaluate(ROWS))
        best = int(np.argmax(found))
        assert rows[0] == [str(best), f"{100 * found[best]:.1f} %"]
        assert len(rows) == 4
        asked = browser.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
        assert all(name.startswith((address, f"blob:{address}")) for name in asked), asked
        assert browser.complaints() == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= 375


ROWS = """(async () => {
  while (document.getElementById('answers').hidden) await new Promise(next => setTimeout(next, 20));
  const rows = [...document.querySelectorAll('#answers tbody tr')];
  return JSON.stringify(rows.map(row => [...row.cells].map(cell => cell.textContent)));
})()"""


def choose(browser: Browser, photo: Path) -> None:
    """Choose a photograph as a visitor does."""
    root = browser.ask("DOM.getDocument")["root"]["nodeId"]
    node = browser.ask("DOM.querySelector", nodeId=root, selector="#photo")["nodeId"]
    browser.ask("DOM.setFileInputFiles", files=[str(photo)], nodeId=node)
