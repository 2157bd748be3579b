"""From a DICOM file's numbers to a picture: rescaled, windowed, upright in brightness, in RGB."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from promptfed.core.errors import PromptFedError

Frame = Literal["middle", "first"]
Window = tuple[float, float] | Literal["file", "full"]  # a centre and a width
Values = NDArray[np.float64]
PER_FRAME = (
    "PixelValueTransformationSequence",
    "FrameVOILUTSequence",
)  # where enhanced files keep what others say once


def import_pydicom() -> ModuleType:
    """Return pydicom, or say how to install it."""
    try:
        import pydicom.pixels
    except ImportError as error:
        raise PromptFedError('dicom:PATH needs the [medical] extra: pip install "promptfed[medical]".') from error
    return pydicom


@contextmanager
def quiet() -> Iterator[None]:
    """Let pydicom say nothing meanwhile: its warnings repeat values of tags and names of files."""
    logger = logging.getLogger("pydicom")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            logger.setLevel(level)


def read_window(text: str) -> Window:
    """Return the window that data.window names."""
    if text in ("file", "full"):
        return "file" if text == "file" else "full"
    center, _, width = text.partition("/")
    try:
        found = float(center), float(width)
    except ValueError:
        found = 0.0, 0.0
    if not (found[1] >= 1 and np.isfinite(found).all()):
        raise PromptFedError(
            f'data.window="{text}" is no window; write file, full, or CENTER/WIDTH with a width of at least 1: 40/400.'
        )
    return found


def open_slice(path: Path, window: Window, frame: Frame, root: Path) -> Image.Image:
    """Return the picture in a file; no message names the file or repeats what is in it."""
    pydicom = import_pydicom()
    if not path.is_file():
        raise OSError("it is not a regular file")
    try:
        dataset = pydicom.dcmread(path)
    except Exception as problem:
        raise ValueError(f"it is not a DICOM file: pydicom raised {type(problem).__name__}") from None
    count = int(dataset.get("NumberOfFrames") or 1)
    index = count // 2 if frame == "middle" else 0
    try:
        stored = pydicom.pixels.pixel_array(dataset, index=index)
    except Exception as problem:
        raise _unreadable(dataset, problem, root) from None
    try:
        return Image.fromarray(_picture(dataset, np.asarray(stored), index, window)).convert("RGB")
    except Exception as problem:
        raise ValueError(f"its pixels do not fit its header: {type(problem).__name__}") from None


def _unreadable(dataset: Any, problem: Exception, root: Path) -> Exception:
    """Return why the pixels cannot be had: a decoder that is missing is no fault of the file."""
    if "PixelData" not in dataset and "FloatPixelData" not in dataset and "DoubleFloatPixelData" not in dataset:
        return ValueError("it holds no pixels")
    syntax = dataset.file_meta.get("TransferSyntaxUID")
    said = str(problem)
    if syntax is None or not syntax.is_compressed or not isinstance(problem, (RuntimeError, NotImplementedError)):
        return ValueError(f"its pixels are incomplete or damaged: pydicom raised {type(problem).__name__}")
    if "missing dependencies" in said or "does not support" in said or isinstance(problem, NotImplementedError):
        return PromptFedError(
            f"Images in {root} are compressed as {syntax.name}, and a decoder for that is missing: "
            'pip install "pylibjpeg[all]".'
        )
    return ValueError(f"its pixels, compressed as {syntax.name}, are damaged")


def _picture(dataset: Any, stored: NDArray[Any], index: int, window: Window) -> NDArray[np.uint8]:
    """Return one frame as uint8 [H, W] or [H, W, 3]; colours are RGB already."""
    pydicom, kind = import_pydicom(), str(dataset.PhotometricInterpretation)
    if kind == "PALETTE COLOR":
        bits = int(dataset.RedPaletteColorLookupTableDescriptor[2])
        return _to_bytes(pydicom.pixels.apply_color_lut(stored, dataset), bits)
    if stored.ndim == 3:
        return _to_bytes(stored, int(dataset.BitsStored))
    for group in _groups(dataset, index):
        for name in PER_FRAME:
            if group.get(name):
                dataset.update(group[name][0])
    values = np.asarray(pydicom.pixels.apply_modality_lut(stored, dataset), np.float64)
    grey = np.floor(255 * _shown(dataset, stored, values, window) + 0.5).astype(np.uint8)
    return 255 - grey if kind == "MONOCHROME1" else grey


def _groups(dataset: Any, index: int) -> Iterator[Any]:
    """Yield what an enhanced file says of all frames, then what it says of this one."""
    yield from dataset.get("SharedFunctionalGroupsSequence") or ()
    yield from (dataset.get("PerFrameFunctionalGroupsSequence") or ())[index : index + 1]


def _to_bytes(colours: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    return (colours >> (bits - 8)).astype(np.uint8) if bits > 8 else colours.astype(np.uint8)


def _shown(dataset: Any, stored: NDArray[Any], values: Values, window: Window) -> Values:
    """Return brightness from 0 to 1 [H, W], before MONOCHROME1 is inverted."""
    if isinstance(window, tuple):
        return windowed(values, *window)
    if window == "file" and dataset.get("VOILUTSequence"):
        levels = np.rint(values).astype(np.int64)
        bits = int(dataset.VOILUTSequence[0].LUTDescriptor[2])
        looked_up: Values = np.asarray(import_pydicom().pixels.apply_voi(levels, dataset), np.float64)
        return np.asarray(looked_up / (2**bits - 1), np.float64)
    if window == "file" and dataset.get("WindowCenter") is not None and dataset.get("WindowWidth") is not None:
        center, width = (float(np.atleast_1d(dataset[name].value)[0]) for name in ("WindowCenter", "WindowWidth"))
        return windowed(values, center, width, str(dataset.get("VOILUTFunction") or "LINEAR"))
    if window == "full" or dataset.BitsStored <= 8:
        signed, bits = bool(dataset.get("PixelRepresentation")), int(dataset.BitsStored)
        ends = np.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if signed else [0, 2**bits - 1])
        ends = np.asarray(import_pydicom().pixels.apply_modality_lut(ends, dataset), np.float64)
        return _stretched(values, float(ends.min()), float(ends.max()))
    padding = dataset.get("PixelPaddingValue")
    counted = values if padding is None else values[stored != padding]
    counted = counted if counted.size else values
    return _stretched(values, float(counted.min()), float(counted.max()))


def _stretched(values: Values, least: float, most: float) -> Values:
    return np.clip((values - least) / (most - least), 0, 1) if most > least else np.zeros_like(values)


def windowed(values: Values, center: float, width: float, function: str = "LINEAR") -> Values:
    """Return brightness from 0 to 1 by DICOM's window functions (PS3.3, C.11.2)."""
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(np.clip(-4 * (values - center) / width, -700, 700))), np.float64)
    if function == "LINEAR_EXACT":
        return np.clip((values - center) / width + 0.5, 0, 1)
    if width <= 1:
        return (values > center - 0.5).astype(np.float64)
    return np.clip((values - (center - 0.5)) / (width - 1) + 0.5, 0, 1)
