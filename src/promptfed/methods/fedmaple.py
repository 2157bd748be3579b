"""FedMaPLe: multi-modal prompt learning (MaPLe, Khattak et al. CVPR 2023) averaged over clients.

Both towers of a frozen CLIP have prompts, in their first blocks each its own. Those of the image tower are made from
those of the text tower by a linear map per block, so the two cannot drift apart. A baseline of most recent papers.
Symbol -> name: P_0 -> context, P_1 … P_{J−1} -> deep, F_k -> project.*, P̃_k -> visual, J -> depth, b -> tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from promptfed.core import Batch, Data, Method, Rng, Task, Traits, Tree, adaptable, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Whole
from promptfed.core.prompts.pairs import TEXT
from promptfed.core.prompts.text import init_context, init_map, match

OPENING = "a photo of a"  # its first words start the context, if it has no more tokens than this


@dataclass(frozen=True)
class FedMaPLe(Method):
    """Average the prompts of the text tower and the maps that make those of the image tower out of them."""

    name: ClassVar[str] = "fedmaple"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {
        "fedmgp": {"epochs": 2, "batch": 8},
        "flip": {"depth": 1, "lr": 0.002, "batch": 16, "weight_decay": 1e-4},
        "ivlp": {"coupled": False, "depth": 1, "epochs": 2, "batch": 8},
    }
    quick: ClassVar = {"rounds": 5, "data": {"name": "fashion-shops", "limit": 20}, "evaluate": {"every": 5}}
    traits = Traits(open=True)

    tokens: Count = 2  # per block
    depth: Count = 9  # blocks of either tower with prompts of their own, at most as many as it has
    coupled: bool = True  # false: the image tower's prompts are learned by themselves
    lr: Positive = 0.001
    epochs: Whole = 1
    batch: Count = 32
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return P_0 [b, W], P_1 … P_{J−1} [J − 1, b, W] and all F_k, or in their place all P̃_k [J, b, V]."""
        clip, depth = dual(task), self._depth(task)
        width, seen = clip.context_width, clip.token_width
        words = clip.words(OPENING)
        spoken = self.tokens <= len(words)
        prompts = {"context": words[: self.tokens] if spoken else init_context(width, self.tokens, rng("context"))}
        if depth > 1:
            prompts["deep"] = init_context(width, self.tokens, rng("deep"), depth - 1)
        if not self.coupled:
            return prompts | {"visual": init_context(seen, self.tokens, rng("visual"), depth)}
        draw = rng("project")
        return prompts | tree.stack([init_map("project", (seen, width), draw) for _ in range(depth)])

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move everything together by SGD and send it."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        return tree.pick(local.sgd(self.loss, task, batches, start=down, params=down, **rates), down), personal

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return the cross-entropy over all classes."""
        return ops.cross_entropy(self.predict(task, params, batch), batch["y"], batch["mask"])

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Run the text tower once, and make the prompts of the image tower."""
        deep = params["deep"].unbind(-3) if "deep" in params else ()
        text = dual(task).text(params["context"], per_class=False, deep=deep)
        return params | {"text": text, "visual": self.visual(params)}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Return the scaled cosines of images and names, both through prompted towers."""
        known = params if "text" in params else self.prepare(task, params)
        features = dual(task).features({}, batch["x"], tokens=known["visual"].unbind(-3))
        return match(features, known["text"], dual(task).scale)

    # -- both towers' prompts ----------------------------------------------------
    def visual(self, params: Tree) -> Tensor:
        """Return P̃_k = F_k(P_k) of every block [..., J, b, V], or those that are learned by themselves."""
        if not self.coupled:
            return params["visual"]
        shallow = params["context"].unsqueeze(-3)
        every = torch.cat([shallow, params["deep"]], -3) if "deep" in params else shallow
        return ops.linear(every, params["project.weight"], params["project.bias"])

    def _depth(self, task: Task) -> int:
        """Return J: no more than the blocks of either tower."""
        texts = {name.split(".")[1] for name in adaptable(task).matrices if name.startswith(TEXT)}
        return min(self.depth, task.backbone.layers, len(texts))
