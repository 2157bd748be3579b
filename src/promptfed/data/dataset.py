"""What a labelled image collection is, wherever it came from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """Images in memory with labels, the official test split, and names a person would use.

    `domains` says where each image comes from (a shop, a camera, a hospital); a set without domains has one.
    """

    name: str
    images: Images  # uint8 [N, H, W, 3]
    labels: Indices  # [N], values in 0 … len(classes) - 1
    test: NDArray[np.bool_]  # [N], True for the official test images
    classes: tuple[str, ...]
    domains: Indices  # [N], values in 0 … len(domain_names) - 1
    domain_names: tuple[str, ...]
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __len__(self) -> int:
        return len(self.labels)
