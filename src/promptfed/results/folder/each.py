"""A number for each of very many clients: an array in memory, or in a file of clients/ that a JSON file refers to.

Where a JSON file of a smaller run has a list, that of a larger one has {"file", "crc32", "array", "count"}.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from promptfed.core.arrays import MANY, read_arrays, write_arrays
from promptfed.core.errors import PromptFedError
from promptfed.results.folder import names

Value = float | int | None
Numbers = NDArray[Any]


class Each(Sequence[Value]):
    """A number for each client, in which NaN stands for None; one from a file is read whenever it is looked at."""

    def __init__(self, count: int, load: Callable[[], Numbers]) -> None:
        self._count, self._load = count, load

    @classmethod
    def of(cls, values: Numbers) -> "Each":
        """Return these numbers, held in memory."""
        return cls(len(values), lambda: values)

    @property
    def values(self) -> Numbers:
        """All numbers [C], NaN where there is none."""
        return self._load()

    @property
    def known(self) -> Numbers:
        """The numbers that there are."""
        values = self.values
        return values[~np.isnan(values)]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> "Each": ...
    def __getitem__(self, index: int | slice) -> "Value | Each":
        if isinstance(index, slice):
            return Each.of(self.values[index])
        return _plain(self.values[index].item())

    def __iter__(self) -> Iterator[Value]:
        return map(_plain, self.values.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Each):
            return len(self) == len(other) and np.array_equal(self.values, other.values, equal_nan=True)
        return isinstance(other, list | tuple) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def _plain(value: float) -> Value:
    return None if value != value else value


def packed(content: Mapping[str, Any], folder: Path, stem: str) -> dict[str, Any]:
    """Return a JSON object without its long lists of numbers, which are written to one file in the run `folder`."""
    found: dict[str, Numbers] = {}
    light = _light(content, "", found)
    if not found:
        return light
    path = folder / names.EACH / f"{stem}.npz"
    path.parent.mkdir(exist_ok=True)
    about = write_arrays(path, found) | {"file": f"{names.EACH}/{path.name}"}
    return _referring(light, about)


def unpacked(content: Any, folder: Path) -> Any:
    """Return a JSON value with what lies in files of the run `folder` in its place."""
    if not isinstance(content, dict):
        return content
    if content.keys() == {"file", "crc32", "array", "count"}:
        return Each(int(content["count"]), partial(_read, folder, content))
    return {name: unpacked(value, folder) for name, value in content.items()}


def _light(content: Mapping[str, Any], prefix: str, found: dict[str, Numbers]) -> dict[str, Any]:
    """Return the object with the name of an array in place of each long list, and collect the arrays."""
    light: dict[str, Any] = {}
    for name, value in content.items():
        place = f"{prefix}{name}"
        if isinstance(value, dict):
            light[name] = _light(value, f"{place}.", found)
        elif isinstance(value, Each) or (isinstance(value, list) and len(value) > MANY):
            found[place] = value.values if isinstance(value, Each) else _numbers(value)
            light[name] = _Place(place, len(value))
        else:
            light[name] = value
    return light


class _Place(tuple[str, int]):
    """The name and length of an array that has been taken out."""

    def __new__(cls, name: str, count: int) -> "_Place":
        return super().__new__(cls, (name, count))


def _referring(light: Mapping[str, Any], about: Mapping[str, object]) -> dict[str, Any]:
    return {
        name: {**about, "array": value[0], "count": value[1]}
        if isinstance(value, _Place)
        else _referring(value, about)
        if isinstance(value, dict)
        else value
        for name, value in light.items()
    }


def _numbers(values: Sequence[Value]) -> Numbers:
    whole = all(isinstance(value, int) for value in values)
    return np.array(values, np.int64 if whole else np.float64)


def _read(folder: Path, reference: Mapping[str, Any]) -> Numbers:
    try:
        found = read_arrays(folder / names.EACH, reference)[reference["array"]]
        if found.shape != (reference["count"],):
            raise ValueError(f"it has {found.shape} numbers, not {reference['count']}")
    except (ValueError, KeyError) as error:
        raise PromptFedError(f"{folder} is damaged: {error}; resume the run, which writes it again.") from error
    return found
