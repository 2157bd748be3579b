"""What a curious server learns of its clients from what they send, measured on a finished run.

The server follows the protocol and knows the method, the backbone, what it sent, and each client's answer as it leaves
the client. From an uploaded word it draws pictures and compares them with everyone's images; from an uploaded model it
infers which classes the client holds. Either way it may then guess whose answer it is. What clients send is not kept
in a run folder: one more round from the final state, which is then forgotten, sends it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from promptfed.analysis.generate import Sampler, draw_all
from promptfed.analysis.picture_features import Features, find_features
from promptfed.analysis.quality import caution, fid, real_pictures, uploads
from promptfed.core import keys, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.extensions import LearnsWord
from promptfed.core.files import write_sealed
from promptfed.core.tree import Tree
from promptfed.data.batches import ClientData
from promptfed.data.dataset import Indices
from promptfed.results.folder import names
from promptfed.results.folder.record import Line
from promptfed.runs.finished import FinishedRun

BATCH = 256
PER_CLASS = 20  # public images of each class that an uploaded model is tried on, at most


@dataclass(frozen=True)
class Attack:
    """What the server tries: on how many clients, and with which pictures and features where a word is sent."""

    sampler: Sampler
    features: str = "clip"
    clients: int = 16  # the first so many


def audit(run: FinishedRun, attack: Attack) -> Line:
    """Attack what the clients of a finished run send, write audit.json into its folder and return what is in it."""
    clients = list(range(min(attack.clients, len(run.loop.shards))))
    if run.plan.recipe.guards.get("secure"):
        found: Line = {"kind": "nothing", "why": "secure aggregation shows the server the mean alone"}
    elif not (up := uploads(run, clients)):
        found = {"kind": "nothing", "why": "clients of this method send nothing"}
    else:
        seen = {"sent": {name: list(value.shape[1:]) for name, value in up.items()}}
        attacked = _pictures(run, up, clients, attack) if _is_word(run, up) else _classes(run, up, clients)
        found = seen | attacked
    found = {"method": run.plan.recipe.method["name"], "round": run.loop.finished, "clients": clients} | found
    write_sealed(run.folder / names.AUDIT, found)
    return found


def _is_word(run: FinishedRun, up: Tree) -> bool:
    return isinstance(run.loop.method, LearnsWord) and "word" in up


def matched(scores: Tensor) -> float:
    """Return how often the own client of an answer scores highest, [answers, clients] with the own on the diagonal.

    Of several that score the same one is guessed. What all answers score with a client is taken off first: a client
    with many images is near to everything.
    """
    scores = scores - scores.mean(0)
    best = scores.amax(1, keepdim=True)
    tied = scores >= best - 1e-9
    return float((tied.diagonal().double() / tied.sum(1)).mean())


# -- from an uploaded word to pictures --------------------------------------------------------------------------------


def _pictures(run: FinishedRun, up: Tree, clients: Sequence[int], attack: Attack) -> Line:
    """Draw every client's uploaded word, without what it keeps to itself, and look for its images in that."""
    features = find_features(attack.features, run.plan.dataset.classes, run.loop.device)
    words = {str(client): up["word"][number] for number, client in enumerate(clients)}
    drawn = draw_all(run, words, attack.sampler)
    side = next(iter(drawn.values())).shape[-1]
    made = [features(pictures) for pictures in drawn.values()]
    held = [_held(run, features, client, side) for client in clients]
    near = torch.stack([torch.stack([nearest(own, images) for images in held]) for own in made])
    own, fids = near.diagonal(), [fid(images, drawing) for images, drawing in zip(held, made, strict=True)]
    others = (near.sum(1) - own) / max(1, len(clients) - 1)
    return {
        "kind": "pictures",
        "features": features.name,
        "per_client": [
            {
                "nearest": float(own[n]),
                "nearest_others": float(others[n]) if len(clients) > 1 else None,
                "fid": fids[n],
                "images": len(held[n]),
                "caution": caution(len(held[n]), len(made[n]), made[n].shape[1]),
            }
            for n in range(len(clients))
        ],
        "mean": {"nearest": float(own.mean()), "fid": float(np.mean(fids))},
        "reidentified": matched(near),
        "chance": 1 / len(clients),
    }


def _held(run: FinishedRun, features: Features, client: int, side: int) -> Tensor:
    return features(real_pictures(run, run.plan.partition.train[client], side))


def nearest(made: Tensor, held: Tensor) -> Tensor:
    """Return the mean over pictures' features [N, D] of the cosine with the most similar of some images' [M, D]."""
    return (F.normalize(made.double(), dim=-1) @ F.normalize(held.double(), dim=-1).mT).amax(1).mean()


# -- from an uploaded model to classes --------------------------------------------------------------------------------


def _classes(run: FinishedRun, up: Tree, clients: Sequence[int]) -> Line:
    """Try every client's uploaded model on public images, as many of each class, and count what it answers.

    What a client keeps to itself the server replaces by a start of its own, or by zeros. The one that comes nearer to
    the truth counts, which a server cannot know: the numbers are an upper bound. (Figure 11 of the pFedPT paper.)
    """
    loop, public = run.loop, balanced(run)
    data = _public_data(run, public)
    personal = tree.to(loop.method.init_client(loop.task, data, _any_rng), loop.device)
    truth = F.normalize(loop.shards.facts(clients)["counts"].double().cpu(), dim=-1)
    priors, alike = max(
        (_inferred(run, up, clients, stand_in, data, truth) for stand_in in _stand_ins(personal)),
        key=lambda attempt: float(attempt[1].diagonal().mean()),
    )
    blind = truth.sum(-1) / truth.shape[-1] ** 0.5  # the cosine of equal classes with what a client holds
    return {
        "kind": "classes",
        "public_images": len(public),
        "per_client": [
            {"cosine": float(alike[n, n]), "blind": float(blind[n]), "inferred": priors[n].tolist()}
            for n in range(len(clients))
        ],
        "mean": {"cosine": float(alike.diagonal().mean()), "blind": float(blind.mean())},
        "reidentified": matched(alike),
        "chance": 1 / len(clients),
    }


def _stand_ins(personal: Tree) -> list[Tree]:
    return [personal, tree.map(torch.zeros_like, personal)] if personal else [personal]


def _inferred(
    run: FinishedRun, up: Tree, clients: Sequence[int], personal: Tree, data: ClientData, truth: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the share of each class in the answers of every client's model, and its cosines with what all hold."""
    down = run.loop.method.download(run.task, run.loop.server, torch.tensor(clients))
    rows = [_rebuilt(run, tree.row(down, n), personal, tree.row(up, n)) for n in range(len(clients))]
    priors = torch.stack([_prior(run, model, data) for model in rows])
    return priors, F.normalize(priors, dim=-1) @ truth.mT


def _rebuilt(run: FinishedRun, down: Tree, personal: Tree, up: Tree) -> Tree:
    """Return the model that an answer makes: one that needs no client, if the method has it, else with a stand-in."""
    method, server = run.loop.method, run.loop.server
    alone = method.deploy(run.task, server | up) if up.keys() <= server.keys() else {}
    return alone or method.trained(run.task, down, personal, up)


def balanced(run: FinishedRun) -> Indices:
    """Return test images that any server might have, equally many of each class that has some."""
    data = run.plan.dataset
    rows = [np.flatnonzero(data.dealt & data.test & (data.labels == label)) for label in range(len(data.classes))]
    rows = [row for row in rows if len(row)]
    if not rows:
        raise PromptFedError(f'"{data.name}" has no test images to try an uploaded model on.')
    each = min(PER_CLASS, *(len(row) for row in rows))
    return np.concatenate([row[:each] for row in rows])


def _public_data(run: FinishedRun, public: Indices) -> ClientData:
    """Return the public images as if they were a client's, so that nothing is known of any client."""
    shards = run.loop.shards
    data = shards.data([0], run.finished, "test", stacked=False)
    counts = np.bincount(run.plan.dataset.labels[public], minlength=len(run.plan.dataset.classes))
    facts = {
        "client": torch.tensor(0),
        "size": torch.tensor(float(len(public))),
        "counts": torch.from_numpy(counts).float(),
        "domain": torch.tensor(0),
    }
    return replace(data, rows=(public,), facts=tree.to(facts, run.loop.device), capacity=len(public))


def _any_rng(purpose: str, shared: bool = False) -> torch.Generator:
    return keys.generator("audit", purpose)


def _prior(run: FinishedRun, model: Tree, data: ClientData) -> Tensor:
    """Return how often a rebuilt model answers each class [classes]."""
    loop = run.loop
    counts = torch.zeros(len(loop.task.classes), dtype=torch.double)
    data = data.without_dropout(loop.task.backbone)
    with torch.no_grad():
        params = loop.method.prepare(loop.task, model)
        for batch in data.batches("test", size=min(BATCH, len(data.rows[0])), ordered=True):
            answers = loop.method.predict(loop.task, params, tree.drop(batch, ["y"])).argmax(-1).cpu()
            counts += torch.bincount(answers[batch["mask"].cpu() > 0], minlength=len(counts))
    return counts / counts.sum()
