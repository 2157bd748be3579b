"""Who may ask for whom: a token opens one client's model, an operator's opens all; a file keeps only their hashes.

A token is 256 random bits, so a plain sha256 of it cannot be reversed by guessing.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.core.files import private

PREFIX = "pf-"
FORMAT = 1


@dataclass(frozen=True)
class Grant:
    """What a token opens: the model of one client, or as the operator's, everything."""

    bundle: Path
    client: int | None  # None: the operator


Hashes = dict[str, int | None]
"""The client, or None for the operator, by the sha256 of its token."""


def beside(bundle: Path) -> Path:
    """Return where a bundle's tokens are kept unless another file is named."""
    folder = bundle.resolve()
    return folder.with_name(f"{folder.name}.tokens.json")


def new_token() -> str:
    """Return a fresh token."""
    return PREFIX + secrets.token_urlsafe(32)


def hashed(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_hashes(path: Path) -> Hashes:
    """Read a file of tokens; one that others may read is refused."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise PromptFedError(f"Others may read {path}; chmod 600 makes it private.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError("another format")
        entries: list[dict[str, object]] = content["tokens"]
        return {_digest(entry["sha256"]): _client(entry["client"]) for entry in entries}
    except (ValueError, KeyError, TypeError) as error:
        raise PromptFedError(f"{path} is not a file of tokens; make one with promptfed token.") from error


def write_hashes(path: Path, hashes: Mapping[str, int | None]) -> None:
    """Write a file of tokens in one step; only its owner may read it."""
    entries = [{"client": client, "sha256": digest} for digest, client in hashes.items()]
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with open(part, "w", encoding="utf-8", opener=private) as file:
        file.write(json.dumps({"format": FORMAT, "tokens": entries}, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def find(token: str, files: Iterable[tuple[Path, Hashes]]) -> Grant | None:
    """Return what a token opens.

    Tokens are found by their hash, so time may tell something of a hash, but nothing of a token.
    """
    digest = hashed(token)
    for bundle, hashes in files:
        for known in hashes.keys() & {digest}:
            if hmac.compare_digest(known, digest):
                return Grant(bundle, hashes[known])
    return None


class TokenFiles:
    """The files of tokens beside the bundles; a change counts from the next request on."""

    def __init__(self, files: Mapping[Path, Path]) -> None:
        self.files = files  # of every bundle
        self.used = any(path.exists() for path in files.values())
        self._read: dict[Path, tuple[tuple[int, int], Hashes]] = {}

    def find(self, token: str) -> Grant | None:
        """Return what a token opens, if anything."""
        return find(token, [(bundle, self._hashes(path)) for bundle, path in self.files.items()])

    def check(self) -> None:
        """Read all files, or say what is wrong with one."""
        for path in self.files.values():
            self._hashes(path)

    def _hashes(self, path: Path) -> Hashes:
        try:
            stat = path.stat()
        except FileNotFoundError:
            return {}
        version = stat.st_mtime_ns, stat.st_ino
        if path not in self._read or self._read[path][0] != version:
            self._read[path] = version, read_hashes(path)
        return self._read[path][1]


def token_files(folders: Sequence[Path], named: Path | None) -> TokenFiles:
    """Return the tokens of the bundles: those beside them, or of a single bundle those in the named file."""
    if named is not None and len(folders) > 1:
        raise PromptFedError("--tokens names the file of one bundle; with several, keep each beside its bundle.")
    if named is not None and not named.exists():
        raise PromptFedError(f"There is no file {named}; make one with promptfed token BUNDLE --tokens {named}.")
    found = TokenFiles({folder.resolve(): named or beside(folder) for folder in folders})
    found.check()
    return found


def _digest(value: object) -> str:
    if not isinstance(value, str) or len(value) != 64:
        raise ValueError("not a sha256")
    return value


def _client(value: object) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError("not a client")
    return value
