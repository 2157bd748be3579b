"""Text of unknown origin, such as names of files and classes, as it may be shown at a terminal."""


def printable(text: str) -> str:
    """Return the text without control characters, which could move the cursor or rewrite what was said before."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
