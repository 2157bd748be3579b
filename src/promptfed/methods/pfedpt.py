"""pFedPT: visual prompt based personalized federated learning (Li et al. TMLR 2024).

Every client keeps a visual prompt for itself; the backbone, trained on prompted images, is averaged. The prompt tells
the shared backbone whose image it sees, and with it which classes to expect.
Paper symbol -> name: w -> the backbone's weights, δ_i -> prompt.*, E_b -> epochs, E_g -> prompt_epochs, η_b -> lr,
η_g -> prompt_lr, p -> size.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import Batch, Data, Draw, Method, Rng, Task, Tree, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts import pixels, tokens


@dataclass(frozen=True)
class PFedPT(Method):
    """Keep a visual prompt per client, average the backbone.

    `size` is the frame's pixels per side, the patch's side, or the number of tokens. The paper names a padding of 4;
    its count of weights fits 2 pixels per side, 4 per axis.
    """

    name: ClassVar[str] = "pfedpt"
    quick: ClassVar = {"data": {"name": "fashion-shops", "limit": 20}}
    presets: ClassVar = {
        "paper": {"size": 4, "prompt_momentum": 0.0, "lr": 0.005},  # as printed
        "code": {"size": 2, "prompt_momentum": 0.5, "lr": 0.05, "drop_last": True},  # as the published commands run
    }

    prompt: Literal["frame", "patch", "random-patch", "tokens"] = "frame"
    size: Count = 2
    lr: Positive = 0.005
    epochs: Whole = 5
    prompt_lr: Positive = 1.0
    prompt_epochs: Whole = 5
    prompt_momentum: NonNegative = 0.5
    batch: Count = 16
    joint: bool = False  # Table 8: one phase that moves prompt and backbone together
    drop_last: bool = False

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return w⁰."""
        return task.backbone.init(rng)

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return δ_i, the same on every client at first, and its momentum, which lives across rounds."""
        generator = rng("prompt", shared=True)
        if self.prompt == "frame":
            parts = pixels.init_frame(task.backbone.shape, self.size, generator)
        elif self.prompt == "tokens":
            parts = tokens.init_tokens(task.backbone.token_width, self.size, generator)
        else:
            parts = pixels.init_patch(task.backbone.shape, self.size, generator)
        prompt = {f"prompt.{name}": value for name, value in parts.items()}
        velocity = {f"velocity.{name}": torch.zeros_like(value) for name, value in prompt.items()}
        return prompt | velocity if self.prompt_momentum else prompt

    def draws(self, task: Task) -> dict[str, Draw]:
        """Return the place of a random patch: one per batch, as in the authors' code."""
        where = {"where": Draw((2,), per="batch")} if self.prompt == "random-patch" else {}
        return task.backbone.draws() | where

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Algorithm 1, LocalTraining: first δ_i with w frozen, then w with δ_i frozen."""
        prompt = tree.pick(personal, (name for name in personal if name.startswith("prompt.")))
        if self.joint:
            return self._fit_jointly(task, down, personal, prompt, data)
        # Eq. 5, lines 10-12: δ_i ← δ_i − η_g ∇_δ ℓ(w; x + δ_i, y)
        batches = data.batches("prompt", size=self.batch, epochs=self.prompt_epochs, drop_last=self.drop_last)
        rates = local.Rates(lr=self.prompt_lr, momentum=self.prompt_momentum)
        tuned = local.sgd(self.loss, task, batches, start=down, params=prompt, hold=down | personal, **rates)
        # Eq. 6, lines 13-15: w ← w − η_b ∇_w ℓ(w; x + δ_i, y)
        batches = data.batches("backbone", size=self.batch, epochs=self.epochs, drop_last=self.drop_last)
        trained = local.sgd(
            self.loss, task, batches, start=down, params=down, hold=tree.pick(tuned, prompt), lr=self.lr
        )
        return tree.pick(trained, down), tree.pick(tuned, personal)

    def _fit_jointly(self, task: Task, down: Tree, personal: Tree, prompt: Tree, data: Data) -> tuple[Tree, Tree]:
        """Table 8, pFedPT-joint: δ_i and w in the same step, each at its own rate."""
        batches = data.batches("joint", size=self.batch, epochs=self.epochs, drop_last=self.drop_last)
        lr = {name: self.prompt_lr if name in prompt else self.lr for name in down | prompt}
        momentum = {name: self.prompt_momentum if name in prompt else 0.0 for name in down | prompt}
        tuned = local.sgd(
            self.loss, task, batches, start=down, params=down | prompt, hold=personal, lr=lr, momentum=momentum
        )
        return tree.pick(tuned, down), tree.pick(tuned, personal)

    # Eq. 7, the mean weighted by |D_i|, is the default `aggregate`.

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Eq. 4: L_i(w, δ_i), the cross-entropy of prompted images."""
        return ops.cross_entropy(self._logits(task, params, batch, noise=batch), batch["y"], batch["mask"])

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the shared backbone's logits for the client's prompted images."""
        return self._logits(task, params, batch, noise=None)

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return nothing: w was never trained on an image without a prompt."""
        return {}

    # -- the prompt --------------------------------------------------------------
    def _logits(self, task: Task, params: Tree, batch: Batch, noise: Tree | None) -> Tensor:
        if self.prompt == "tokens":
            return task.backbone(params, batch["x"], tokens=params["prompt.tokens"], noise=noise)
        added = self._image(task, params, batch)
        return task.backbone(params, batch["x"] + added.unsqueeze(-4), noise=noise)  # Eq. 3: x + δ_i

    def _image(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the prompt as an image [3, H, W], zero where it leaves the picture alone."""
        parts = {name.removeprefix("prompt."): value for name, value in params.items() if name.startswith("prompt.")}
        if self.prompt == "frame":
            return pixels.frame(parts)
        if self.prompt == "patch":
            return pixels.fixed_patch(parts, task.backbone.shape)
        return pixels.placed_patch(parts, task.backbone.shape, batch["where"])

    # -- what a person wants to see ----------------------------------------------
    def measures(self, task: Task, before: Tree, after: Tree) -> Tree:
        """Figure 7: the mean absolute change of each client's prompt in this round."""
        names = [name for name in before if name.startswith("prompt.")]
        trailing = 2 if self.prompt == "tokens" else 3
        moved = torch.cat([(after[name] - before[name]).abs().flatten(-trailing) for name in names], -1)
        return {"prompt_drift": moved.mean(-1)}

    def pictures(self, task: Task, personal: Tree) -> Tree:
        """Return the learned prompt on a grey image."""
        if self.prompt == "tokens":
            return {}
        corner = {"where": torch.zeros(2)}
        return {"prompt": self._image(task, personal, corner)}
