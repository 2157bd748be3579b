"""Speaks to the person at the terminal."""

import errno

from rich.console import Console

console = Console()
# what a disk says that has no room, or not for a file this large, or not for this user
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def say(sentence: str) -> None:
    """Print plain words, never wrapped or coloured: people paste paths."""
    console.print(sentence, soft_wrap=True, highlight=False, markup=False)


def complain(sentence: str) -> None:
    """Print plain words where errors go."""
    Console(stderr=True).print(sentence, soft_wrap=True, highlight=False, markup=False)


def told(error: OSError) -> str:
    """Return what went wrong with a file as a sentence, and what to do if its disk is full."""
    place = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{place}.{' Free some space.' if error.errno in FULL else ''}"
