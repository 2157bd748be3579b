"""What a method may offer beyond the contract: newcomers, things to show, a word that it learns.

Each offer is a protocol of its own. A method makes it by defining the methods of the protocol; nothing is declared. The
functions below ask any method, and give the answer of one that offers nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from promptfed.core.method import Method, Task
from promptfed.core.protocols import Batch, Rng, Sorter
from promptfed.core.tree import Tree


@runtime_checkable
class Joins(Protocol):
    """A method whose server keeps something for every client, so that clients who come later need a place there."""

    def admit(self, task: Task, server: Tree, newcomers: Tensor, rng: Rng) -> Tree:
        """Return the server's tree with room for `newcomers` [M], whose numbers follow those of the first clients."""
        ...

    def join(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Return the next server tree after a round of newcomers alone; what the others share stays as it is."""
        ...


@runtime_checkable
class Measures(Protocol):
    """A method with numbers of its own that are worth a curve."""

    def measures(self, task: Task, before: Tree, after: Tree) -> Tree:
        """Return numbers per client from its personal tree before and after `fit`."""
        ...


@runtime_checkable
class Exhibits(Protocol):
    """A method whose clients the report can compare by what was learned for them."""

    def exhibits(self, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
        """Return what the report compares between `clients` [M], whose personal trees are stacked [M, ...].

        Any of `prompts` [M, K, D], `descriptors` [M, D] and `attention` [M, K].
        """
        ...


@runtime_checkable
class Pictures(Protocol):
    """A method whose personal trees hold something one can look at."""

    def pictures(self, task: Task, personal: Tree) -> Tree:
        """Return pictures [3, H, W] of one client's personal tree, in normalised pixel values."""
        ...


@runtime_checkable
class SortsDomains(Protocol):
    """A method whose server tells images of different domains apart."""

    def sorter(self, task: Task, server: Tree) -> Sorter:
        """Return how the server's model sorts test images by domain."""
        ...


@runtime_checkable
class HasConstants(Protocol):
    """A method that knows something of every image before it learns, such as what a frozen network says of it."""

    def constants(self, task: Task, batch: Batch) -> Tree:
        """Return constants [B, ...] of a batch's images, computed once and then in every batch as `constant.NAME`.

        `task` has the whole backbone, and the batch `x`, the pixels [B, 3, H, W], and `key` [B], a number made of each
        image's bytes and the run's seed: draws by it (`keys.uniform`) are the same wherever the image is met.
        """
        ...


@runtime_checkable
class SpendsPrivacy(Protocol):
    """A method that hides single examples by clipped and noisy steps, as `local.sgd` with `clip_each` and `noise`."""

    def spends(self) -> tuple[float, float, int]:
        """Return the noise in units of the clip (0: there is none), δ, and how often a round uses every example."""
        ...


@runtime_checkable
class LearnsWord(Protocol):
    """A method that learns a word of a text-to-image model: `word` [v, W] on the server or on each client."""

    @property
    def shared(self) -> bool:
        """Say whether the server has the word; if not, every client has its own."""
        ...

    def spoken(
        self,
        task: Task,
        params: Tree,
        chosen: Tensor,
        visual: Tensor | None = None,
        templates: Sequence[str] | None = None,
    ) -> Tensor:
        """Return the word [..., B, v, W] as it is put into prompts: templates `chosen` [..., B] from `templates`.

        It may depend on visual features [..., B, V]; without any, and without templates, the method has its own.
        """
        ...


def admit(method: Method, task: Task, server: Tree, newcomers: Tensor, rng: Rng) -> Tree:
    """Return the server's tree with room for newcomers; unchanged if the method needs none."""
    return method.admit(task, server, newcomers, rng) if isinstance(method, Joins) else server


def join(method: Method, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
    """Return the server's tree after a round of newcomers; unchanged if the method keeps nothing of them."""
    return method.join(task, server, clients, up, weights) if isinstance(method, Joins) else server


def measures(method: Method, task: Task, before: Tree, after: Tree) -> Tree:
    """Return the method's own numbers of a client's training, if it has any."""
    ask = getattr(method, "measures", None)  # isinstance would take longer than many a client's measures
    found: Tree = ask(task, before, after) if ask else {}
    return found


def exhibits(method: Method, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
    """Return what the report compares between clients, if there is anything."""
    return method.exhibits(task, server, clients, personal) if isinstance(method, Exhibits) else {}


def pictures(method: Method, task: Task, personal: Tree) -> Tree:
    """Return pictures of one client's personal tree, if there are any."""
    return method.pictures(task, personal) if isinstance(method, Pictures) else {}


def constants(method: Method, task: Task, batch: Batch) -> Tree:
    """Return the constants of a batch's images under the names they have in other batches; most methods have none."""
    made = method.constants(task, batch) if isinstance(method, HasConstants) else {}
    return {f"constant.{name}": value for name, value in made.items()}


def sorter(method: Method, task: Task, server: Tree) -> Sorter | None:
    """Return how the server sorts images by domain, or None if it does not."""
    return method.sorter(task, server) if isinstance(method, SortsDomains) else None


OPTIONAL: dict[str, Callable[..., Any]] = {ask.__name__: ask for ask in (admit, join, measures, exhibits, pictures)}
HOOKS = tuple(name for name, value in vars(Method).items() if callable(value) and not name.startswith("_"))
AnyMethod = TypeVar("AnyMethod", bound=type[Method])


def forwards(kind: AnyMethod) -> AnyMethod:
    """Decorate a method around another one, its field `inner`: every hook it does not define is the inner method's.

    A hook that comes into the contract later is forwarded too. `sorter` is not: it asks the server's own model, which a
    method around another one may change.
    """
    for name in HOOKS:
        if name not in vars(kind):
            setattr(kind, name, _forwarded(name))
    for name, ask in OPTIONAL.items():
        if name not in vars(kind):
            setattr(kind, name, _asked(ask))
    return kind


def _forwarded(name: str) -> Callable[..., Any]:
    def hook(self: Any, *given: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*given, **named)

    return hook


def _asked(ask: Callable[..., Any]) -> Callable[..., Any]:
    def hook(self: Any, *given: Any, **named: Any) -> Any:
        return ask(self.inner, *given, **named)

    return hook
