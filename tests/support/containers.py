"""Images built by buildah and run without Docker: read-only, as the image's own user, with processes of their own."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("buildah", "debootstrap", "unshare", "nsenter")
MIRROR = "http://deb.debian.org/debian"
# Arguments: the tree; volumes as three words (outside, inside, mode); "--", the user, the folder to work in, a command.
ENTER = r"""
set -eu
tree=$1; shift
mount --make-rprivate /
mount --bind "$tree" "$tree"
pairs=()
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "$tree$2"; else touch "$tree$2"; fi
  pairs+=("$1" "$2" "$3"); shift 3
done
shift
mkdir -p "$tree/proc" "$tree/tmp" "$tree/dev"
mount -o remount,bind,ro "$tree"
mount -t proc proc "$tree/proc"
mount -t tmpfs -o mode=1777 tmpfs "$tree/tmp"
mount --rbind /dev "$tree/dev"
set -- "${pairs[@]}" -- "$@"
while [ "$1" != -- ]; do
  mount --bind "$1" "$tree$2"
  [ "$3" = rw ] || mount -o remount,bind,ro "$tree$2"
  shift 3
done
user=$2; cwd=$3; shift 3
exec chroot --userspec="$user:$user" --groups= "$tree" /usr/bin/env -C "$cwd" "$@"
"""


def require_builder() -> None:
    """Skip a test where images cannot be built."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.getuid() != 0:
        pytest.skip(f"building images needs root and {', '.join(missing or TOOLS)}")


Volume = tuple[Path, str, str]  # outside, inside, "ro" or "rw"


@dataclass(frozen=True)
class Image:
    """A built image as a file tree, with what its Dockerfile says about running it."""

    tree: Path
    config: Mapping[str, Any]

    @property
    def user(self) -> str:
        """Return the number of the user it runs as."""
        return str(self.config["User"])

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that it sets."""
        return dict(entry.partition("=")[::2] for entry in self.config["Env"]) | {"OMP_NUM_THREADS": "1"}

    def start(self, words: Sequence[str], volumes: Sequence[Volume], log: Path) -> "subprocess.Popen[bytes]":
        """Start the image's entry point with these words."""
        return self.start_command([*self.config["Entrypoint"], *words], volumes, log)

    def start_command(self, command: Sequence[str], volumes: Sequence[Volume], log: Path) -> "subprocess.Popen[bytes]":
        """Start any command of the image."""
        hosts = (Path("/etc/hosts"), "/etc/hosts", "ro")  # as Docker gives every container one
        places = [str(part) for volume in (hosts, *volumes) for part in volume]
        given = [str(self.tree), *places, "--", self.user, str(self.config["WorkingDir"]), *command]
        space = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", ENTER, "enter"]
        with log.open("ab") as out:
            return subprocess.Popen([*space, *given], stdout=out, stderr=out, env=self.environment)

    def execute(self, started: "subprocess.Popen[bytes]", *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command inside one that was started, as `docker exec` does."""
        place = ["--target", str(first_process(started)), "--mount", "--pid", "--root", "--wd"]
        who = ["--setuid", self.user, "--setgid", self.user]
        whole = ["nsenter", *place, *who, *command]
        return subprocess.run(whole, env=self.environment, capture_output=True, text=True, timeout=280, check=False)


def first_process(started: "subprocess.Popen[bytes]", seconds: float = 60) -> int:
    """Return the process that is the first one inside, to which Docker would send its signals, once it is inside."""
    ends, children = time.monotonic() + seconds, Path(f"/proc/{started.pid}/task/{started.pid}/children")
    while started.poll() is None and time.monotonic() < ends:
        found = children.read_text().split()
        if found and Path(f"/proc/{found[0]}/root").readlink() != Path("/"):
            return int(found[0])
        time.sleep(0.05)
    raise AssertionError(f"it has not started, or has ended with {started.poll()}")


def stop(started: "subprocess.Popen[bytes]", seconds: float = 60) -> int:
    """Send SIGTERM as Docker does, and return the exit code; it is killed if it takes too long."""
    os.kill(first_process(started), signal.SIGTERM)
    try:
        return started.wait(seconds)
    finally:
        started.kill()
        started.wait()


class Builder:
    """Builds images in a store of its own, from a base that stands in for python:3.13-slim."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def buildah(self, *words: str) -> str:
        """Run buildah and return what it prints."""
        place = ["--storage-driver", "vfs", "--root", f"{self.folder}/store", "--runroot", f"{self.folder}/run"]
        done = subprocess.run(["buildah", *place, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def make_base(self) -> None:
        """Make Debian with its Python, under the name that the Dockerfiles use."""
        tree, packages = self.folder / "base", "python3,python3-pip,python3-venv,ca-certificates"
        bootstrap = ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(tree), MIRROR]
        subprocess.run(bootstrap, check=True, stdout=subprocess.DEVNULL)
        (tree / "usr/bin/python").symlink_to("python3")
        for mark in tree.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            mark.unlink()
        (self.folder / "Base").write_text("FROM scratch\nCOPY base /\n")
        self.buildah(
            "build", "--isolation", "chroot", "-f", f"{self.folder}/Base", "-t", "python:base", str(self.folder)
        )

    def build(self, dockerfile: str, name: str) -> Image:
        """Build an image of this repository; how pip reaches packages on this machine is lent to the build alone."""
        (self.folder / "pip.conf").write_text(_pip_settings())
        lent = ["-v", f"{self.folder}/pip.conf:/etc/pip.conf:ro", "-v", "/etc/ssl/certs:/etc/ssl/certs:ro"]
        if links := _pip("global.find-links"):
            lent += ["-v", f"{links}:{links}:ro", "--build-arg", "TORCH_INDEX=https://pypi.org/simple"]
        how = [
            "--isolation",
            "chroot",
            "--format",
            "docker",
            "--pull-never",
            "--build-arg",
            "BASE=localhost/python:base",
        ]
        self.buildah("build", *how, *lent, "-f", dockerfile, "-t", name, ".")
        container = self.buildah("from", "--pull-never", f"localhost/{name}").strip()
        tree = Path(self.buildah("mount", container).strip())
        about = json.loads(self.buildah("inspect", "--type", "image", f"localhost/{name}"))
        return Image(tree, about["Docker"]["config"])


def _pip(key: str) -> str:
    done = subprocess.run(["pip", "config", "get", key], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _pip_settings() -> str:
    """Return this machine's settings of pip that a build needs."""
    found = {key: _pip(f"global.{key}") for key in ("find-links", "index-url", "cert", "proxy")}
    return "\n".join(["[global]", *(f"{key} = {value}" for key, value in found.items() if value), ""])
