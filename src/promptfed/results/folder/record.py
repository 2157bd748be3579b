"""Writing a run folder: its rounds as they finish, and the checkpoint a stopped run resumes from.

`checkpoint/state.json` is the commit point. It is replaced in one step and names every file that counts, so a run
killed at any instant finds either the old state or the new one; lines of rounds.jsonl beyond it are made again.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from promptfed.core import files
from promptfed.core.errors import PromptFedError
from promptfed.core.files import make_private, sealed, sealed_toml, unsealed, write_sealed, write_text
from promptfed.results.folder import names
from promptfed.results.folder.each import packed, unpacked

Line = dict[str, Any]
FORMAT = 2
READABLE = (1, 2)  # in format 1, the checkpoint's state lists the clients of every file
WHOLE = (  # the files of a run folder that are written in one step
    *(names.RECIPE, names.ENVIRONMENT, names.PARTITION, names.ROUNDS, names.SUMMARY, names.PREDICTIONS, names.REPORT),
    *(names.FIGURES, names.DOMAINS, names.QUALITY, names.AUDIT, names.TRACKED),
)


def over_sites(folder: Path) -> bool:
    """Return whether a run folder is the coordinator's side of a run over sites."""
    return (folder / names.FEDERATION).is_file()


class Record:
    """One run's folder, open for writing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / names.CHECKPOINT
        self.rounds: list[Line] = []

    @classmethod
    def create(cls, folder: Path, recipe: str, env: Mapping[str, object], *, own: bool = False) -> "Record":
        """Start a run in a new or empty folder."""
        record = cls(folder)
        record.begin(recipe, env, own=own)
        return record

    def begin(self, recipe: str, env: Mapping[str, object], *, own: bool = False) -> None:
        """Write a run's first files; until then nothing is written, so a run can be prepared before it has a folder.

        A new folder for a run on a user's `own` images is for no one else to read.
        """
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise PromptFedError(f"{folder} is a file, not a folder; choose another --out.")
        if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
            hint = f"resume it with --resume {folder}, or " if (folder / names.RECIPE).is_file() else ""
            raise PromptFedError(f"{folder} is not empty; {hint}choose another --out.")
        try:
            make_private(folder) if own else folder.mkdir(parents=True, exist_ok=True)
        except (FileNotFoundError, NotADirectoryError, FileExistsError, PermissionError) as error:
            raise PromptFedError(
                f"Run folder {folder} cannot be created: {error.strerror}; choose another --out."
            ) from error
        write_text(folder / names.RECIPE, sealed_toml(recipe))  # from here on the run can be resumed
        self.checkpoint.mkdir()
        write_sealed(folder / names.ENVIRONMENT, env)

    @classmethod
    def reopen(cls, folder: Path) -> Self:
        """Open the folder of a run to resume it."""
        if not (folder / names.RECIPE).is_file():
            raise PromptFedError(f"{folder} holds no run to resume: {names.RECIPE} is missing.")
        record = cls(folder)
        record.checkpoint.mkdir(exist_ok=True)
        return record

    def kept(self, name: str, finished: int) -> Path:
        """Return the file of what is kept under `name` after so many rounds, such as words/000003.safetensors."""
        return self.folder / names.kept_file(name, finished)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder: two processes that write into one run would corrupt it."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(files.held(self.folder / names.LOCK, wait=False))
            except BlockingIOError as error:
                raise PromptFedError(f"Another process is using {self.folder}; wait until it ends.") from error
            self._sweep()
            yield

    def _sweep(self) -> None:
        """Remove what a process that was killed while it wrote one of the run's files has left."""
        for path in (*map(self.folder.joinpath, WHOLE), self.checkpoint / names.STATE):
            files.part_of(path).unlink(missing_ok=True)

    def state(self, recipe_hash: str, partition_hash: str, sources: Mapping[str, str] | None = None) -> Line | None:
        """Return the last committed state after checking that it belongs to this recipe and partition.

        It is also checked against the digests in `sources`, unless it was written before there were any.
        """
        path = self.checkpoint / names.STATE
        if not path.exists():
            return None
        try:
            state: Line = unsealed(path.read_text(encoding="utf-8"))
            known = {key: state[key] for key in ("format", "recipe", "partition", "round", "server", "personal")}
            whole = isinstance(known["round"], int) and isinstance(known["personal"], dict)
            whole = whole and {"file", "crc32"} <= known["server"].keys()
            whole = whole and all(map(_names_trees, known["personal"].values()))
            whole = whole and all({"version", "crc32"} <= one.keys() for one in state.get("versions", {}).values())
        except (ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise PromptFedError(
                f"Checkpoint {path} is damaged or not a checkpoint; start a new run with another --out."
            )
        if known["format"] not in READABLE:
            raise PromptFedError(f"Checkpoint {path} has format {known['format']}; this version reads up to {FORMAT}.")
        for what, expected in (("recipe", recipe_hash), ("partition", partition_hash)):
            if known[what] != expected:
                raise PromptFedError(
                    f"Checkpoint {path} belongs to another {what}; start a new run with another --out."
                )
        _check_sources(path, state.get("sources"), sources or {})
        return state

    def read(self, finished: int) -> list[str]:
        """Load the `finished` rounds and return their lines; nothing is written."""
        path = self.folder / names.ROUNDS
        found = path.read_bytes().removesuffix(b"\n").split(b"\n")[:finished] if path.exists() else []
        lines, self.rounds = [], []
        for number, raw in enumerate(found if any(found) else [], 1):
            try:
                lines.append(raw.decode())
                self.rounds.append(unpacked(unsealed(lines[-1]), self.folder))
                if self.rounds[-1]["round"] != number:
                    raise ValueError("a round is missing or repeated")
            except (ValueError, KeyError, TypeError) as error:
                raise PromptFedError(
                    f"{path} is damaged within its first {finished} rounds, in line {number}; start a new run."
                ) from error
        if len(lines) < finished:
            raise PromptFedError(f"{path} holds {len(lines)} rounds, the checkpoint {finished}; start a new run.")
        return lines

    def rewind(self, finished: int) -> None:
        """Keep only the lines of the `finished` rounds; a line cut off by a crash comes after them."""
        kept = self.read(finished)
        write_text(self.folder / names.ROUNDS, "".join(line + "\n" for line in kept))
        for path in (self.folder / names.EACH).glob("*.npz"):
            if path.stem.isdecimal() and int(path.stem) > finished:
                path.unlink()

    def append(self, line: Line) -> None:
        """Add a finished round."""
        light = packed(line, self.folder, f"{line['round']:06d}")
        with (self.folder / names.ROUNDS).open("a", encoding="utf-8") as file:
            file.write(sealed(json.dumps(light)) + "\n")
        self.rounds.append(unpacked(light, self.folder))

    def commit(self, state: Line) -> None:
        """Make `state` the state to resume from, then remove the files it does not name."""
        rounds = self.folder / names.ROUNDS
        if rounds.exists():
            with rounds.open("rb") as file:
                os.fsync(file.fileno())
        write_sealed(self.checkpoint / names.STATE, state | {"format": FORMAT})
        self.tidy(state)

    def tidy(self, state: Line) -> None:
        """Remove the files of the checkpoint that its committed state does not name."""
        named = {state["server"]["file"], names.STATE, *state["personal"], *state.get("versions", {})}
        for path in self.checkpoint.iterdir():
            if path.name not in named:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()

    def finish(self, summary: Line) -> None:
        """Write summary.json: the run is over."""
        write_sealed(self.folder / names.SUMMARY, packed(summary, self.folder, "summary"))


def _names_trees(entry: Mapping[str, object]) -> bool:
    """Say whether this is what a checkpoint says of a file of personal trees."""
    return {"crc32", "index", "rows"} <= entry.keys() or {"crc32", "clients"} <= entry.keys()


class Follower(Record):
    """The record of a process that shares a run with the one that writes: it knows the rounds and writes nothing."""

    def begin(self, recipe: str, env: Mapping[str, object], *, own: bool = False) -> None:
        """Leave the first files to the leader."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Leave the lock to the leader."""
        yield

    def rewind(self, finished: int) -> None:
        """Load the `finished` rounds."""
        self.read(finished)

    def append(self, line: Line) -> None:
        """Remember a finished round."""
        self.rounds.append(line)

    def tidy(self, state: Line) -> None:
        """Leave files that no longer count to the leader."""

    def finish(self, summary: Line) -> None:
        """Leave the summary to the leader."""


def _check_sources(path: Path, stored: object, found: Mapping[str, str]) -> None:
    """Refuse to go on with other images or frozen weights than a checkpoint was made with."""
    known = stored if isinstance(stored, dict) else {}
    for what, digest in found.items():
        if known.get(what, digest) != digest:
            raise PromptFedError(
                f"Checkpoint {path} was made with other {what}; restore them, or start a new run with another --out."
            )
