"""The command line, run in this process or in another."""

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

import promptfed as package
from promptfed import cli


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str


def promptfed(*words: object) -> Done:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["promptfed", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        cli.main()
    return Done(int(left.value.code or 0), out.getvalue(), err.getvalue())


def environment(**more: str) -> dict[str, str]:
    """Return the environment in which another Python finds this package and uses one thread."""
    source = str(Path(package.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", **more}


def sentence(done: Done) -> str:
    """Return the one sentence of a command that failed as it should."""
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.startswith("promptfed: ")
    assert done.err.count("\n") == 1
    assert done.err.rstrip("\n")[-1] in ".?"
    assert "Traceback" not in done.err
    return done.err
