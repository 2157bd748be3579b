"""Speaks to the person at the terminal."""

from rich.console import Console

console = Console()


def say(sentence: str) -> None:
    """Print plain words, never wrapped or coloured: people paste paths."""
    console.print(sentence, soft_wrap=True, highlight=False, markup=False)


def complain(sentence: str) -> None:
    """Print plain words where errors go."""
    Console(stderr=True).print(sentence, soft_wrap=True, highlight=False, markup=False)
