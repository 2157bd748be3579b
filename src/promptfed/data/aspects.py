"""The partition by aspects: k-means on the images' colours, a client per cluster."""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from promptfed.core.errors import PromptFedError
from promptfed.data.dataset import Dataset, Images, Indices
from promptfed.data.partitioners import require_images, require_whole
from promptfed.data.shares import Partition, from_owners


@dataclass(frozen=True)
class Aspects:
    """One aspect each: k-means on the images' colours, a client per cluster, so that each sees one look of a thing.

    A colour is the mean over one of `cells` × `cells` parts of the image. Test images go to the nearest cluster.
    """

    name: ClassVar[str] = "aspects"
    needs_images: ClassVar[bool] = True
    cells: int = 4

    def __post_init__(self) -> None:
        require_whole("partition.cells", self.cells)

    def split(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Cluster the training images; a client left without any gets one of the largest cluster."""
        require_images(clients, int((~dataset.test).sum()))
        look = colours(dataset.images, self.cells)
        owner = np.empty(len(dataset), dtype=np.int64)
        owner[~dataset.test], centres = clusters(look[~dataset.test], clients, int(rng.integers(2**31)))
        far = np.square(look[dataset.test][:, None] - centres).sum(-1)
        owner[dataset.test] = far.argmin(1)
        return from_owners(self.name, owner, dataset.test, clients)


def colours(images: Images, cells: int) -> NDArray[np.float64]:
    """Return the mean colours of cells × cells parts of each image [N, H, W, 3], from 0 to 1, as [N, cells² · 3]."""
    rows, columns = (np.arange(cells) * side // cells for side in images.shape[1:3])
    if cells > min(images.shape[1:3]):
        raise PromptFedError(
            f"partition.cells = {cells} but the images have {images.shape[1]} × {images.shape[2]} pixels."
        )
    sums = np.add.reduceat(np.add.reduceat(images, rows, axis=1, dtype=np.float64), columns, axis=2)
    heights, widths = (
        np.diff(np.append(starts, side)) for starts, side in zip((rows, columns), images.shape[1:3], strict=True)
    )
    means: NDArray[np.float64] = sums / (255 * heights[:, None, None] * widths[:, None])
    return means.reshape(len(images), -1)


def clusters(look: NDArray[np.float64], count: int, seed: int) -> tuple[Indices, NDArray[np.float64]]:
    """Return the k-means cluster of each row [N], none of them empty, and the clusters' centres."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise PromptFedError(
            'The aspects partition needs the [analysis] extra: pip install "promptfed[analysis]".'
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer different images than clusters; mended below
        found = KMeans(count, n_init=4, random_state=seed).fit(look)
    owner = found.labels_.astype(np.int64)
    for empty in np.flatnonzero(np.bincount(owner, minlength=count) == 0):
        owner[np.flatnonzero(owner == np.bincount(owner).argmax())[-1]] = empty
    return owner, found.cluster_centers_
