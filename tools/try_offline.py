"""Install PromptFed as a machine without internet does, by the commands of docs/operating.md, and use it.

    python tools/try_offline.py dist/promptfed-0.1.0-py3-none-any.whl

The wheels are gathered with a connection. Everything after that runs without a network where this system lets a process
give up its own, and never asks an index in any case.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FED = 'sites = ["north", "south"]\n'
RUN = ["run", "fedavg", "rounds=1", "clients=2", "data.limit=2", "device=cpu", "--out", "run"]
USES: dict[str, list[list[str]]] = {  # of what each extra brings
    "": [["-m", "promptfed", *RUN]],
    "flare": [["-m", "promptfed", "sites", "init", "fed.toml"], ["-m", "promptfed", "sites", "doctor", "federation"]],
    "serve": [["-c", "import promptfed.serving.server, promptfed.serving.app"]],
}


def gather(wheel: Path, wheelhouse: Path) -> None:
    """Gather wheels of everything; what comes only as source is built here, where its build tools can be fetched."""
    wanted = f"{wheel.resolve()}[{','.join(extra for extra in USES if extra)}]"
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(wheelhouse)]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), wanted], check=True)


def without_network() -> list[str]:
    """Return a prefix under which a command has no network; empty where this system does not allow that."""
    prefix = ["unshare", "--map-root-user", "--net"]
    try:
        done = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return []
    return [] if done.returncode else prefix


def install(wheelhouse: Path, folder: Path, extra: str) -> Path:
    """Install into a new environment from the wheelhouse alone; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "--isolated", "install", "--quiet", "--no-index", "--find-links", str(wheelhouse)]
    subprocess.run([*without_network(), *pip, f"promptfed[{extra}]" if extra else "promptfed"], check=True)
    return python


def try_extra(wheelhouse: Path, folder: Path, extra: str) -> None:
    """Install with one extra and run what needs it."""
    python, empty = install(wheelhouse, folder / f"venv-{extra}", extra), folder / f"empty-{extra}"
    empty.mkdir()
    (empty / "fed.toml").write_text(FED, encoding="utf-8")
    for words in USES[extra]:
        subprocess.run([*without_network(), str(python), "-I", *words], cwd=empty, check=True)
    print(f"promptfed{f'[{extra}]' if extra else ''} works offline.", flush=True)


def main() -> None:
    """Gather once, then try every extra."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gather(given.wheel, folder / "wheelhouse")
        for extra in USES:
            try_extra(folder / "wheelhouse", folder, extra)


if __name__ == "__main__":
    main()
