"""From the bytes of a request to an image of the model's size, with nothing decoded before its size is known."""

import io

from PIL import Image

from promptfed.data.dataset import Images
from promptfed.data.photos import resize, to_rgb
from promptfed.serving.refusals import Refusal

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
UNREADABLE = f"This cannot be read as an image; send one of {', '.join(FORMATS)}."


def read_picture(content: bytes, shape: tuple[int, int], most_pixels: int) -> Images:
    """Return a picture as uint8 [H, W, 3], as `promptfed predict` would read it from a file."""
    if not content:
        raise Refusal(400, "The image is empty.")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > most_pixels:
                raise too_many_pixels(width, height, most_pixels)
            return resize(to_rgb(opened), shape)
    except Refusal:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Refusal(413, f"The image has too many pixels; up to {most_pixels:,} are read.") from error
    except Exception as error:  # damaged files make Pillow raise nearly anything
        raise Refusal(422, UNREADABLE) from error


def too_many_pixels(width: int, height: int, most: int) -> Refusal:
    """Return the refusal of an image that is too large."""
    return Refusal(413, f"The image has {width} × {height} pixels; up to {most:,} in all are read.")
