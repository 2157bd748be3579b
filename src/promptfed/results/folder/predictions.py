"""predictions.npz: what every client's final model answers on the client's own test images."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_bytes
from promptfed.results.folder import names

MOST_NUMBERS = 2**23  # probabilities are kept up to so many: 32 MiB before they are packed

Numbers = NDArray[Any]


@dataclass(frozen=True)
class Predictions:
    """A row per test image, ordered by client and then as in partition.json; every array has length N."""

    clients: int  # of the run, those without test images included
    classes: int
    client: Numbers
    image: Numbers  # its number in the data set
    label: Numbers
    predicted: Numbers
    confidence: Numbers  # the probability of `predicted`
    probabilities: Numbers | None  # [N, classes]; None if there would be too many

    def __len__(self) -> int:
        return len(self.label)


def fits(images: int, classes: int) -> bool:
    """Say whether all probabilities of so many images are kept."""
    return images * classes <= MOST_NUMBERS


def write_predictions(folder: Path, found: Predictions) -> None:
    """Write predictions.npz in one step; the same predictions always give the same bytes."""
    arrays: dict[str, Any] = {name: value for name, value in vars(found).items() if value is not None}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_bytes(folder / names.PREDICTIONS, buffer.getvalue())


def read_predictions(folder: Path) -> Predictions | None:
    """Return what predictions.npz holds, or None if the run has none."""
    path = folder / names.PREDICTIONS
    if not path.is_file():
        return None
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        counts = {name: int(arrays.pop(name)) for name in ("clients", "classes")}
        read = Predictions(**counts, **({"probabilities": None} | arrays))  # type: ignore[arg-type]
        if len({len(value) for value in arrays.values()}) != 1:
            raise ValueError("its arrays differ in length")
    except Exception as error:  # a damaged archive fails in a dozen ways, each with an exception of its own
        raise PromptFedError(f"{path} is damaged; remove it and the summary, and resume the run.") from error
    return read
