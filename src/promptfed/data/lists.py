"""Many lists of image numbers, one for each client, end to end in one array."""

from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from promptfed.data.dataset import Indices


class ImageLists(Sequence[Indices]):
    """A sequence of lists that takes no memory for each: `lists[i]` is a view of the one array."""

    def __init__(self, flat: Indices, sizes: Indices) -> None:
        self.flat = flat
        self.starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))

    @classmethod
    def of(cls, lists: Iterable[Indices]) -> "ImageLists":
        """Return these lists; what already is one stays as it is."""
        if isinstance(lists, ImageLists):
            return lists
        each = [np.asarray(one, dtype=np.int64) for one in lists]
        return cls(np.concatenate([np.zeros(0, np.int64), *each]), np.array([len(one) for one in each], np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> Indices: ...
    @overload
    def __getitem__(self, index: slice) -> "ImageLists": ...
    def __getitem__(self, index: int | slice) -> "Indices | ImageLists":
        if isinstance(index, slice):
            return ImageLists.of([self[one] for one in range(*index.indices(len(self)))])
        place = range(len(self))[index]
        return self.flat[self.starts[place] : self.starts[place + 1]]

    @property
    def sizes(self) -> Indices:
        """The length of each list [C]."""
        return np.diff(self.starts)

    @property
    def owners(self) -> Indices:
        """Which list each entry of `flat` is in."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def ascending(self) -> "ImageLists":
        """Return the same lists, each in ascending order, for no one to change."""
        flat = self.flat[np.lexsort((self.flat, self.owners))]
        flat.setflags(write=False)
        return ImageLists(flat, self.sizes)

    def mapped(self, numbers: Indices) -> "ImageLists":
        """Return the lists with `numbers[i]` in place of every i."""
        return ImageLists(numbers[self.flat], self.sizes)

    def tally(self, values: Indices, bins: int) -> NDArray[np.int64]:
        """Return how often each list has each value [C, bins], where `values` are those of all images."""
        cells = np.bincount(self.owners * bins + values[self.flat], minlength=len(self) * bins)
        return cells.reshape(len(self), bins)
