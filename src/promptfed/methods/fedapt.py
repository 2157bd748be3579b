"""FedAPT: federated adaptive prompt tuning for multi-domain collaborative learning (Su et al. AAAI 2024).

All clients tune one context before the class names of a frozen CLIP. Each domain has a frozen random key, by which the
context is multiplied, and a small network learns to tell domains apart. So the one model gives every test image the
context of its domain.
Paper symbol -> name: p_g -> context, e_k -> keys[k], φ -> query.weight, K -> domains, s -> tokens, λ -> dispersion,
τ of Table 6 -> tau; τ of eq. 1 is CLIP's own, 1 / scale.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from promptfed.core import Batch, Data, Draw, Method, Rng, Sorter, Task, Traits, Tree, dual, local, ops, tree
from promptfed.core.options import Count, NonNegative, Positive, Range, Share, Whole
from promptfed.core.prompts.text import init_context, init_map, match, match_each
from promptfed.methods import _unlabelled as unlabelled
from promptfed.methods._unlabelled import Intra, Mode, Rest

TESTING = ("tau", "domain_logit_norm", "inference", "renorm", "test_key", "fixed_key")


@dataclass(frozen=True)
class FedAPT(Method):
    """Average one context and a domain classifier; unlock the context of each image's domain by frozen keys."""

    name: ClassVar[str] = "fedapt"
    backbone: ClassVar[str] = "clip"
    presets: ClassVar = {
        "office": {"domains": 4, "lr": 0.001, "batch": 32},
        "domainnet": {"domains": 6, "lr": 0.01, "batch": 256},
        "unsupervised": {"mode": "unsupervised", "domains": 6, "lr": 0.01, "batch": 512},
    }

    mode: Mode = "supervised"  # supervised: a context per class; unsupervised: one for all classes
    domains: Count = 4
    tokens: Count = 16
    keys: Literal["uniform", "normal", "orthogonal"] = "uniform"
    lr: Positive = 0.01
    epochs: Whole = 1
    batch: Count = 256
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-5
    tau: Positive = 0.01  # of the softmax over domains, in testing only
    domain_logit_norm: Literal["zscore", "none"] = "zscore"
    inference: Literal["fast", "exact"] = "fast"  # exact: the text tower runs for every image
    renorm: bool = False  # fast: the mean of the domains' text features is made a unit vector
    test_key: Literal["adaptive", "none", "fixed"] = "adaptive"  # Table 4
    fixed_key: Whole = 0
    stage1: Whole = 10  # rounds of learning from pseudo-labels, in unsupervised mode
    threshold: Share = 0.75
    neighbours: Count = 5
    dispersion: NonNegative = 0.5
    rest: Rest = "sum"  # of the batch in eq. 9; mean: λ means the same for batches of every size
    intra: Intra = "kl"

    @property
    def traits(self) -> Traits:
        """Ask for features and, without labels, for augmented views; the keys never change."""
        return Traits(
            reads="features",
            views=unlabelled.VIEWS if self.mode == "unsupervised" else 0,
            weighs=self.mode == "supervised",
            once=("keys",),
            testing=TESTING,
            open=not self._per_class,
        )

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return p_g [classes, s, W] or [s, W], φ [K, D] and the keys [K, s, W]."""
        if self.test_key == "fixed":
            Range(most=self.domains - 1).check("method.fixed_key", self.fixed_key)
        clip = dual(task)
        classes = len(task.classes) if self.mode == "supervised" else 0
        query = init_map("query", (self.domains, clip.zero_shot.shape[-1]), rng("query"))
        return {
            "context": init_context(clip.context_width, self.tokens, rng("context"), classes),
            "query.weight": query["query.weight"],
            "keys": self._fresh_keys(clip.context_width, rng("keys")),
        }

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return a bank of scores, still empty, for learning without labels; else nothing."""
        Range(least=int(data.facts["domain"]) + 1).check("method.domains", self.domains)
        return {"bank.scores": torch.zeros(data.capacity, len(task.classes))} if self.mode == "unsupervised" else {}

    def draws(self, task: Task) -> dict[str, Draw]:
        """Return which view of each image is seen."""
        return task.backbone.draws() | (unlabelled.DRAWS if self.mode == "unsupervised" else {})

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Move p and φ by SGD, the keys frozen; send p and φ."""
        batches = data.batches(size=self.batch, epochs=self.epochs)
        rates = local.Rates(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        learned, keys = tree.drop(down, self.traits.once), tree.pick(down, self.traits.once)
        if self.mode == "supervised" or data.round < self.stage1:
            objective = self.loss if self.mode == "supervised" else self.self_training
            tuned = local.sgd(objective, task, batches, start=down, params=learned, hold=keys, **rates)
            return tree.pick(tuned, learned), personal
        with torch.no_grad():
            answer = partial(match, text=self._text(task, down, data.facts["domain"]), scale=dual(task).scale)
        banks = unlabelled.filled(personal["bank.scores"], data, self.batch, answer)
        tuned = local.sgd(
            self.comparison, task, batches, start=down, params=learned, hold=keys | banks, carry=personal, **rates
        )
        return tree.pick(tuned, learned), tree.pick(tuned, personal)

    def weight(self, facts: Tree) -> Tensor:
        """Eq. 12: every client counts once."""
        return torch.ones_like(facts["size"])

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Eq. 7 and 11: L_c + L_q, the classes' cross-entropy under the domain's key and the domains'."""
        text = self._text(task, params, batch["domain"])
        logits = match(batch["x"], text, dual(task).scale)
        return ops.cross_entropy(logits, batch["y"], batch["mask"]) + _domain_loss(params, batch["x"], batch)

    def self_training(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Stage 1: L_pseudo + L_q on augmented views."""
        seen = unlabelled.view(batch)
        logits = match(seen, self._text(task, params, batch["domain"]), dual(task).scale)
        return unlabelled.pseudo_loss(task, logits, batch, self.threshold) + _domain_loss(params, seen, batch)

    def comparison(self, task: Task, start: Tree, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """Stage 2: L_inter + L_intra + L_q; hand on the score bank with the batch's new scores."""
        answer = partial(match, text=self._text(task, params, batch["domain"]), scale=dual(task).scale)
        value, bank = unlabelled.compared(
            answer, params, batch, self.neighbours, self.dispersion, self.rest, self.intra
        )
        return value + _domain_loss(params, batch["x"], batch), bank

    def prepare(self, task: Task, params: Tree) -> Tree:
        """Figure 2: run the text tower once for every key, T_k = T(p + p ⊙ e_k), unless inference is exact."""
        if self.inference == "exact":
            return params
        keys = self._test_keys(params)
        context = params["context"].unsqueeze(-4 if self._per_class else -3)
        return params | {"text": dual(task).text(self._unlocked(context, keys), per_class=self._per_class)}

    def predict(self, task: Task, params: Tree, batch: Batch) -> Tensor:
        """Eq. 5: the logits under the context p + p ⊙ Σ_k q_k e_k; fast, their mean over the keys, Σ_k q_k logits_k."""
        x, scale, shares = batch["x"], dual(task).scale, self.shares(params, batch["x"])
        if self.inference == "exact":
            keys = torch.einsum("...bk,...ksw->...bsw", shares, self._test_keys(params))
            contexts = (self._unlocked(params["context"], key) for key in keys.unbind(-3))
            texts = [dual(task).text(context, per_class=self._per_class) for context in contexts]
            return match_each(x, torch.stack(texts, -3), scale)
        params = params if "text" in params else self.prepare(task, params)
        logits = (shares.unsqueeze(-1) * self.each(task, params, x)).sum(-2)
        if self.renorm:  # |Σ_k q_k T_k|² = Σ_k Σ_j q_k q_j T_k·T_j
            text = params["text"]
            products = torch.einsum("...kcd,...jcd->...ckj", text, text)
            logits = logits / torch.einsum("...bk,...ckj,...bj->...bc", shares, products, shares).sqrt()
        return logits

    # -- the adaptive network and the keys ---------------------------------------
    def each(self, task: Task, params: Tree, features: Tensor) -> Tensor:
        """Return the logits under every single key [..., B, K, classes], from a model that is prepared."""
        text = params["text"]  # [..., K, classes, D]
        logits = match(features, text.flatten(-3, -2), dual(task).scale)
        return logits.reshape(*features.shape[:-1], *text.shape[-3:-1])

    def shares(self, params: Tree, features: Tensor) -> Tensor:
        """Return q [..., B, K], how much of each key an image gets: all of one or a mixture, depending on τ."""
        if self.test_key != "adaptive":
            return features.new_ones(*features.shape[:-1], 1)
        logits = features @ params["query.weight"].mT
        if self.domain_logit_norm == "zscore":
            logits = logits - logits.mean(-1, keepdim=True)
            variance = logits.square().sum(-1, keepdim=True) / max(self.domains - 1, 1)
            logits = logits / variance.sqrt().clamp(min=torch.finfo(logits.dtype).tiny)  # equal logits stay at zero
        return torch.softmax(logits / self.tau, -1)

    def _test_keys(self, params: Tree) -> Tensor:
        """Return the keys among which a test image's is found [..., K or 1, s, W]."""
        keys = params["keys"]
        if self.test_key == "adaptive":
            return keys
        one = keys.narrow(-3, self.fixed_key if self.test_key == "fixed" else 0, 1)
        return one if self.test_key == "fixed" else torch.zeros_like(one)

    def _text(self, task: Task, params: Tree, domain: Tensor) -> Tensor:
        """Return the text features [..., classes, D] under the key of the client's domain []."""
        key = params["keys"].take_along_dim(domain[..., None, None, None], -3).squeeze(-3)
        return dual(task).text(self._unlocked(params["context"], key), per_class=self._per_class)

    def _unlocked(self, context: Tensor, key: Tensor) -> Tensor:
        """Eq. 6: p + p ⊙ e, one key [..., s, W] for all classes."""
        return context + context * (key.unsqueeze(-3) if self._per_class else key)

    @property
    def _per_class(self) -> bool:
        return self.mode == "supervised"

    def _fresh_keys(self, width: int, draw: torch.Generator) -> Tensor:
        """Return random keys [K, s, W]; orthogonal ones have numbers as large as normal ones."""
        shape = (self.domains, self.tokens, width)
        if self.keys == "uniform":
            return torch.rand(shape, generator=draw)
        normal = torch.randn(shape, generator=draw)
        if self.keys == "normal":
            return normal
        room = self.tokens * width
        Range(most=room).check("With orthogonal keys method.domains", self.domains)
        basis: Tensor = torch.linalg.qr(normal.flatten(1).T).Q  # [s·W, K]
        return (math.sqrt(room) * basis.T).reshape(shape)

    # -- what a person wants to see ----------------------------------------------
    def sorter(self, task: Task, server: Tree) -> Sorter:
        """Sort by the adaptive network, each key's logits computed fast, whatever `test_key` and `inference` are."""
        method = replace(self, inference="fast", test_key="adaptive")
        params = method.prepare(task, method.deploy(task, server))
        return lambda batch: {
            "shares": method.shares(params, batch["x"]),
            "logits": method.each(task, params, batch["x"]),
        }


def _domain_loss(params: Tree, features: Tensor, batch: Batch) -> Tensor:
    """Eq. 11: the cross-entropy of φ f with the client's domain; the features are as long as they come."""
    logits = features @ params["query.weight"].mT
    return ops.cross_entropy(logits, batch["domain"].unsqueeze(-1).expand_as(batch["mask"]), batch["mask"])
