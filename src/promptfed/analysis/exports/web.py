"""A folder for a web server: a page on which one client's model runs in the visitor's browser.

The browser's part of ONNX Runtime is not ours and is not in the folder: whoever sets the page up copies three files of
the npm package onnxruntime-web beside it. The page may load nothing from elsewhere and send nothing anywhere.
"""

import shutil
from pathlib import Path

from promptfed.analysis.exports.card import write_about, write_card
from promptfed.analysis.exports.making import GRAPHS, Exported, exported, in_words, new_folder, write_graph
from promptfed.analysis.exports.opening import open_source

PAGE = Path(__file__).parent / "page"
VERSION = "1.23.2"  # of onnxruntime-web, with which the page is tested
RUNTIME = ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
USE = f"""The model runs in the browser of whoever opens the page, and a photograph never leaves that browser: the
page's content security policy lets it load and ask nothing but the files of this folder. The part of ONNX Runtime that
runs in browsers is not in the folder. Copy three of its files beside `index.html`, once:

```sh
npm pack onnxruntime-web@{VERSION}
tar --extract --gzip --strip-components=2 --file onnxruntime-web-{VERSION}.tgz \\
    {" ".join(f"package/dist/{name}" for name in RUNTIME)}
```

Then put the folder on any web server, or try it here with `python -m http.server` and open http://localhost:8000. A
page that is opened as a file, without a server, cannot load its model."""


def export_page(source: Path, out: Path, *, client: int | None = None) -> Exported:
    """Write the page, with the model of one client, to the new folder `out`."""
    with new_folder(out) as (part, scratch):
        found = open_source(source, scratch, client, together=False)
        _, difference = write_graph(part, found, GRAPHS["onnx"])
        for path in PAGE.iterdir():
            shutil.copyfile(path, part / path.name)
        write_about(part, found, "web", {}, difference, None)
        write_card(part, found, USE, [in_words(difference, 1)])
    return exported(out, found, difference)
