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
    """One official file: its name, its address, its size in bytes, and the SHA-256 checksums it may have."""

    file: str
    url: str
    size: int
    checksum: str
    also: tuple[str, ...] = ()  # the same contents in another wrapping


# The authors' own repository at its last commit; the address in their paper has no https.
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/"
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_STANFORD = "https://cs231n.stanford.edu/"


def _fashion(file: str, size: int, checksum: str, debian: str) -> Remote:
    """Return one of the four files; Debian packs the same bytes with another gzip header."""
    return Remote(file, _FASHION + file, size, f"sha256:{checksum}", (f"sha256:{debian}",))


def _one(base: str, file: str, size: int, checksum: str) -> tuple[Remote, ...]:
    """Return the single file of a data set."""
    return (Remote(file, base + file, size, f"sha256:{checksum}"),)


REMOTES: dict[str, tuple[Remote, ...]] = {
    "cifar10": _one(
        _TORONTO,
        "cifar-10-python.tar.gz",
        170_498_071,
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
    "cifar100": _one(
        _TORONTO,
        "cifar-100-python.tar.gz",
        169_001_437,
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    ),
    "fashion-mnist": (
        _fashion(
            "train-images-idx3-ubyte.gz",
            26_421_880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
        ),
        _fashion(
            "train-labels-idx1-ubyte.gz",
            29_515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
        ),
        _fashion(
            "t10k-images-idx3-ubyte.gz",
            4_422_102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
        ),
        _fashion(
            "t10k-labels-idx1-ubyte.gz",
            5_148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
        ),
    ),
    "tiny-imagenet": _one(
        _STANFORD,
        "tiny-imagenet-200.zip",
        248_100_043,
        "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
    ),
}


def home() -> Path:
    """Return the folder for data and caches: $PROMPTFED_HOME, or ~/.cache/promptfed."""
    given = os.environ.get("PROMPTFED_HOME")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "promptfed"


def digest(path: Path) -> str:
    """Return the checksum of a file as "sha256:hex"."""
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def fetch(url: str, target: Path, checksum: str, *, name: str = "NAME") -> Path:
    """Download `url` to `target`, resuming what an earlier try left, and return `target` once its checksum is right.

    `checksum` is "sha256:…"; `name` is the data set named in the advice for a machine without network.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with held(target.with_name(f".{target.name}.lock"), wait=True):  # another run may want the same file at once
        if target.is_file() and digest(target) == checksum:
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
    actual = digest(part)
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
