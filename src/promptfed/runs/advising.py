"""From a look at data to a proposal: which method, on which backbone, with which keys, and why.

The rules are plain: each function below is one decision and gives its reasons. Accuracies in reasons are our own, by
name in `runs.evidence`. Where we have measured nothing, the reason says so.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from promptfed.core.errors import PromptFedError
from promptfed.data.outline import DataFacts, describe
from promptfed.runs.evidence import EVIDENCE, SENT, Measured

DINO, CLIP = "facebook/dinov2-small", "openai/clip-vit-base-patch16"
TOKENS = 4  # of a prompt
ALONE = ("head-probe", "singleset-vpt")  # methods that send nothing
TEXT = "fedkgcoop"  # the method for classes that training never names
SIZES = (98, 112, 224)  # pixels at which our runs of DINOv2 were
FEW = 50  # training images per client: fewer call for small batches
MANY = 1000  # training images per client: enough for a prompt and a head of its own, or to train a whole network
EACH = 10  # training images that a client should have, where the number of clients is open
MOST = 20  # clients, where the number is open
ALIKE = 0.1  # label skew below which sites have the classes in similar proportions
UNEQUAL = 5  # so many times as many images of one class as of another call for balanced accuracy
FEW_TESTS = 20  # test images of a client: one more or less right moves its accuracy by five points or more
Keys = Mapping[str, object]


@dataclass(frozen=True)
class Wishes:
    """What data cannot say: the answers to the other questions of docs/which-method.md."""

    clients: int = 0  # 0: as many as there are sites
    newcomers: int = 0  # of the clients, those that join after training
    new_classes: bool = False  # classes that training never names must be recognised
    whole_models: bool = False  # whole models may travel, not just prompts and heads
    private: bool = False  # the server must not see what a single client sends
    download: bool = True  # weights may come from the model hub


@dataclass(frozen=True)
class Decision:
    """One decision: the recipe keys it sets, and why, in sentences; what our numbers say names them."""

    keys: Keys
    why: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()  # names in EVIDENCE


@dataclass(frozen=True)
class Advice:
    """A proposal: what was seen, what we would run, what to hold it against, and what to know."""

    seen: tuple[str, ...]
    method: Decision
    backbone: Decision
    recipe: Decision
    known: tuple[str, ...]
    run: str
    against: tuple[str, ...]

    @property
    def evidence(self) -> dict[str, Measured]:
        """Return our own numbers behind the reasons."""
        parts = (self.method, self.backbone, self.recipe)
        return {name: EVIDENCE[name] for part in parts for name in part.evidence}


def advise(facts: DataFacts, wishes: Wishes, options: tuple[str, ...] = ()) -> Advice:
    """Return what we would run on such data; `options` are recipe keys of the data set, as they were given."""
    clients = choose_clients(facts, wishes)
    count = int(str(clients.keys["clients"]))
    method = choose_method(facts, wishes, count)
    name = str(method.keys["method.name"])
    backbone = choose_backbone(facts, wishes, name)
    training = choose_training(facts, name, count)
    reading = choose_reading(facts, wishes, name, count)
    recipe = Decision(
        {**clients.keys, **training.keys, **reading.keys},
        clients.why + training.why + reading.why,
        training.evidence + reading.evidence,
    )
    given = dict(option.split("=", 1) for option in options)
    keys = {"data.name": facts.name, **backbone.keys, **recipe.keys, **given}  # what is given is meant
    against = _rivals(keys, facts, wishes, name, count)
    run = command(name, {**keys, **method.keys})
    return Advice(describe(facts), method, backbone, recipe, cautions(facts, name), run, tuple(against))


# -- the decisions --------------------------------------------------------------------------------------------------


def choose_clients(facts: DataFacts, wishes: Wishes) -> Decision:
    """Decide how many clients there are, and who holds which images."""
    sites, wanted = len(facts.sites), wishes.clients
    if sites > 1 and wanted in (0, sites):
        keys, why = {"partition.name": "domain", "clients": sites}, f"Each of the {sites} sites is a client."
    elif sites > 1:
        if wanted % sites:
            raise PromptFedError(
                f"{facts.name} has {sites} sites, which {wanted} clients cannot share equally; give --clients a "
                f"multiple of {sites}, or leave it out."
            )
        keys = {"partition.name": "domain-dirichlet", "clients": wanted}
        why = f"Each of the {sites} sites is divided among {wanted // sites} clients, by Dir(0.5) of its classes."
    else:
        count = wanted or max(1, min(MOST, sum(facts.training) // EACH))
        if count == 1:
            return _with_newcomers({"partition.name": "iid", "clients": 1}, "There is one client.", wishes)
        keys = {"partition.name": "dirichlet", "clients": count}
        why = (
            f"The data do not say which site an image is from, so they are dealt to {count} clients, with shares of "
            "every class drawn from Dir(0.3). That only stands in for your sites; say --clients for their number."
        )
    return _with_newcomers(keys, why, wishes)


def _with_newcomers(keys: dict[str, object], why: str, wishes: Wishes) -> Decision:
    clients, last = int(str(keys["clients"])), wishes.newcomers
    if last >= clients:
        raise PromptFedError(f"--newcomers {last} leaves none of {clients} clients to start with.")
    if not last:
        return Decision(keys, (why,))
    join = f"The last {last} of them join after training." if last > 1 else "The last of them joins after training."
    return Decision(keys | {"newcomers": last}, (why, join))


def choose_method(facts: DataFacts, wishes: Wishes, clients: int) -> Decision:
    """Decide what is learned and what travels."""
    if wishes.new_classes:
        return _text_prompt()
    if clients == 1:
        return Decision({"method.name": "head-probe"}, ("There is one client, so there is nobody to learn with.",))
    if len(facts.sites) > 1 and facts.shared == 0:
        return _own_heads()
    if _each(facts, clients) >= MANY:
        return _own_prompts(wishes)
    return _shared_head(facts, wishes, clients)


def _text_prompt() -> Decision:
    said = EVIDENCE
    return Decision(
        {"method.name": TEXT},
        (
            "Only a model that knows classes by their names can recognise classes that training never named: FedKgCoOp "
            "learns the words before the names, the same for every class, and holds them near to a fixed sentence.",
            f"On classes that training never named it had {said['novel/fedkgcoop']} on the embedded images, as the "
            f"encoder had untrained ({said['novel/zero-shot']}), where PromptFL fell to {said['novel/promptfl']} and "
            f"PromptFolio to {said['novel/promptfolio']}. On CLIP itself we have no numbers; field/s3-novel is its "
            "recipe.",
        ),
        tuple(f"novel/{row}" for row in ("fedkgcoop", "zero-shot", "promptfl", "promptfolio")),
    )


def _own_heads() -> Decision:
    said = EVIDENCE
    return Decision(
        {"method.name": "head-probe"},
        (
            "No two sites hold the same class, so a shared head has nothing in common to learn: give every site a head "
            "of its own on a frozen backbone, and send nothing.",
            f"With every class at one client only, own heads reached {said['cifar10/alone']} on CIFAR-10, FedVPT "
            f"{said['cifar10/fedvpt']} and pFedPG with Adam {said['cifar10/pfedpg']}; on CIFAR-100 "
            f"{said['cifar100/alone']}, {said['cifar100/fedvpt']} and {said['cifar100/pfedpg']}. That is one seed.",
        ),
        tuple(f"{data}/{row}" for data in ("cifar10", "cifar100") for row in ("alone", "fedvpt", "pfedpg")),
    )


_WHOLE_SAID = ("shops/whole", "shops/head")
_WHOLE = (
    "Only where the backbone did not know the images was training all of it far ahead of a head: "
    f"{EVIDENCE['shops/whole']} to {EVIDENCE['shops/head']} with 1,500 photographs a site."
)


def _own_prompts(wishes: Wishes) -> Decision:
    said = EVIDENCE
    why = [
        f"A client has {MANY:,} training images or more, enough to tune a prompt and a head of its own on a frozen "
        "backbone.",
        f"On Dermoscopic-FL, where it is so too, pFedPG's prompts reached {said['dermoscopic/pfedpg']}, with four "
        f"tokens and Adam on the server; prompts learned alone {said['dermoscopic/prompt']}, heads alone "
        f"{said['dermoscopic/alone']}, FedAvg of whole models {said['dermoscopic/fedavg']}, a shared head "
        f"{said['dermoscopic/head']}. Those are three sites.",
    ]
    names = tuple(f"dermoscopic/{row}" for row in ("pfedpg", "prompt", "alone", "fedavg", "head"))
    if wishes.whole_models:
        why.append(_WHOLE)
        names += _WHOLE_SAID
    if wishes.private:
        why.append("pFedPG's server needs every client's answer, so here nothing is sent, and each prompt stays alone.")
        return Decision({"method.name": "singleset-vpt", "method.tokens": TOKENS}, tuple(why), names)
    if wishes.newcomers:
        why.append("A site that joins gets a prompt made for it; nobody else's changes.")
    return Decision({"method.name": "pfedpg", "method.preset": "tuned", "method.tokens": TOKENS}, tuple(why), names)


def _shared_head(facts: DataFacts, wishes: Wishes, clients: int) -> Decision:
    said = EVIDENCE
    alike = clients == len(facts.sites) and facts.skew < ALIKE
    setting = "office" if alike else "people"
    what = (
        "The clients hold the same classes in similar proportions, as those of Office-Caltech10 do. There"
        if alike
        else "The clients hold classes in unlike proportions, as the twenty people of our comparison do, with twenty "
        "photographs each. There"
    )
    why = [
        "Average a small head on a frozen backbone, and let every site keep its own class shares: pFedVPT without "
        "prompt tokens.",
        f"{what} that reached {said[f'{setting}/shares']}; everyone alone {said[f'{setting}/alone']}, FedAvg of whole "
        f"models {said[f'{setting}/fedavg']}, a shared head without class shares {said[f'{setting}/head']}.",
        f"Prompt tokens added nothing to it there: {said[f'{setting}/prompt']}.",
    ]
    names = [f"{setting}/{row}" for row in ("shares", "alone", "fedavg", "head", "prompt")]
    if wishes.newcomers:
        why.append(
            "A site that joins takes the head as it is and counts its own classes. Two newcomers to eighteen clients "
            f"reached {said['joining/shares']} so, and {said['joining/alone']} with heads of their own."
        )
        names += ["joining/shares", "joining/alone"]
    if wishes.whole_models:
        why.append(
            "Whole models may travel, but among twenty people with twenty photographs each FedAvg sent "
            f"{SENT['people/fedavg']:,} numbers a round and reached {said['people/fedavg']}, the head "
            f"{SENT['people/shares']:,} and {said['people/shares']}. {_WHOLE}"
        )
        names += ["people/fedavg", "people/shares", *_WHOLE_SAID]
    return Decision({"method.name": "pfedvpt", "method.tokens": 0}, tuple(why), tuple(dict.fromkeys(names)))


def choose_backbone(facts: DataFacts, wishes: Wishes, method: str) -> Decision:
    """Decide which frozen network the images go through, and at how many pixels."""
    own = facts.name == "fashion-shops"
    if method == TEXT and not own and not wishes.download:
        raise PromptFedError(
            "New classes need a CLIP that knows their names, and the package's own knows words for clothes only; "
            "leave out --no-download."
        )
    if own or not wishes.download:
        name = "clip" if method == TEXT else "vit"
        enough = "The package's own network is enough for the package's own images."
        return Decision({"backbone.name": name}, (enough if own else _SMALL,))
    if method == TEXT:
        return Decision(
            {"backbone.name": "clip", "backbone.weights": CLIP, "backbone.size": 224}
            | ({"data.size": 224} if facts.resizes else {}),
            ("CLIP ViT-B/16 is what papers on text prompts use; we have no numbers with it.",),
        )
    size = next((one for one in SIZES if one >= facts.side), SIZES[-1])
    keys = {"backbone.name": "vit", "backbone.weights": DINO, "backbone.size": size}
    why = (
        f"DINOv2 ViT-S/14 at {size} pixels, whose features are computed once. At 224 pixels a head of one's own on it "
        f"reached {EVIDENCE['office/alone']} on Office-Caltech10, with 62 photographs a site.",
        "Its weights are downloaded once from the Hugging Face hub; without a network, say --no-download.",
    )
    return Decision(keys | ({"data.size": size} if facts.resizes else {}), why, ("office/alone",))


_SMALL = (
    "Without a download there is the package's own network, which has seen photographs of clothes at 32 pixels only; "
    "on other images expect little of it."
)


def choose_training(facts: DataFacts, method: str, clients: int) -> Decision:
    """Decide how many rounds, epochs and images a batch there are, and the rate."""
    if method == TEXT:
        keys: Keys = {"rounds": 50, "method.epochs": 1, "method.batch": 32, "method.lr": 0.002}
        return Decision(keys, ("50 rounds of one epoch are the protocol of our benchmark (field/s3-novel).",))
    if _each(facts, clients) >= MANY:
        keys = {"rounds": 10, "schedule.name": "cosine", "method.epochs": 1, "method.batch": 64, "method.lr": 0.003}
        return Decision(keys, ("10 rounds of one epoch at a rate that falls from 0.003 suited Dermoscopic-FL.",))
    few = _each(facts, clients) < FEW
    alone = method == "head-probe"
    rate = 0.01 if alone and not few else 0.1
    source = f"{'people' if few else 'office'}/{'alone' if alone else 'rate'}"
    epochs, batch = (1, 10) if few else (5, 64)
    found = EVIDENCE[source]
    why = (
        f"A client has about {_each(facts, clients):,} training images. With so {'few' if few else 'many'} we ran "
        f"20 rounds of {'one epoch' if few else 'five epochs'} with batches of {batch}; "
        f"{'heads of their own' if alone else 'a shared head with class shares'} reached {found} at a rate of {rate}.",
    )
    keys = {"rounds": 20, "method.epochs": epochs, "method.batch": batch, "method.lr": rate}
    return Decision(keys, why, (source,))


def choose_reading(facts: DataFacts, wishes: Wishes, method: str, clients: int) -> Decision:
    """Decide what is measured, what is skipped, and what the server may see."""
    keys: dict[str, object] = {}
    why = []
    if facts.unequal >= UNEQUAL:
        keys["evaluate.metric"] = "balanced_accuracy"
        why.append(
            f"The largest class has {facts.unequal:.0f} times the images of the smallest: judge by balanced accuracy, "
            "in which every class counts once."
        )
    if facts.broken:
        keys["data.skip_corrupt"] = True
        many = f"{facts.broken:,} files" if facts.broken > 1 else "One file"
        why.append(f"{many} cannot be read; data.skip_corrupt=true leaves {'them' if facts.broken > 1 else 'it'} out.")
    if wishes.private and method in ALONE:
        why.append("Nothing is sent, so there is nothing to protect on the way.")
    elif wishes.private and min(clients - wishes.newcomers, wishes.newcomers or clients) < 2:
        why.append("Secure aggregation hides a client among others, and in some rounds there would be only one.")
    elif wishes.private:
        keys["guards.secure"] = True
        why.append(
            "With secure aggregation the server sees the mean alone, and accuracy stays as it is; it needs "
            'pip install "promptfed[secure]". Noise promises more (guards.noise) and costs accuracy: with twenty '
            f"clients and ε = 8 a shared head with class shares fell from {EVIDENCE['hidden/none']} to "
            f"{EVIDENCE['hidden/shares']}, below heads of their own with {EVIDENCE['hidden/alone']}."
        )
        return Decision(keys, tuple(why), ("hidden/none", "hidden/shares", "hidden/alone"))
    return Decision(keys, tuple(why))


# -- what is said besides -------------------------------------------------------------------------------------------


def cautions(facts: DataFacts, method: str) -> tuple[str, ...]:
    """Return what to know before believing the result."""
    found = [
        f"{site} has no training images, so it cannot be a client; leave its images out."
        for site, count in zip(facts.sites, facts.training, strict=True)
        if not count
    ]
    fewest = min(facts.testing)
    if len(facts.sites) > 1 and fewest < FEW_TESTS:
        where = facts.sites[facts.testing.index(fewest)]
        count = f"{fewest} test image{'s' if fewest != 1 else ''}" if fewest else "no test images"
        found.append(f"{where} has {count}, so its own accuracy says little; run several seeds: seed=[0,1,2].")
    if method == "pfedvpt":
        found.append(
            "Class shares expect images in the proportions of training; if they will come in others, set "
            "method.prior=false."
        )
    found.append("The rate is a start: promptfed tune, or --tune of a table, tries others on validation images.")
    return tuple(found)


# -- commands -------------------------------------------------------------------------------------------------------


def command(method: str, keys: Keys) -> str:
    """Return the command line of a run."""
    words = [f"{key}={_value(value)}" for key, value in sorted(keys.items(), key=_order) if key != "method.name"]
    return shlex.join(["promptfed", "run", method, *words])


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _order(entry: tuple[str, object]) -> int:
    """Put the data first, then who holds them, the backbone, and the method."""
    tables = ("data", "partition", "clients", "newcomers", "backbone", "rounds", "method")
    head = entry[0].partition(".")[0]
    return tables.index(head) if head in tables else len(tables)


def _rivals(keys: Keys, facts: DataFacts, wishes: Wishes, method: str, clients: int) -> list[str]:
    """Return what the proposal should be compared with, on the same images and clients."""
    if method == "head-probe":
        return []
    plain = {key: value for key, value in keys.items() if not key.startswith(("guards.", "method.", "schedule."))}
    if method == TEXT:
        # a site with more classes than the novel half has must have one of the base half
        rehearsed = min(facts.held) > facts.classes // 2
        rehearsal = {**keys, "data.half": "base", "evaluate.sets": "base+novel"}
        zero_shot = command("clip-zs", {**plain, "rounds": 1})
        return [zero_shot, command(TEXT, rehearsal)] if rehearsed else [zero_shot]
    found = [command("head-probe", {**plain, **choose_training(facts, "head-probe", clients).keys})]
    if wishes.whole_models and _each(facts, clients) >= MANY:
        tower: dict[str, object] = {"backbone.name": "clip", "rounds": 50, "method.batch": 32, "method.lr": 0.001}
        if "backbone.weights" in keys:
            tower |= {"backbone.weights": CLIP, "backbone.size": 224}
        found.append(command("vit-full", {**plain, **tower}))
    return found


def _each(facts: DataFacts, clients: int) -> int:
    """Return how many training images a client has, the median of the sites' or an equal part."""
    several = len(facts.sites) > 1 and clients == len(facts.sites)
    return round(median(facts.training)) if several else sum(facts.training) // clients
