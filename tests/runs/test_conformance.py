"""Every method keeps every promise, in every variant; a failure names the method and the promise."""

from pathlib import Path

import pytest

from promptfed.core.method import Method
from promptfed.methods.clip_fc import CLIPFC
from promptfed.methods.clip_zs import CLIPZS
from promptfed.methods.dp_fpl import DPFPL
from promptfed.methods.fed_cocoop import FedCoCoOp
from promptfed.methods.fed_lora import FedITLoRA, FedSALoRA, FFALoRA
from promptfed.methods.fedapt import FedAPT
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.fedbabu import FedBABU
from promptfed.methods.fedclip import FedCLIP
from promptfed.methods.fedkgcoop import FedKgCoOp
from promptfed.methods.fedmaple import FedMaPLe
from promptfed.methods.fedmgp import FedMGP
from promptfed.methods.fedmtl import FedMTL
from promptfed.methods.fedotp import FedOTP
from promptfed.methods.fedper import FedPer
from promptfed.methods.fedpgp import FedPGP
from promptfed.methods.fedpha import FedPHA
from promptfed.methods.fedprox import FedProx
from promptfed.methods.fedrep import FedRep
from promptfed.methods.fedrod import FedRoD
from promptfed.methods.fedtpg import FedTPG
from promptfed.methods.fedvpt import FedVPT
from promptfed.methods.fedvpt_d import FedVPTDeep
from promptfed.methods.flora import FedExLoRA, FLoRA
from promptfed.methods.head_probe import HeadProbe
from promptfed.methods.local_only import Local
from promptfed.methods.moon import Moon
from promptfed.methods.per_fedavg import PerFedAvg
from promptfed.methods.pfedmma import PFedMMA
from promptfed.methods.pfedmoap import PFedMoAP
from promptfed.methods.pfedpg import PFedPG
from promptfed.methods.pfedpt import PFedPT
from promptfed.methods.pfedvpt import PFedVPT
from promptfed.methods.promptfl import PromptFL
from promptfed.methods.promptfolio import PromptFolio
from promptfed.methods.relic import RELIC, FedCPW, FedProto, FedTI, TICentral, TILocal
from promptfed.methods.resnet_full import ResNetFull
from promptfed.methods.resnet_tuning import ResNetTuning
from promptfed.methods.sgpt import SGPT
from promptfed.methods.singleset_full import SingleSetFull
from promptfed.methods.singleset_vpt import SingleSetVPT
from promptfed.methods.trip import TRIP
from promptfed.methods.vit_full import ViTFull
from promptfed.methods.vit_tuning import ViTTuning
from promptfed.runs.checks import PROMISES, check_method, toy_loop
from promptfed.runs.registry import methods
from support.ranked import Case, differences

# fewer epochs than the defaults: the promises are the same, the suite is faster
VARIANTS: dict[str, Method] = {
    "fedavg": FedAvg(lr=0.05, epochs=1, batch=8),
    "fedavg with momentum and decay": FedAvg(lr=0.02, epochs=2, batch=8, momentum=0.9, weight_decay=0.01),
    "fedavg without short batches": FedAvg(lr=0.05, epochs=1, batch=8, drop_last=True),
    "fedavg with clipped gradients": FedAvg(lr=0.05, epochs=1, batch=8, clip=0.5),
    "local": Local(lr=0.05, epochs=1, batch=8),
    "local with momentum and decay": Local(lr=0.02, epochs=2, batch=8, momentum=0.9, weight_decay=0.01),
    "pfedpt": PFedPT(lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    "pfedpt frame": PFedPT(prompt="frame", size=1, lr=0.05, epochs=1, prompt_epochs=2, batch=16),
    "pfedpt patch": PFedPT(prompt="patch", size=3, lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    "pfedpt random patch": PFedPT(prompt="random-patch", size=3, lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    "pfedpt tokens": PFedPT(prompt="tokens", size=2, lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    "pfedpt joint": PFedPT(joint=True, lr=0.05, epochs=2, batch=8),
    "pfedpt without momentum": PFedPT(prompt_momentum=0.0, lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    "pfedpt without short batches": PFedPT(drop_last=True, lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    "fedavg with fine-tuning": FedAvg(lr=0.05, epochs=1, batch=8, tune_epochs=1),
    "fedprox": FedProx(lr=0.05, epochs=1, batch=8, mu=0.1),
    "moon": Moon(lr=0.05, epochs=1, batch=8),
    "fedper": FedPer(lr=0.05, epochs=1, batch=8),
    "fedmtl": FedMTL(lr=0.05, epochs=1, batch=8),
    "fedmtl as in PFLlib": FedMTL(compat="pfllib", lr=0.05, epochs=1, batch=8),
    "fedvpt": FedVPT(tokens=2, lr=0.05, epochs=1, batch=8),
    "fedvpt-d": FedVPTDeep(tokens=2, lr=0.05, epochs=1, batch=8),
    "singleset-vpt": SingleSetVPT(tokens=2, lr=0.05, epochs=1, batch=8),
    "singleset-full": SingleSetFull(epochs=1, batch=8),
    "head-probe": HeadProbe(lr=0.05, epochs=1, batch=8),
    "per-fedavg": PerFedAvg(epochs=2, batch=4, lr=0.02, alpha=0.02),
    "per-fedavg of second order": PerFedAvg(order="second", epochs=2, batch=4, lr=0.02, alpha=0.02),
    "fedrep": FedRep(epochs=1, head_epochs=1, batch=8),
    "fedrod": FedRoD(epochs=1, batch=8),
    "fedbabu": FedBABU(epochs=1, batch=8),
    "fedbabu tuning all": FedBABU(epochs=1, batch=8, tune="all", tune_epochs=1),
    "pfedvpt": PFedVPT(tokens=2, batch=8, lr=0.05),
    "pfedvpt own": PFedVPT(prompt="own", tokens=2, batch=8, lr=0.05),
    "pfedvpt without a prompt": PFedVPT(tokens=0, batch=8, lr=0.05),
    "pfedvpt without class shares": PFedVPT(prompt="own", prior=False, tokens=2, batch=8, lr=0.05),
    "pfedvpt low-rank": PFedVPT(prompt="low-rank", tokens=2, batch=8, lr=0.05),
    "pfedvpt generated": PFedVPT(prompt="generated", tokens=2, batch=8, lr=0.05),
    "pfedvpt both": PFedVPT(prompt="both", tokens=2, batch=8, lr=0.05),
    "pfedpg": PFedPG(tokens=2, epochs=1, batch=8, lr=0.05),
    "pfedpg mlp": PFedPG(generator="mlp", tokens=2, epochs=1, batch=8, lr=0.05),
    "pfedpg adain": PFedPG(generator="adain", tokens=2, epochs=1, batch=8, lr=0.05),
    "pfedpg without a generator": PFedPG(generator="none", tokens=2, epochs=1, batch=8, lr=0.05),
    "pfedpg by Adam": PFedPG(optimiser="adam", tokens=2, epochs=1, batch=8, lr=0.05),
    "pfedpg with a descriptor per token": PFedPG(descriptor_tokens="each", tokens=2, epochs=1, batch=8, lr=0.05),
    "fedapt": FedAPT(domains=2, tokens=2, batch=8),
    "fedapt with exact inference": FedAPT(inference="exact", domains=2, tokens=2, batch=8),
    "fedapt with soft keys": FedAPT(keys="orthogonal", tau=1.0, renorm=True, domains=2, tokens=2, batch=8),
    "fedapt without labels": FedAPT(mode="unsupervised", stage1=1, threshold=0.0, domains=2, tokens=2, batch=8),
    "promptfl": PromptFL(tokens=2, batch=8),
    "promptfl with one context": PromptFL(csc=False, tokens=2, batch=8),
    "promptfl without labels": PromptFL(mode="unsupervised", csc=False, stage1=1, threshold=0.0, tokens=2, batch=8),
    "promptfolio": PromptFolio(tokens=2, lr=0.02, batch=8),
    "promptfolio with unit texts": PromptFolio(theta=0.6, renorm=True, tokens=2, lr=0.02, batch=8),
    "fedkgcoop": FedKgCoOp(guide=0.1, tokens=2, lr=0.02, batch=8),
    "fedkgcoop of FedTPG": FedKgCoOp(guide=0.1, over="own", count="clients", tokens=2, lr=0.02, batch=8),
    "fedpgp": FedPGP(tokens=2, rank=2, lr=0.02, epochs=1, batch=8),
    "dp-fpl": DPFPL(tokens=3, rank=2, noise=0.1, steps=2, lr=0.05, batch=8),
    "dp-fpl with clipped batches": DPFPL(clipping="batch", tokens=3, rank=2, noise=0.01, lr=0.05, batch=8),
    "sgpt": SGPT(shared=1, grouped=1, lr=0.05, epochs=1, batch=8),
    "sgpt with a vote": SGPT(vote=True, query=1, shared=1, grouped=1, groups=3, lr=0.05, epochs=1, batch=8),
    "sgpt without groups": SGPT(shared=2, grouped=0, lr=0.05, epochs=1, batch=8),
    "fedtpg": FedTPG(tokens=2, lr=0.02, batch=8),
    "fedtpg naming all classes": FedTPG(over="all", count="images", tokens=2, lr=0.02, batch=8),
    "fedotp": FedOTP(tokens=2, lr=0.02, batch=8),
    "fedotp with balanced transport": FedOTP(transport="balanced", tokens=2, lr=0.02, batch=8),
    "trip": TRIP(experts=2, tokens=2, lr=0.01, batch=8),
    "trip of mixed logits by SGD": TRIP(mix="logits", optimiser="sgd", span=0, tokens=2, lr=0.05, batch=8),
    "fedmaple": FedMaPLe(lr=0.02, batch=8),
    "fedmaple without maps": FedMaPLe(coupled=False, tokens=5, lr=0.02, batch=8),
    "fedmgp": FedMGP(lr=0.02, epochs=1, batch=8),
    "fedmgp of texts as released": FedMGP(diversity="released", groups=3, visual=0, tokens=5, lr=0.02, batch=8),
    "fedpha": FedPHA(tokens=2, shortest=2, longest=2, lr=0.02, batch=8),
    "fedpha with contexts of different lengths": FedPHA(space="null", shortest=1, longest=5, lr=0.02, batch=8),
    "pfedmoap": PFedMoAP(tokens=2, lr=0.02, epochs=1, batch=8),
    "pfedmoap with experts at random": PFedMoAP(select="random", experts=2, tokens=2, lr=0.02, epochs=1, batch=8),
    "pfedmoap without experts": PFedMoAP(experts=1, tokens=2, lr=0.02, epochs=1, batch=8),
    "fedit-lora": FedITLoRA(lr=0.01, batch=8),
    "fedit-lora with a head": FedITLoRA(head="shared", parts="all", last=1, lr=0.01, batch=8),
    "ffa-lora": FFALoRA(lr=0.01, batch=8),
    "ffa-lora of texts by SGD": FFALoRA(towers="text", optimiser="sgd", momentum=0.9, lr=0.1, batch=8),
    "fedsa-lora": FedSALoRA(lr=0.01, batch=8),
    "fedsa-lora of B with a head of one's own": FedSALoRA(share="b", head="own", parts="attention", lr=0.01, batch=8),
    "flora": FLoRA(lr=0.01, batch=8),
    "fedex-lora": FedExLoRA(lr=0.01, batch=8),
    "pfedmma": PFedMMA(width=4, lr=0.0005, scale=0.1, batch=8),
    "pfedmma of texts": PFedMMA(towers="text", share="all", width=4, lr=0.001, scale=0.1, batch=8),
    "pfedmma of images alone": PFedMMA(towers="image", share="none", width=4, lr=0.001, scale=0.1, batch=8),
    "fedclip": FedCLIP(lr=0.01, batch=8),
    "fedclip of FedAPT": FedCLIP(adapter="sigmoid", optimiser="sgd", lr=0.05, weight_decay=1e-5, batch=8),
    "fedclip in the batch": FedCLIP(against="batch", lr=0.01, batch=8),
    "fedclip without labels": FedCLIP(mode="unsupervised", stage1=1, threshold=0.0, lr=0.01, batch=8),
    "clip-fc": CLIPFC(batch=8),
    "clip-zs": CLIPZS(),
    "fed-cocoop": FedCoCoOp(tokens=2, lr=0.02, batch=8),
    "vit-full": ViTFull(batch=8),
    "vit-full by Adam": ViTFull(optimiser="adam", lr=1e-3, batch=8),
    "vit-tuning": ViTTuning(batch=8),
    "resnet-full": ResNetFull(batch=8),
    "resnet-tuning": ResNetTuning(lr=0.5, batch=8),
    "relic": RELIC(lr=0.05, epochs=1, repeats=1, batch=8),
    "relic as printed": RELIC(
        form="printed", relu=False, distance="norm", weighting="uniform", lr=0.05, epochs=1, repeats=1, batch=8
    ),
    "relic with two vectors": RELIC(vectors=2, first=4, mirror=False, lr=0.05, epochs=1, repeats=1, batch=8),
    "fedti": FedTI(lr=0.05, epochs=1, repeats=1, batch=8),
    "fedcpw": FedCPW(lr=0.05, epochs=1, repeats=1, batch=8),
    "fedproto": FedProto(lr=0.05, epochs=1, repeats=1, batch=8),
    "ti-local": TILocal(lr=0.05, epochs=1, repeats=1, batch=8),
    "ti-central": TICentral(lr=0.05, epochs=1, repeats=1, batch=8),
}
# a network with random weights has no answers worth learning from
EXCUSED = {(f"{name} without labels", "learns") for name in ("fedapt", "promptfl", "fedclip")}
CASES = [(variant, promise) for variant in VARIANTS for promise in PROMISES if (variant, promise) not in EXCUSED]


def test_no_method_is_left_out() -> None:
    own = {kind for kind in methods().values() if kind.__module__.startswith("promptfed.")}
    assert {type(method) for method in VARIANTS.values()} == own


@pytest.mark.parametrize(("variant", "promise"), CASES)
def test_promise(variant: str, promise: str) -> None:
    check_method(VARIANTS[variant], only=promise)


# -- where several processes share a run ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_give_the_very_numbers_of_one(size: int, tmp_path: Path) -> None:
    cases: dict[str, Case] = {name: (toy_loop, method, {}) for name, method in VARIANTS.items()}
    assert {name: what for name, what in differences(size, cases, tmp_path).items() if what} == {}


@pytest.mark.slow
def test_so_they_do_with_stacks_that_stay_together(tmp_path: Path) -> None:
    more = {"fleet": "stacked", "width": 2, "per_round": 0}
    cases: dict[str, Case] = {name: (toy_loop, method, more) for name, method in VARIANTS.items()}
    # the stacks in which clients are tested are others, so the last digits of a loss may differ
    assert {name: what for name, what in differences(2, cases, tmp_path, exact=False).items() if what} == {}
