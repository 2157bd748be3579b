"""Labelled images: data sets by name, the user's own, and their division among clients."""

from promptfed.data.dataset import Dataset
from promptfed.data.datasets import DATASETS, add, find_sides, open_dataset, status

__all__ = ["DATASETS", "Dataset", "add", "find_sides", "open_dataset", "status"]
