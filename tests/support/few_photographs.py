"""A few photographs of the embedded set, for commands that need the embedded network to be quick."""

from pathlib import Path

import numpy as np

from promptfed.data.shops import load_shops


def few_photographs(path: Path) -> list[str]:
    """Write 80 photographs to `path`, an .npz file, half of them for testing; return the words of a run on them."""
    shops = load_shops()
    train, test = (np.flatnonzero(shops.test == flag)[:40] for flag in (False, True))
    np.savez(
        path,
        x_train=shops.images[train],
        y_train=shops.labels[train],
        x_test=shops.images[test],
        y_test=shops.labels[test],
    )
    return [f"data.name=npz:{path}", "partition.name=iid", "clients=4", "rounds=1"]
