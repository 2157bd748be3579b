"""Printing sentences for a person at a terminal."""

import errno

from rich.console import Console

from promptfed.core.printable import printable

console = Console(emoji=False)  # a path may hold :cat:
# the error numbers of a full disk, a file that is too large, and an exhausted quota
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def say(sentence: str) -> None:
    """Print a sentence as it is, never wrapped or coloured: people copy paths from it."""
    console.print(printable(sentence), soft_wrap=True, highlight=False, markup=False)


def complain(sentence: str) -> None:
    """Print a sentence to standard error."""
    Console(stderr=True, emoji=False).print(printable(sentence), soft_wrap=True, highlight=False, markup=False)


def describe_os_error(error: OSError) -> str:
    """Return a file error as a sentence, with what to do if the disk is full."""
    place = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{place}.{' Free some space.' if error.errno in FULL else ''}"
