"""Write requirements/: every version and hash that a release is tested with, for the package and for each extra.

Versions are those of constraints.txt; what it leaves open, such as the CUDA libraries of torch, keeps the version it
had. Everything comes from PyPI, whatever uv is set up to use on this machine. `--upgrade` takes the newest versions of
what is left open.
"""

import argparse
import os
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = Path("requirements")
OURS = ("docs", "dev")  # extras for work on PromptFed itself; constraints.txt is enough there
PYPI = "https://pypi.org/simple"
MADE_BY = "# Made by `make lock` from pyproject.toml and constraints.txt; install with: pip install --require-hashes -r"


def extras(project: dict[str, dict[str, list[str]]]) -> list[str]:
    """Return what a lock is made for: "core", and every extra that users install."""
    return ["core", *(name for name in project["optional-dependencies"] if name not in OURS)]


def command(uv: str, name: str, upgrade: bool) -> list[str]:
    """Return the command that writes one lock, valid for every supported Python and system."""
    wanted = [] if name == "core" else ["--extra", name]
    fixed = ["--no-config", "--default-index", PYPI, "--no-emit-index-url", "--universal", "--python-version", "3.11"]
    quiet = [
        "--quiet",
        "--no-header",
        "--annotation-style=line",
        "--generate-hashes",
        *(["--upgrade"] if upgrade else []),
    ]
    place = str(FOLDER / f"{name}.lock")
    return [uv, "pip", "compile", *fixed, *quiet, "-c", "constraints.txt", *wanted, "pyproject.toml", "-o", place]


def main() -> None:
    """Write all locks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uv", default="uv", help="the uv to use")
    parser.add_argument(
        "--upgrade", action="store_true", help="take the newest versions where constraints.txt has none"
    )
    given = parser.parse_args()
    clean = {name: value for name, value in os.environ.items() if not re.match("UV_(?!CACHE)", name)}
    (ROOT / FOLDER).mkdir(exist_ok=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in extras(project):
        path = ROOT / FOLDER / f"{name}.lock"
        subprocess.run(command(given.uv, name, given.upgrade), cwd=ROOT, env=clean, check=True)
        path.write_text(f"{MADE_BY} {FOLDER / path.name}\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
        print(
            f"{path.relative_to(ROOT)}: {len(re.findall(r'^[a-z]', path.read_text(encoding='utf-8'), re.M))} packages"
        )


if __name__ == "__main__":
    main()
