"""The contract: what a method is (Method), what it learns on (Task), and what a client sees of its data (Data).

A method holds no state. Its fields are hyper-parameters; everything learned is one of four Trees:

    server    on the server
    down      what a client receives     (server code sees [C, ...], client code sees its own row)
    personal  on one client, never travels
    up        what a client sends

Client-side code (init_client, fit, loss, predict, …) speaks only of trailing dimensions: the same code serves one site
and a stack of simulated clients, whose tensors all have a leading C. Server-side code always sees that C.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, cast

from torch import Generator, Tensor

from promptfed.core import keys, ops, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.protocols import (
    AdaptableBackbone,
    Backbone,
    Batch,
    Data,
    DenseBackbone,
    Draw,
    DualEncoder,
    Rng,
    TextToImage,
)
from promptfed.core.tree import Tree


@dataclass(frozen=True)
class Task:
    """What is being learned: a backbone, the classes, how many clients share them, and for how many rounds."""

    backbone: Backbone
    classes: tuple[str, ...]
    num_clients: int
    rounds: int = 0  # those the recipe asks for, without the newcomers'; 0 where nothing is trained
    seed: int = 0  # of the run, for `rng`
    captured: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)  # local's CUDA graphs

    def rng(self, purpose: str, *numbers: int) -> Generator:
        """Return the server's generator for a purpose, for `download` and `aggregate`; `numbers` tell its uses apart.

        They come from the server's tree, such as a count of its rounds, so that a resumed run draws what a straight one
        does.
        """
        return keys.generator(self.seed, "server", purpose, *numbers)


@dataclass(frozen=True)
class Traits:
    """What the engine must know of a method before it calls it; the defaults are FedAvg's."""

    reads: Literal["pixels", "features", "patches"] = "pixels"  # the others are the frozen backbone's, computed once
    views: int = 0  # features of so many augmented views beside each image's own: batch["views"] [B, V, D]
    needs_rows: bool = False  # `aggregate` tells clients apart, so a sum of their trees is not enough
    marks_nothing: bool = False  # a row of zeros in what is sent means "none", so it must arrive as such
    weighs: bool = True  # its loss is a mean by batch["mask"], so images can be weighed by their labels
    open: bool = False  # its models know classes by name alone, so they answer for those that training never named
    averages: bool = False  # its own `aggregate` is, as the default, the mean of what clients send
    learns: bool = True  # False: it uses a pretrained model as it is
    adapts: bool = True  # False: with these options `adapt` changes nothing
    once: tuple[str, ...] = ()  # names in `down` that never change: they are sent at a client's first contact only
    keeps: tuple[str, ...] = ()  # names of the server's tree that are worth a file after every round
    testing: tuple[str, ...] = ()  # options that matter in testing alone: training does not look at them
    adapting: tuple[str, ...] = ()  # those of them that only `adapt` looks at


def dual(task: Task) -> DualEncoder:
    """Return the task's dual encoder, or say that a method needs one."""
    if not hasattr(task.backbone, "zero_shot"):  # isinstance would ask for every property, and some refuse
        raise PromptFedError("This method needs a text tower beside the image tower; set backbone.name=clip.")
    return cast(DualEncoder, task.backbone)


def dense(task: Task) -> DenseBackbone:
    """Return the task's network of patches, or say that a method needs one."""
    if not hasattr(task.backbone, "patches"):
        raise PromptFedError("This method needs a transformer's patches; set backbone.name=vit, or clip for texts too.")
    return cast(DenseBackbone, task.backbone)


def adaptable(task: Task) -> AdaptableBackbone:
    """Return the task's network with room beside its matrices, or say that a method needs one."""
    if not hasattr(task.backbone, "matrices"):
        raise PromptFedError("This method needs a frozen transformer; set backbone.name=vit, or clip for texts too.")
    return cast(AdaptableBackbone, task.backbone)


def renamed(task: Task, classes: Sequence[str]) -> Task:
    """Return the task with other classes before the same backbone: the models of an `open` method know them by name."""
    return replace(task, backbone=dual(task).named(classes), classes=tuple(classes), captured={})


def text_to_image(task: Task) -> TextToImage:
    """Return the task's text-to-image model, or say that a method needs one."""
    if not hasattr(task.backbone, "latent_shape"):  # isinstance would not see through a backbone with cached features
        raise PromptFedError("This method needs a text-to-image model; set backbone.name=diffusion.")
    return cast(TextToImage, task.backbone)


class Method:
    """The base of every method: subclass it as a frozen dataclass of hyper-parameters. Unset parts follow FedAvg.

    What only some methods have, such as room for newcomers or pictures to show, is in `promptfed.core.extensions`.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    backbone: ClassVar[str] = "cnn"  # where a recipe names none
    recipe: ClassVar[Mapping[str, Mapping[str, object]]] = {}  # tables that its recipes start from
    quick: ClassVar[Mapping[str, Mapping[str, object] | int]] = {}  # keys of a bare `promptfed run`

    @property
    def traits(self) -> Traits:
        """Return what the engine must know beforehand."""
        return Traits()

    # -- what is learned, and where it lives ----------------------------------------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return the server's first tree."""
        return {}

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return one client's personal tree; its names and shapes stay fixed for the whole run."""
        return {}

    def draws(self, task: Task) -> dict[str, Draw]:
        """Return the randomness wanted in every batch, by name; the backbone's dropout may want some."""
        return task.backbone.draws()

    # -- one round, in the order it happens -----------------------------------------------------------------------
    def download(self, task: Task, server: Tree, clients: Tensor) -> Tree:
        """Return what each of `clients` [C] receives: a tree [C, ...]."""
        return tree.repeat(server, len(clients))

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Train on the client's data; return (up, personal)."""
        raise NotImplementedError

    def weight(self, facts: Tree) -> Tensor:
        """Return how much each client counts in the mean [C]."""
        return facts["size"]

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Return the next server tree from what the clients sent, `up` [C, ...] with `weights` [C]."""
        return server | tree.mean(up, weights) if up else server

    # -- what is minimised, and what is used ----------------------------------------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return one value per client, here the mean cross-entropy; `start` is what the client received this round."""
        return ops.cross_entropy(task.backbone(params, batch["x"], noise=batch), batch["y"], batch["mask"])

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Return a model with all that can be computed once before it is tested on many batches."""
        return params

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the logits [B, classes] for a batch without labels."""
        return task.backbone(params, batch["x"])

    def trained(self, task: Task, down: Tree, personal: Tree, up: Tree) -> Tree:
        """Return the client's model right after `fit`."""
        return down | personal | up

    def adapt(self, task: Task, down: Tree, personal: Tree, data: Data) -> Tree:
        """Return the model a client deploys; `data` is its TRAINING data."""
        return down | personal

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return the model that needs no client, or an empty tree if the method has none."""
        return server

    def evaluate(self, task: Task, params: Tree, batch: Batch) -> Tree:
        """Return sums over the batch per client, "count" among them; the default counts right answers."""
        return tally(self.predict(task, params, tree.drop(batch, ["y"])), batch)


def tally(logits: Tensor, batch: Batch) -> Tree:
    """Return the sums of the default `evaluate` for the logits [B, classes] of a batch."""
    right = (logits.argmax(-1) == batch["y"]).to(logits.dtype) * batch["mask"]
    count = batch["mask"].sum(-1)
    return {
        "correct": right.sum(-1),
        "loss": ops.cross_entropy(logits, batch["y"], batch["mask"]) * count,
        "count": count,
    }


def classifies(method: Method) -> bool:
    """Say whether a right answer is one of `predict`, as in the default `evaluate`; those that draw have their own."""
    inner = getattr(method, "inner", None)
    return classifies(inner) if isinstance(inner, Method) else type(method).evaluate is Method.evaluate


def averages(method: Method) -> bool:
    """Say whether the server's next tree is the mean of what clients send, name by name."""
    inner = getattr(method, "inner", None)
    own = type(method).aggregate is Method.aggregate or method.traits.averages
    return averages(inner) if isinstance(inner, Method) else own and not method.traits.needs_rows


def adapts(method: Method) -> bool:
    """Say whether `adapt` changes anything; if not, the received model is the one a client deploys."""
    return type(method).adapt is not Method.adapt and method.traits.adapts
