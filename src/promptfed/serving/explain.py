"""Where a model looks: how much the likeliest class loses when a part of the image is covered.

Nothing is asked of the method but its answers, so this works for all of them, and all covered images are one batch.
"""

import numpy as np
from torch import Tensor

from promptfed.data.dataset import Color, Images


def covered(image: Images, cells: int, colour: Color) -> Images:
    """Return the image [H, W, 3] as it is, then with each of cells × cells parts in the data's mean colour."""
    height, width = image.shape[:2]
    paint = np.array([round(255 * part) for part in colour], np.uint8)
    rows, columns = (np.linspace(0, side, cells + 1).round().astype(int) for side in (height, width))
    found = np.repeat(image[None], 1 + cells * cells, 0)
    for place in range(cells * cells):
        row, column = divmod(place, cells)
        found[1 + place, rows[row] : rows[row + 1], columns[column] : columns[column + 1]] = paint
    return found


def drops(logits: Tensor, cells: int) -> tuple[int, float, list[list[float]]]:
    """Return the likeliest class, its probability, and what it loses with each part covered [cells, cells]."""
    chances = logits.softmax(-1)
    best = int(chances[0].argmax())
    lost = (chances[0, best] - chances[1:, best]).view(cells, cells)
    return best, float(chances[0, best]), [[round(part, 6) for part in row] for row in lost.tolist()]
