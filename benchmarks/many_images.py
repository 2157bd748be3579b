"""A folder of very many photographs: seconds to list it, to decode it once and to open it again, and memory.

    python benchmarks/many_images.py [--images 1000000] [--size 8] [--folder DIR]

The photographs are hard links to a few tiny PNG files in 100 folders of classes. Listing is what every run on the
folder does; the decoded copy is a file that is mapped, so that its images are read when they are needed.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 100
LINKS = 50_000  # to one file, of which a file system allows 65,000


def make(root: Path, images: int) -> None:
    """Make the folder."""
    rng, source = np.random.default_rng(0), root
    for number in range(images):
        if number % LINKS == 0:
            source = root.parent / f"source-{number}.png"
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(source)
        place = root / f"class-{number % CLASSES:03d}"
        if number < CLASSES:
            place.mkdir(parents=True)
        os.link(source, place / f"{number:07d}.png")


def resident() -> float:
    """Return this process's resident memory in megabytes (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def row(what: str) -> Iterator[None]:
    """Print a row of the table: what was done, how long it took, and how much more memory is taken."""
    began, before = time.perf_counter(), resident()
    yield
    print(f"| {what} | {time.perf_counter() - began:.1f} | {resident() - before:.0f} |", flush=True)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where the photographs may lie for as long as it takes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        os.environ["PROMPTFED_HOME"] = str(Path(place) / "home")
        from promptfed.data import open_dataset
        from promptfed.data.folder import scan

        root = Path(place) / "photographs"
        make(root, args.images)
        print(f"{args.images:,} photographs\n\n| what | seconds | further resident MB |\n|---|--:|--:|")
        with row("list the folder"):
            assert len(scan(root)) == args.images
        with row("list and decode"):
            assert len(open_dataset(f"folder:{root}", size=args.size)) == args.images
        with row("open again"):
            data = open_dataset(f"folder:{root}", size=args.size)
        with row("read 10,000 images"):
            data.images[:: max(1, args.images // 10_000)].sum()


if __name__ == "__main__":
    main()
