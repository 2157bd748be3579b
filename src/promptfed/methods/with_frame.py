"""+PT: pFedPT's visual prompt as a plug-in for any method that sees pixels (Li et al. TMLR 2024, Table 2).

Every client keeps a visual prompt for itself. In a round it is trained first, with everything else as it is; then the
other method trains on prompted images and never knows. WithFrame(FedAvg) is pFedPT.
Paper symbol -> name: δ_i -> pt.*, E_g -> epochs, η_g -> lr, p -> size.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import Batch, Data, Draw, Method, Rng, Task, Traits, Tree, extensions, local, tree
from promptfed.core.extensions import forwards
from promptfed.core.method import adapts
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts import pixels


@forwards
@dataclass(frozen=True)
class WithFrame(Method):
    """Add a visual prompt of each client's own to the images that another method trains on and is tested on."""

    name: ClassVar[str] = "pt"

    inner: Method
    kind: Literal["frame", "patch", "random-patch"] = "frame"
    size: Count = 2  # the frame's pixels per side, or the patch's side
    lr: Positive = 1.0
    epochs: Whole = 5
    momentum: NonNegative = 0.5
    batch: Count = 16
    drop_last: bool = False

    @property
    def traits(self) -> Traits:
        """Return the inner method's own; a prompt always learns."""
        return replace(self.inner.traits, learns=True, adapts=adapts(self.inner))

    # -- what is learned, and where it lives ------------------------------------
    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return δ_i, the same on every client at first, its momentum, and the inner method's own."""
        init = pixels.init_frame if self.kind == "frame" else pixels.init_patch
        parts = init(task.backbone.shape, self.size, rng("prompt", shared=True))
        prompt = {f"pt.{name}": value for name, value in parts.items()}
        velocity = {f"velocity.{name}": torch.zeros_like(value) for name, value in prompt.items()}
        rest = self.inner.init_client(task, data.map(self._add, prompt), rng)
        return prompt | (velocity if self.momentum else {}) | rest

    def draws(self, task: Task) -> dict[str, Draw]:
        """Return the inner method's, and the place of a random patch: one per batch, as in the authors' code."""
        where = {"where": Draw((2,), per="batch")} if self.kind == "random-patch" else {}
        return self.inner.draws(task) | where

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """First δ_i with everything else frozen, then the inner method with δ_i frozen."""
        own, rest = _split(personal)
        # δ_i ← δ_i − η_g ∇_δ ℓ(x + δ_i, y)
        batches = data.batches("prompt", size=self.batch, epochs=self.epochs, drop_last=self.drop_last)
        rates = local.Rates(lr=self.lr, momentum=self.momentum)
        tuned = local.sgd(self.loss, task, batches, start=down, params=_prompt(own), hold=down | personal, **rates)
        up, rest = self.inner.fit(task, down, rest, data.map(self._add, _prompt(tuned)))
        return up, tree.pick(tuned, own) | rest

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the inner method's plain loss on prompted images."""
        return self.inner.loss(task, start, _split(params)[1], self._add(_prompt(params), batch))

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Prepare the inner method's model."""
        own, rest = _split(params)
        return own | self.inner.prepare(task, rest)

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the inner method's logits for prompted images."""
        return self.inner.predict(task, _split(params)[1], self._add(_prompt(params), batch))

    def evaluate(self, task: Task, params: Tree, batch: Batch) -> Tree:
        """Return what the inner method counts on prompted images."""
        return self.inner.evaluate(task, _split(params)[1], self._add(_prompt(params), batch))

    def trained(self, task: Task, down: Tree, personal: Tree, up: Tree) -> Tree:
        """Return the inner method's model with the prompt."""
        own, rest = _split(personal)
        return own | self.inner.trained(task, down, rest, up)

    def adapt(self, task: Task, down: Tree, personal: Tree, data: Data) -> Tree:
        """Let the inner method adapt to prompted images."""
        own, rest = _split(personal)
        return own | self.inner.adapt(task, down, rest, data.map(self._add, _prompt(own)))

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return nothing: the server's model was never trained on an image without a prompt."""
        return {}

    # -- the prompt --------------------------------------------------------------
    def _add(self, prompt: Tree, batch: Batch) -> Batch:
        """Return the batch with prompted images, x + δ_i."""
        added = self._image(prompt, (batch["x"].shape[-3], batch["x"].shape[-2], batch["x"].shape[-1]), batch)
        return batch | {"x": batch["x"] + added.unsqueeze(-4)}

    def _image(self, prompt: Tree, shape: pixels.Shape, batch: Batch) -> Tensor:
        """Return the prompt as an image [3, H, W], zero where it leaves the picture alone."""
        parts = {name.removeprefix("pt."): value for name, value in prompt.items()}
        if self.kind == "frame":
            return pixels.frame(parts)
        if self.kind == "patch":
            return pixels.fixed_patch(parts, shape)
        return pixels.placed_patch(parts, shape, batch["where"])

    # -- what a person wants to see ----------------------------------------------
    def measures(self, task: Task, before: Tree, after: Tree) -> Tree:
        """Return the inner method's measures and the mean absolute change of each client's prompt in this round."""
        moved = [(after[name] - before[name]).abs().flatten(-3) for name in _prompt(before)]
        inner = extensions.measures(self.inner, task, _split(before)[1], _split(after)[1])
        return inner | {"prompt_drift": torch.cat(moved, -1).mean(-1)}

    def exhibits(self, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
        """Return the inner method's own."""
        return extensions.exhibits(self.inner, task, server, clients, _split(personal)[1])

    def pictures(self, task: Task, personal: Tree) -> Tree:
        """Return the inner method's pictures and the learned prompt on a grey image."""
        own, rest = _split(personal)
        corner = {"where": torch.zeros(2)}
        prompt = self._image(_prompt(own), task.backbone.shape, corner)
        return extensions.pictures(self.inner, task, rest) | {"prompt": prompt}


def _prompt(params: Tree) -> Tree:
    return {name: value for name, value in params.items() if name.startswith("pt.")}


def _split(params: Tree) -> tuple[Tree, Tree]:
    """Return the prompt with its momentum, and what belongs to the inner method."""
    own = [name for name in params if name.startswith(("pt.", "velocity.pt."))]
    return tree.pick(params, own), tree.drop(params, own)
