"""Data sets of blank images, for what looks at labels and domains alone, and of grey ones."""

from typing import Any

import numpy as np

from promptfed.data.dataset import Dataset, Images


def dataset_of(labels: Any, test: Any, domains: Any = 0, classes: int = 0, regions: int = 0) -> Dataset:
    labels = np.asarray(labels, dtype=np.int64)
    domains = np.broadcast_to(np.asarray(domains, dtype=np.int64), labels.shape)
    return Dataset(
        name="toy",
        images=np.zeros((len(labels), 1, 1, 3), dtype=np.uint8),
        labels=labels,
        test=np.broadcast_to(np.asarray(test, dtype=np.bool_), labels.shape),
        classes=tuple(f"class {i}" for i in range(classes or int(labels.max()) + 1)),
        domains=domains,
        domain_names=tuple(f"domain {i}" for i in range(regions or int(domains.max()) + 1)),
    )


def coloured(shades: list[int], test: list[bool]) -> Dataset:
    """Return grey images of 4 × 4 pixels."""
    plain = dataset_of([0] * len(shades), test)
    images: Images = np.array(shades, np.uint8).repeat(48).reshape(-1, 4, 4, 3)
    return Dataset(plain.name, images, plain.labels, plain.test, plain.classes, plain.domains, plain.domain_names)
