"""What one request may ask for, and how long it may take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServingLimits:
    """The server's limits; beyond them it answers with a sentence."""

    queue: int = 512  # images that are under way
    batch: int = 64  # images of one batch
    images: int = 32  # images of one request
    body: int = 20 * 2**20  # bytes of one request
    held: int = 2**28  # bytes of all requests under way together
    pixels: int = 50_000_000  # of one image, before it is made smaller
    deadline: float = 10.0  # seconds from the last byte of a request to its answer
    patience: float = 20.0  # seconds a client may take to send a request
    connections: int = 1000
    grid: int = 14  # cells per side of an explanation
