"""Where the official files come from, and a download that resumes, checks and never leaves half a file behind."""

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from promptfed.core import progress
from promptfed.core.errors import PromptFedError
from promptfed.core.files import held

CHUNK = 1 << 18
TRIES = 4
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Remote:
    """One official file: its name, its address, its size in bytes, and the checksums it may have."""

    file: str
    url: str
    size: int
    checksum: str
    also: tuple[str, ...] = ()  # the same contents in another wrapping


_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_TORONTO = "https://www.cs.toronto.edu/~kriz/"


def _fashion(file: str, size: int, checksum: str, debian: str) -> Remote:
    """Return one of the four files; Debian packs the same bytes with another gzip header."""
    return Remote(file, _FASHION + file, size, f"md5:{checksum}", (f"md5:{debian}",))


def _one(base: str, file: str, size: int, checksum: str) -> tuple[Remote, ...]:
    """Return the single file of a data set."""
    return (Remote(file, base + file, size, f"md5:{checksum}"),)


REMOTES: dict[str, tuple[Remote, ...]] = {
    "cifar10": _one(_TORONTO, "cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a"),
    "cifar100": _one(_TORONTO, "cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85"),
    "fashion-mnist": (
        _fashion(
            "train-images-idx3-ubyte.gz",
            26_421_880,
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "cf8536b0aa1a6ac5fa3f23001093305c",
        ),
        _fashion(
            "train-labels-idx1-ubyte.gz",
            29_515,
            "25c81989df183df01b3e8a0aad5dffbe",
            "10bea18fdb374794d4bb42e356e600c9",
        ),
        _fashion(
            "t10k-images-idx3-ubyte.gz",
            4_422_102,
            "bef4ecab320f06d8554ea6380940ec79",
            "f78720b4224f21cce2f2ccf2d7a94c9a",
        ),
        _fashion(
            "t10k-labels-idx1-ubyte.gz",
            5_148,
            "bb300cfdad3c16e7a12a480ee83cd310",
            "0d30e22e447f3c33dab9ed536400ac01",
        ),
    ),
    "tiny-imagenet": _one(
        "http://cs231n.stanford.edu/", "tiny-imagenet-200.zip", 248_100_043, "90528d7ca1a48142e341f4ef8d21d0de"
    ),
}


def home() -> Path:
    """Return the folder for data and caches: $PROMPTFED_HOME, or ~/.cache/promptfed."""
    given = os.environ.get("PROMPTFED_HOME")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "promptfed"


def digest(path: Path, kind: str = "sha256") -> str:
    """Return the checksum of a file as "kind:hex"."""

    def fresh() -> "hashlib._Hash":
        return hashlib.new(kind, usedforsecurity=False)  # or md5 is refused where FIPS rules hold

    with path.open("rb") as stream:
        return f"{kind}:{hashlib.file_digest(stream, fresh).hexdigest()}"


def fetch(url: str, target: Path, checksum: str, *, name: str = "NAME") -> Path:
    """Download `url` to `target`, resuming what an earlier try left, and return `target` once its checksum is right.

    `checksum` is "md5:…" or "sha256:…"; `name` is the data set named in the advice for a machine without network.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with held(target.with_name(f".{target.name}.lock"), wait=True):  # another run may want the same file at once
        if target.is_file() and digest(target, checksum.partition(":")[0]) == checksum:
            return target
        return _fetch(url, target, checksum, name)


def _fetch(url: str, target: Path, checksum: str, name: str) -> Path:
    part = target.with_name(target.name + ".part")
    failure: Exception | None = None
    for _ in range(TRIES):
        try:
            _transfer(url, part)
            break
        except (OSError, http.client.HTTPException) as problem:
            failure = problem
    else:
        kept = "what arrived is kept, and the next try resumes from there" if part.exists() else "nothing arrived"
        raise PromptFedError(
            f"Could not download {url} ({failure}); {kept}. "
            f"`promptfed data add {name} PATH` takes a {target.name} downloaded by hand."
        ) from failure
    actual = digest(part, checksum.partition(":")[0])
    if actual != checksum:
        part.unlink()
        raise PromptFedError(
            f"{url} arrived with checksum {actual} instead of {checksum}, so it was deleted; try again, "
            f"or take a {target.name} downloaded by hand with `promptfed data add {name} PATH`."
        )
    part.replace(target)
    return target


def _transfer(url: str, part: Path) -> None:
    """Append what is missing of `url` to `part`; a transfer that breaks off raises ConnectionError."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as problem:
        with problem:
            if problem.code == 416 and have == _total(problem.headers.get("Content-Range")):
                return
            if problem.code == 416:
                part.unlink()
            raise
    with response:
        # A server that knows no ranges answers 200 with the whole file.
        have = have if response.status == 206 else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as out, progress.bar(part.stem, total or 0, unit="bytes") as advance:
            advance(have, "")
            while chunk := response.read(CHUNK):
                have += out.write(chunk)
                advance(len(chunk), "")
    if total is not None and have < total:
        raise ConnectionError(f"the transfer broke off after {have:,} of {total:,} bytes")


def _total(content_range: str | None) -> int | None:
    """Return the size a server names in `Content-Range: bytes */SIZE`."""
    match = re.fullmatch(r"bytes \*/(\d+)", content_range or "")
    return int(match[1]) if match else None
