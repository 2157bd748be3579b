"""Tree: a flat `dict[str, Tensor]`, the only form state takes: what is averaged, counted, saved and sent."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

Tree = dict[str, Tensor]


def map(change: Callable[..., Tensor], first: Tree, *others: Tree) -> Tree:  # noqa: A001  (read as tree.map)
    """Apply `change` to the tensors of the same name; the first tree's names decide."""
    return {name: change(value, *(other[name] for other in others)) for name, value in first.items()}


def pick(tree: Tree, names: Iterable[str]) -> Tree:
    """Return the part of `tree` under `names`, in their order."""
    return {name: tree[name] for name in names}


def drop(tree: Tree, names: Iterable[str]) -> Tree:
    """Return `tree` without `names`."""
    gone = set(names)
    return {name: value for name, value in tree.items() if name not in gone}


def row(tree: Tree, index: int) -> Tree:
    """Return the view [...] of one client in a stacked tree [C, ...]."""
    return {name: value[index] for name, value in tree.items()}


def rows(tree: Tree, index: Tensor | slice) -> Tree:
    """Return the chosen clients [len(index), ...] of a stacked tree [C, ...]; a slice gives a view."""
    return {name: value[index if isinstance(index, slice) else index.to(value.device)] for name, value in tree.items()}


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack single trees [...] into one tree [C, ...]."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def cat(trees: Sequence[Tree]) -> Tree:
    """Join stacked trees [C1, ...], [C2, ...] into one tree [C1 + C2, ...]."""
    return trees[0] if len(trees) == 1 else {name: torch.cat([tree[name] for tree in trees]) for name in trees[0]}


def repeat(tree: Tree, count: int) -> Tree:
    """Give every tensor a leading client dimension [count, ...] without copying it."""
    return {name: value.expand(count, *value.shape) for name, value in tree.items()}


def mean(tree: Tree, weights: Tensor) -> Tree:
    """Return the weighted mean over clients of a stacked tree [C, ...]; `weights` [C] need not sum to one."""
    share = weights / weights.sum()
    return {name: torch.tensordot(share.to(value), value, dims=1) for name, value in tree.items()}


def to(tree: Tree, device: torch.device | str) -> Tree:
    """Move every tensor to `device`."""
    return {name: value.to(device) for name, value in tree.items()}


def settled(tree: Tree) -> Tree:
    """Return the tree with every tensor contiguous and at a boundary of 64 bytes; only what is not is copied.

    Matrix products round differently at other addresses: numbers read from a file or a message, or a view of a larger
    tensor, must act as the ones they stand for, to the last bit.
    """
    return {
        name: value if value.is_contiguous() and value.data_ptr() % 64 == 0 else _copied(value)
        for name, value in tree.items()
    }


def _copied(value: Tensor) -> Tensor:
    return value.clone(memory_format=torch.contiguous_format)


def has_numbers(value: Tensor) -> bool:
    """Return whether a tensor is a real one, and not only the shape of one that is being estimated."""
    return type(value) is Tensor and not value.is_meta


def floats(tree: Tree) -> int:
    """Count the numbers in the tree."""
    return sum(value.numel() for value in tree.values())


def nbytes(tree: Tree) -> int:
    """Count the bytes the tree's numbers take."""
    return sum(value.nbytes for value in tree.values())
