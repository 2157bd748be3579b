"""RELIC: federated conditional textual inversion with prototype alignment (Chen, Su, Li).

Many clients learn a pseudo-word S* for a frozen text-to-image model. They send its embedding u; a shift that depends on
the image and a scale that depends on the template make it a client's own and never leave it. What the text tower makes
of the word, on the mean for each template, is kept alike between clients.
Paper symbol -> name: u -> word, û -> `spoken`, W_s -> shift*, W_t -> scale*, F_v -> visual, T -> templates, F_t -> own,
ζ^c -> local.prototype, ζ̄ -> prototype, m -> ema, λ_0 -> align, η -> lr, E -> epochs, B -> batch.

FedTI, FedCPW and FedProto are RELIC without one or both of its parts; TI-Local and TI-Central are without federation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.core import Batch, Data, Draw, Method, Rng, Task, Traits, Tree, local, ops, text_to_image, tree
from promptfed.core.options import Count, NonNegative, Positive, Share, Whole
from promptfed.core.prompts.templates import TemplateKind, templates

BRANCHES = ("shift", "scale")


@dataclass(frozen=True)
class RELIC(Method):
    """Learn one pseudo-word together: average its embedding, align its prototypes, keep what conditions it."""

    name: ClassVar[str] = "relic"
    backbone: ClassVar[str] = "diffusion"
    # a few photographs each of one thing, which the embedded model has never seen and which has no classes to divide
    recipe: ClassVar = {"partition": {"name": "equal"}, "data": {"only": "Ankle boot"}}
    quick: ClassVar = {"rounds": 5, "clients": 4, "method": {"repeats": 10}, "evaluate": {"every": 5}}

    conditional: bool = True  # a shift and a scale of each client's own make û of u
    align: NonNegative = 0.7  # λ_0, the weight of prototypes in the loss; 0, or not shared: there are none
    shared: bool = True  # false: every client learns its own u and nothing travels
    initialiser: str = "thing"  # the word that u starts from
    vectors: Count = 1  # u has so many, which stand side by side in the prompt
    templates: TemplateKind = "object"
    first: Whole = 0  # use so many of the templates, from the first; 0: all
    lr: Positive = 5e-4
    branch_lr: NonNegative = 0.0  # rate of the branches; 0: that of u
    weight_decay: NonNegative = 0.0  # AdamW's, on u and the branches
    epochs: Whole = 2
    repeats: Count = 100  # times an image is seen in an epoch
    batch: Count = 1
    mirror: bool = True  # show every other image mirrored
    hidden: Count = 32  # width of the branches' hidden layer
    relu: bool = True  # false: both layers of a branch are linear
    bias: bool = True  # false: the branches' layers have none
    visual: Literal["given", "unit"] = "given"  # length of F_v: the backbone's own, or 1
    form: Literal["residual", "printed"] = (
        "residual"  # û = shift + u(1 + scale), so û = u at first; or u·scale, as printed
    )
    ema: Share = 0.9  # how much of a prototype's target is the server's; the rest is the client's own of before
    distance: Literal["mse", "norm"] = "mse"  # of a state from its prototype
    weighting: Literal["size", "uniform"] = "size"  # of clients in the mean of u

    @property
    def traits(self) -> Traits:
        """Say what prototypes ask of guards: their mean is over those who used a template, the others send zeros."""
        return Traits(
            reads="features",
            weighs=False,
            needs_rows=self._aligned,
            marks_nothing=self._aligned,
            keeps=("word",) if self.shared else (),
        )

    # -- what is learned, and where it lives ------------------------------------
    def init_server(self, task: Task, rng: Rng) -> Tree:
        """Return u [v, W], and the prototypes [T, W], zero where there is none yet."""
        model = text_to_image(task)
        prototypes = {"prototype": torch.zeros(len(self._templates), model.word_width)} if self._aligned else {}
        return ({"word": self._start(task)} if self.shared else {}) | prototypes

    def init_client(self, task: Task, data: Data, rng: Rng) -> Tree:
        """Return W_s and W_t, the mean F_v of the client's images, its own prototypes; and u if it is not shared."""
        model = text_to_image(task)
        personal: Tree = {} if self.shared else {"word": self._start(task)}
        if self._aligned:
            personal["local.prototype"] = torch.zeros(len(self._templates), model.word_width)
        if self.conditional:
            for name, inputs in zip(BRANCHES, (model.visual_width, model.word_width), strict=True):
                personal |= self._branch(name, inputs, model.word_width, rng(name, shared=True))
            personal["visual"] = self._sized(_mean_visual(task, data))
        return personal

    def _start(self, task: Task) -> Tensor:
        """Return the word that u starts from; one too long for a template is refused before a run begins."""
        model = text_to_image(task)
        start = model.word(self.initialiser).repeat(self.vectors, 1)
        with torch.no_grad():
            model.encode(self._templates, torch.zeros(1, dtype=torch.long, device=start.device), start)
        return start.cpu()

    def _branch(self, name: str, inputs: int, outputs: int, draw: torch.Generator) -> Tree:
        """Return two layers; in the residual form the last is zero, so that a branch changes nothing at first."""
        made: Tree = {}
        for number, (fan, out) in enumerate([(inputs, self.hidden), (self.hidden, outputs)], 1):
            scale = 0.0 if number == 2 and self.form == "residual" else fan**-0.5
            made[f"{name}{number}.weight"] = scale * torch.empty(out, fan).uniform_(-1, 1, generator=draw)
            if self.bias:
                made[f"{name}{number}.bias"] = torch.zeros(out)
        return made

    def draws(self, task: Task) -> dict[str, Draw]:
        """Return for every sample its noise, its time, its template, and whether it is mirrored."""
        wanted = {"noise": Draw(text_to_image(task).latent_shape, "normal"), "time": Draw(), "template": Draw()}
        return task.backbone.draws() | wanted | ({"mirrored": Draw()} if self.mirror else {})

    # -- one round, in the order it happens -------------------------------------
    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        """Algorithm 1: align the prototypes, train u, W_s and W_t by Adam; send u and ζ^c, keep the branches."""
        batches = data.batches(size=self.batch, epochs=self.epochs * self.repeats)
        known = down | personal
        trained = {name: x for name, x in known.items() if name == "word" or name.startswith(BRANCHES)}
        if not self._aligned:
            tuned = local.adam(self.loss, task, batches, start=down, params=trained, **self._rates(trained))
            return tree.pick(tuned, [name for name in down if name in tuned]), personal | _kept(tuned, personal)
        size = data.facts["size"]
        hold = {
            "target": self._target(down["prototype"], personal["local.prototype"]),
            "epoch": (size / self.batch).ceil() * self.repeats,  # in steps
            "sum": torch.zeros_like(personal["local.prototype"]),
            "count": torch.zeros_like(personal["local.prototype"][..., 0]),
            "step": torch.zeros_like(size),
        }
        tuned = local.adam(
            self.aligned,
            task,
            batches,
            start=down,
            params=trained,
            hold=hold,
            carry=("sum", "count", "step"),
            **self._rates(trained),
        )
        own = tuned["sum"] / tuned["count"].clamp(min=1).unsqueeze(-1)
        used = (tuned["count"] > 0).unsqueeze(-1)
        kept = personal | _kept(tuned, personal)
        kept["local.prototype"] = torch.where(used, own, personal["local.prototype"])
        return {"word": tuned["word"], "prototype": own}, kept

    def _rates(self, trained: Tree) -> local.AdamRates:
        """Return the rates of u and of the branches, and the decay of both."""
        branches = self.branch_lr or self.lr
        lr = {name: self.lr if name == "word" else branches for name in trained}
        return local.AdamRates(lr=lr, weight_decay=self.weight_decay)

    def _target(self, server: Tensor, own: Tensor) -> Tensor:
        """Return m ζ̄ + (1 − m) ζ^c, or ζ̄ where the client has no prototype, or zero where the server has none."""
        mixed = torch.where(_there(own), torch.lerp(own, server, self.ema), server)
        return mixed * _there(server)

    def weight(self, facts: Tree) -> Tensor:
        """Return how much each client counts in the mean of u."""
        return facts["size"] if self.weighting == "size" else torch.ones_like(facts["size"])

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Return the mean u, and for each template the plain mean of ζ^c over those who used it."""
        if not self.shared:
            return server
        new = tree.mean({"word": up["word"]}, weights)
        if self._aligned:
            there = _there(up["prototype"])  # [C, T, 1]
            mean = up["prototype"].sum(0) / there.sum(0).clamp(min=1)
            new["prototype"] = torch.where(there.any(0), mean, server["prototype"])
        return server | new

    # -- the conditional pseudo-word û ------------------------------------------
    def spoken(
        self,
        task: Task,
        params: Tree,
        chosen: Tensor,
        visual: Tensor | None = None,
        templates: Sequence[str] | None = None,
    ) -> Tensor:
        """Return û [..., B, v, W] for templates `chosen` [..., B]: what is put into the prompts.

        They are chosen from `templates`, or from the method's own where none are given. The shift depends on visual
        features [..., B, V], or on the mean of the client's images where none are given.
        Without branches, as on the server, û is u.
        """
        word = params["word"].unsqueeze(-3)
        if "shift1.weight" not in params:
            return word.expand(*chosen.shape, *word.shape[-2:])
        if visual is None:
            visual = params["visual"].unsqueeze(-2).expand(*chosen.shape, -1)
        context = text_to_image(task).context(self._templates if templates is None else templates)[chosen]
        shift = self._through("shift", params, visual).unsqueeze(-2)
        scale = self._through("scale", params, context).unsqueeze(-2)
        return shift + word * (scale + 1 if self.form == "residual" else scale)

    def _through(self, name: str, params: Tree, x: Tensor) -> Tensor:
        inner = self._layer(f"{name}1", params, x)
        return self._layer(f"{name}2", params, inner.relu() if self.relu else inner)

    def _layer(self, name: str, params: Tree, x: Tensor) -> Tensor:
        weight = params[f"{name}.weight"]
        return ops.linear(x, weight, params[f"{name}.bias"] if self.bias else weight.new_zeros(weight.shape[:-1]))

    def _sized(self, visual: Tensor) -> Tensor:
        """Return F_v [..., V] as the branches see it."""
        return F.normalize(visual, dim=-1) if self.visual == "unit" else visual

    @property
    def _aligned(self) -> bool:
        return self.shared and self.align > 0

    @property
    def _templates(self) -> tuple[str, ...]:
        return templates(self.templates, self.first)

    def _chosen(self, batch: Batch) -> Tensor:
        return (batch["template"] * len(self._templates)).long()

    # -- what is minimised, and what is used ------------------------------------
    def loss(self, task: Task, start: Tree, params: Tree, batch: Batch) -> Tensor:
        """Return L_recon: how far the model is from the noise that was put into the client's images."""
        visual = self._sized(text_to_image(task).unpack(batch["x"])[1])
        error, _ = self._errors(task, self.spoken(task, params, self._chosen(batch), visual), batch)
        return _mean(error, batch)

    def aligned(self, task: Task, start: Tree, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """Return L_recon + λ_0 L_proto, and the sums of the epoch's states for each template.

        A template without a target has λ = 0: in the first round there is none.
        """
        chosen = self._chosen(batch)
        visual = self._sized(text_to_image(task).unpack(batch["x"])[1])
        error, own = self._errors(task, self.spoken(task, params, chosen, visual), batch)
        hot = (chosen.unsqueeze(-1) == torch.arange(len(self._templates), device=chosen.device)).to(own)
        target = hot @ params["target"]  # [..., B, W]
        gap = (own - target).square()
        far = gap.mean(-1) if self.distance == "mse" else (gap.sum(-1) + 1e-12).sqrt()
        far = far * (hot @ _there(params["target"]).to(own)).squeeze(-1)
        hot = hot * batch["mask"].unsqueeze(-1)
        again = (params["step"] % params["epoch"] > 0).to(own)  # 0 in an epoch's first step: the sums restart
        sums = {
            "sum": again[..., None, None] * params["sum"] + hot.mT @ own.detach(),
            "count": again[..., None] * params["count"] + hot.sum(-2),
            "step": params["step"] + 1,
        }
        return _mean(error + self.align * far, batch), sums

    def _errors(self, task: Task, words: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return each sample's mean squared error [..., B] and its F_t, the pseudo-word's own state [..., B, W]."""
        model = text_to_image(task)
        latents = model.unpack(batch["x"])[0]
        if "mirrored" in batch:
            swap = (batch["mirrored"] < 0.5)[..., None, None, None]
            shown = torch.where(swap, latents[..., 1, :, :, :], latents[..., 0, :, :, :])
        else:
            shown = latents[..., 0, :, :, :]
        time = (batch["time"] * model.times).long()
        noisy, wanted = model.noised(shown, batch["noise"], time)
        states, own = model.encode(self._templates, self._chosen(batch), words)
        found = model.denoise(noisy, time, states)
        return (found - wanted).square().mean((-3, -2, -1)), own

    def trained(self, task: Task, down: Tree, personal: Tree, up: Tree) -> Tree:
        """Return û's parts right after `fit`."""
        return down | personal | tree.pick(up, [name for name in ("word",) if name in up])

    def deploy(self, task: Task, server: Tree) -> Tree:
        """Return u alone, or nothing if every client has its own."""
        return tree.pick(server, ["word"]) if self.shared else {}

    def evaluate(self, task: Task, params: Tree, batch: Batch) -> Tree:
        """Count test images that the learned word describes better than the word it started from.

        That is: with the same noise, template and time, the model errs less. Both do without the image's own features.
        """
        chosen, start = self._chosen(batch), self._start(task).to(batch["x"].device)
        error, _ = self._errors(task, self.spoken(task, params, chosen), batch)
        before, _ = self._errors(task, start.expand(*chosen.shape, *start.shape), batch)
        mask = batch["mask"]
        return {
            "correct": ((error < before).to(error) * mask).sum(-1),
            "loss": (error * mask).sum(-1),
            "count": mask.sum(-1),
        }

    # -- what a person wants to see ----------------------------------------------
    def exhibits(self, task: Task, server: Tree, clients: Tensor, personal: Tree) -> Tree:
        """Return each client's û for the first template, and what its images look like on the mean."""
        params = tree.repeat(tree.pick(server, ["word"] if self.shared else []), len(clients)) | personal
        first = torch.zeros(len(clients), 1, dtype=torch.long, device=params["word"].device)
        shown = {"prompts": self.spoken(task, params, first).squeeze(-3)}
        return shown | ({"descriptors": personal["visual"].unsqueeze(-2)} if self.conditional else {})


@dataclass(frozen=True)
class FedTI(RELIC):
    """Federated textual inversion: average u, and nothing else."""

    name: ClassVar[str] = "fedti"

    conditional: bool = False
    align: NonNegative = 0.0


@dataclass(frozen=True)
class FedCPW(RELIC):
    """RELIC without prototypes: average u, keep what conditions it."""

    name: ClassVar[str] = "fedcpw"

    align: NonNegative = 0.0


@dataclass(frozen=True)
class FedProto(RELIC):
    """RELIC without the conditional word: average u, and align its prototypes (after Tan et al. AAAI 2022)."""

    name: ClassVar[str] = "fedproto"

    conditional: bool = False


@dataclass(frozen=True)
class TILocal(RELIC):
    """Textual inversion (Gal et al. ICLR 2023) on every client alone: nothing travels."""

    name: ClassVar[str] = "ti-local"

    conditional: bool = False
    align: NonNegative = 0.0
    shared: bool = False


@dataclass(frozen=True)
class TICentral(RELIC):
    """Textual inversion in one place, which holds the images: client 0's. With clients=1 there is no other client."""

    name: ClassVar[str] = "ti-central"

    conditional: bool = False
    align: NonNegative = 0.0

    def weight(self, facts: Tree) -> Tensor:
        """Return 1 for client 0 and nothing for others."""
        return (facts["client"] == 0).to(facts["size"])

    def aggregate(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        """Return client 0's word; in a round without it, the word stays."""
        return RELIC.aggregate(self, task, server, clients, up, weights) if (clients == 0).any() else server


def _mean_visual(task: Task, data: Data) -> Tensor:
    """Return the mean of F_v over a client's images [V]."""
    total, count = torch.zeros(()), torch.zeros(())
    for batch in data.batches("visual", size=64, ordered=True):
        visual = text_to_image(task).unpack(batch["x"])[1]
        total = total + (visual * batch["mask"].unsqueeze(-1)).sum(-2).cpu()
        count = count + batch["mask"].sum(-1).cpu()
    return total / count.clamp(min=1)


def _kept(tuned: Tree, personal: Tree) -> Tree:
    return {name: x for name, x in tuned.items() if name in personal}


def _there(prototypes: Tensor) -> Tensor:
    """Return where there is a prototype [..., T, 1]: the others are zero, which no state of a word is."""
    return (prototypes != 0).any(-1, keepdim=True)


def _mean(each: Tensor, batch: Batch) -> Tensor:
    """Return the mean over a batch's samples."""
    return (each * batch["mask"]).sum(-1) / batch["mask"].sum(-1).clamp(min=1)
