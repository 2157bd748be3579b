"""Mixed batches on a GPU as CUDA graphs: one for every size 1, 2, 4, …, replayed rather than launched by kernel."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.tree import Tree
from promptfed.data.dataset import Images
from promptfed.serving import mixed
from promptfed.serving.opened import ServedBundle

WARM = 2  # runs before recording: libraries choose algorithms and allocate workspaces


@dataclass(frozen=True)
class _Graph:
    """A recorded batch: the memory it reads, and the logits it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tree, Tree, Tree, Tree]  # own tensors, facts, salts, and "pixels"
    logits: Tensor


@dataclass(eq=False)
class Recorded:
    """Answers as `mixed.answer` does; batches are filled up to a recorded size with copies of their last image."""

    most: int
    graphs: "WeakKeyDictionary[ServedBundle, dict[int, _Graph | None]]" = field(default_factory=WeakKeyDictionary)

    def __call__(self, served: ServedBundle, rows: Sequence[int], images: Images) -> Tensor:
        """Return logits [N, classes]; what cannot be recorded, such as whole models, is computed as it comes."""
        size = recorded_size(len(rows), self.most)
        if served.device.type != "cuda" or size < len(rows) or served.row_bytes * size > mixed.ROOM:
            return mixed.answer(served, rows, images)
        with torch.inference_mode():
            spare = size - len(rows)
            full = np.concatenate([images, np.repeat(images[-1:], spare, 0)]) if spare else images
            fresh = _inputs(served, [*rows, *[rows[-1]] * spare], full)
            known = self.graphs.setdefault(served, {})
            if size not in known:
                known[size] = _record(served, fresh)
            recorded = known[size]
            if recorded is None:
                return mixed.answer(served, rows, images)
            for source, target in zip(fresh, recorded.inputs, strict=True):
                for name, value in source.items():
                    target[name].copy_(value)
            recorded.graph.replay()
            return recorded.logits[: len(rows), 0].float().cpu()


def recorded_size(count: int, most: int) -> int:
    """Return the smallest power of two that holds `count`, or `most`."""
    return min(1 << (count - 1).bit_length(), most)


def _inputs(served: ServedBundle, rows: Sequence[int], images: Images) -> tuple[Tree, Tree, Tree, Tree]:
    """Return all that changes from batch to batch."""
    index = torch.tensor(rows, device=served.device)
    pixels = torch.from_numpy(np.ascontiguousarray(images)).to(served.device).unsqueeze(1)
    return served.gather(rows), tree.rows(served.facts, index), tree.rows(served.salts, index), {"pixels": pixels}


def _record(served: ServedBundle, fresh: tuple[Tree, Tree, Tree, Tree]) -> _Graph | None:
    """Record one batch of this size; None where the method does what a recording cannot hold."""
    own, facts, salts, pictures = (tree.map(torch.clone, part) for part in fresh)

    def step() -> Tensor:
        return mixed.forward(served, own, facts, salts, pictures["pixels"])

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # other threads may go on using the GPU meanwhile: a bundle is opened there while this one answers
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            logits = step()
    except RuntimeError:
        return None
    return _Graph(graph, (own, facts, salts, pictures), logits)
