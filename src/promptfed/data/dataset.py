"""What a labelled image collection is, wherever it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Indices = NDArray[np.int64]
Color = tuple[float, float, float]  # a number per channel


@dataclass(frozen=True)
class Dataset:
    """Labelled images, in memory or mapped from a file, with the official splits and names a person would use.

    `domains` says where each image comes from (a shop, a camera, a hospital); a set without domains has one.
    An image that is left out keeps its place, so that image i has label i whatever is left out.
    """

    name: str
    images: Images  # uint8 [N, H, W, 3]
    labels: Indices  # [N], values in 0 … len(classes) - 1, and of images that are left out those of `others`
    test: NDArray[np.bool_]  # [N], True for the official test images
    classes: tuple[str, ...]
    domains: Indices  # [N], values in 0 … len(domain_names) - 1
    domain_names: tuple[str, ...]
    mean: Color = (0.5, 0.5, 0.5)
    std: Color = (0.5, 0.5, 0.5)
    val: NDArray[np.bool_] | None = None  # [N], True for the official validation images, none of them in `test`
    used: NDArray[np.bool_] | None = None  # [N], False for images that are left out; None: nothing is
    patients: Indices | None = None  # [N], equal for images of one patient, who is never on both sides of a split
    others: tuple[str, ...] = ()  # classes that are left out; their images have the labels from len(classes) on
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what else a list says of every image

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sides(self) -> tuple[int, int]:
        """The height and width of every image."""
        height, width = self.images.shape[1:3]
        return height, width

    @property
    def dealt(self) -> NDArray[np.bool_]:
        """The images clients may hold [N]: those in use, without validation images, which never train."""
        dealt = np.ones(len(self), np.bool_) if self.used is None else self.used
        return dealt if self.val is None else dealt & ~self.val
