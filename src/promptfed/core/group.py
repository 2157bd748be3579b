"""Several processes that share one run, over torch.distributed: gloo between hosts, NCCL between GPUs.

Before numbers travel, every process says in a few bytes what it has, or why it cannot go on. So whatever ends one
process ends all of them at the same point, with the same error; and who waits for numbers knows that they come.
"""

import math
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from promptfed.core.ranks import Gathered, LostError, Ranks, Value
from promptfed.core.tree import Tree

FRAME = 4096  # bytes of a message that travels at once; a longer one follows by itself
HEAD = 8  # bytes that say how long a message is
BOUNDARY = 64  # tensors begin at multiples of so many bytes, as `tree.settled` wants them
Spec = list[tuple[str, torch.dtype, torch.Size]]


@dataclass(frozen=True)
class _Said:
    """What one process says: whether it was asked to end, why it ends, and what it has."""

    asked: bool
    failure: bytes | None
    value: object = None


class Group(Ranks):
    """One of several processes; `local` is its number on its machine."""

    def __init__(self, device: torch.device, local: int, patience: float) -> None:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=patience))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device, self.first_here = device, local == 0
        self.lost = False
        self._patience = patience
        self._asked = False
        self._parent = os.getppid()
        self._ending: BaseException | None = None  # the last error that all know of
        self._stopped = False  # all know that one of them was asked to end
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        kinds = self.told((torch.backends.cpu.get_cpu_capability(), torch.__version__, torch.get_num_threads()))
        self.alike = device.type == "cpu" and len(set(kinds)) == 1  # a GPU's kernels may add in another order each time

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def leave(self) -> None:
        """Let go of the others; signals act as before."""
        for number, before in self._before.items():
            signal.signal(number, before)
        if not self.lost:  # who waits for a dead process waits in vain
            dist.destroy_process_group()

    def knows(self, error: BaseException | None) -> bool:
        """Say whether the others know of this error, or of the one it was made from."""
        while error is not None and error is not self._ending:
            error = error.__cause__
        return error is not None

    def check(self) -> None:
        """Raise KeyboardInterrupt if this process was asked to end."""
        if self._to_end():
            raise KeyboardInterrupt

    def _to_end(self) -> bool:
        """Say whether this process was asked to end, or whoever started it is gone, and not all know it yet."""
        return (self._asked or os.getppid() != self._parent) and not self._stopped

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let an error that ends the block in one process end it in all."""
        try:
            yield
        except BaseException as error:
            if not self.lost and not self.knows(error):
                self._tell(error)
            raise

    def _tell(self, error: BaseException) -> None:
        """Say why this process ends, in place of what the others wait for."""
        try:
            self._exchange(_Said(False, _pickled(error, self.rank)))
        except LostError:
            return
        self._know(error)

    def _know(self, error: BaseException) -> None:
        self._ending = error
        self._stopped |= isinstance(error, KeyboardInterrupt)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Let the first process of each machine through the block before the others of that machine."""
        if not self.first_here:
            self.told(None)
        yield
        if self.first_here:
            self.told(None)

    def told(self, value: Value) -> list[Value]:
        """Return what every process says, in their order; all wait for each other."""
        said = self._exchange(_Said(self._to_end(), None, value))
        for one in said:
            if one.failure is not None:
                self._end(pickle.loads(one.failure))
        if any(one.asked for one in said):
            self._end(KeyboardInterrupt())
        return [one.value for one in said]  # type: ignore[misc]

    def _end(self, error: BaseException) -> None:
        self._know(error)
        raise error

    def unanimous(self, value: object) -> bool:
        """Say whether all processes say the same, and that not None; without a word from one of them they do not."""
        try:
            said = self.told(value)
        except LostError:
            return False
        return value is not None and all(one == value for one in said)

    def gathered(self, own: Tree, note: object = None, limit: float = math.inf) -> Gathered:
        """Return all processes' trees and notes; beyond `limit` bytes only the leader gets the trees' numbers."""
        said = self.told((_spec(own), note))
        specs, notes = [spec for spec, _ in said], [one for _, one in said]
        widths = [_width(spec) for spec in specs]
        room, everywhere = max(widths), sum(widths) <= limit
        if not room:
            return Gathered([{} for _ in specs], notes, everywhere)
        if not everywhere and not self.leads:
            self._travel(lambda: dist.gather(_packed(own, room, self.device), None, dst=0))
            return Gathered([_shapes(spec) for spec in specs], notes, False)
        parts = list(torch.empty(self.size, room, dtype=torch.uint8, device=self.device))
        mine = _packed(own, room, self.device)
        self._travel(lambda: dist.all_gather(parts, mine) if everywhere else dist.gather(mine, parts, dst=0))
        return Gathered([_unpacked(*pair) for pair in zip(parts, specs, strict=True)], notes, everywhere)

    def collected(self, value: Value) -> list[Value]:
        """Return what every process says to the leader, in their order; the others get nothing."""
        content = bytearray(pickle.dumps(value))
        own = {"content": torch.frombuffer(content, dtype=torch.uint8).to(self.device)}
        found = self.gathered(own, limit=0).trees
        return [pickle.loads(one["content"].cpu().numpy().tobytes()) for one in found] if self.leads else []

    def concluded(self, work: Callable[[], Tree], everywhere: bool) -> Tree:
        """Return the tree that `work` makes, on every process or on the leader, who hands it to the others."""
        if everywhere:
            return work()
        made: Tree = {}
        with self.together():
            if self.leads:
                made = {name: value.to(self.device) for name, value in work().items()}
        spec = self.told(_spec(made))[0]
        flat = _packed(made, _width(spec), self.device)
        self._travel(lambda: dist.broadcast(flat, 0))
        return made if self.leads else _unpacked(flat, spec)

    def _exchange(self, own: _Said) -> list[_Said]:
        content = pickle.dumps(own)
        head = len(content).to_bytes(HEAD, "little")
        frames = self._everyones(head + content[: FRAME - HEAD], FRAME)
        lengths = [int.from_bytes(frame[:HEAD], "little") for frame in frames]
        contents = [frame[HEAD:] for frame in frames]
        if max(lengths) > FRAME - HEAD:
            contents = self._everyones(content, max(lengths))
        return [pickle.loads(one) for one in contents]

    def _everyones(self, content: bytes, room: int) -> list[bytes]:
        own = torch.frombuffer(bytearray(content.ljust(room, b"\0")), dtype=torch.uint8)
        parts = [torch.empty(room, dtype=torch.uint8) for _ in range(self.size)]
        self._travel(lambda: dist.all_gather(parts, own))
        return [part.numpy().tobytes() for part in parts]

    def _travel(self, work: Callable[[], object]) -> None:
        """Move numbers; if that fails, another process has ended or hangs."""
        if self.lost:
            raise LostError("Another process of this run has ended.")
        try:
            work()
        except RuntimeError as error:
            if "out of memory" in str(error):
                raise
            self.lost = True
            waited = "Timed out" in str(error) or "timeout" in str(error)
            why = f"has not answered for {self._patience:g} seconds" if waited else "of this run has ended"
            raise LostError(f"Another process {why}; what was last committed is whole.") from error


def _pickled(error: BaseException, rank: int) -> bytes:
    """Return an error as the others are to raise it; where it stands in this process's code goes with it as a note."""
    lines = traceback.format_exception(error)
    if isinstance(error, Exception):
        error.add_note(f"This happened in process {rank}:\n{''.join(lines)}")
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    except Exception:
        content = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return content


def _spec(own: Tree) -> Spec:
    return [(name, value.dtype, value.shape) for name, value in own.items()]


def _sizes(spec: Spec) -> list[int]:
    """Return the bytes of each tensor, rounded up to where the next one begins."""
    bytes_ = [math.prod(shape) * dtype.itemsize for _, dtype, shape in spec]
    return [-(-count // BOUNDARY) * BOUNDARY for count in bytes_]


def _width(spec: Spec) -> int:
    return sum(_sizes(spec))


def _shapes(spec: Spec) -> Tree:
    return {name: torch.empty(shape, dtype=dtype, device="meta") for name, dtype, shape in spec}


def _packed(own: Tree, room: int, device: torch.device) -> Tensor:
    """Return a tree as one row of bytes."""
    flat, first = torch.empty(room, dtype=torch.uint8, device=device), 0
    for (_, value), size in zip(own.items(), _sizes(_spec(own)), strict=True):
        if value.numel():
            raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
            flat[first : first + len(raw)] = raw.to(device)
        first += size
    return flat


def _unpacked(flat: Tensor, spec: Spec) -> Tree:
    """Return the tree that a row of bytes holds."""
    found, first = {}, 0
    for (name, dtype, shape), size in zip(spec, _sizes(spec), strict=True):
        raw = flat[first : first + math.prod(shape) * dtype.itemsize]
        found[name] = raw.view(dtype).view(shape)
        first += size
    return found
