"""The coordinator's end of a run: the round loop over remote sites, in a run folder that outlives any crash.

Besides what every run folder holds there are sites.json: who takes part, with which classes, as they said at first; and
newcomers.json: the same of the sites that come after the last round, if the recipe has any.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_json
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.federation import guards
from promptfed.federation.guards import Guards
from promptfed.federation.guards.guard import Handed
from promptfed.federation.guards.secure import SecureSum
from promptfed.federation.loop import Loop, Settings, summarise
from promptfed.results.folder import names
from promptfed.results.folder.record import Line, Record
from promptfed.results.report import write_report
from promptfed.runs import config
from promptfed.runs.config import EvaluateOptions, Recipe
from promptfed.runs.planning import affordable, pick_device
from promptfed.runs.runner import environment
from promptfed.sites.client_run import ClientRun, blank_dataset, build_client_run, read_recipe
from promptfed.sites.exchange import Exchange
from promptfed.sites.messenger import RETRY_SECONDS, Events, Messenger, RunHeader
from promptfed.sites.pid_file import acquire
from promptfed.sites.remote import MOST, Expected, RemoteFleet
from promptfed.sites.settings import Federation
from promptfed.sites.wire import Message, Refused

LOCK_SECONDS = 30.0  # a job that was just ended may take so long to let go
Progress = Callable[[Line], None]


@dataclass(frozen=True)
class AnsweredGuards(Guards):
    """The guards on the server's side, which see the answers that came; those on a site's side stand there."""

    answered: Callable[[], Tensor] = lambda: torch.arange(0)
    secure: SecureSum | None = None  # answers came under masks: only their mean, as one row, is here

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Return (clients, up, weights) of those who answered, as the method is to see them."""
        answered = self.answered()
        return super().__call__(round, answered, tree.rows(down, torch.isin(clients, answered)), up, weights)

    def traffic(self, up: Tree, clients: int) -> tuple[int, int]:
        """Return the bytes (down, up) that come on top of `up`; under masks a site's numbers are longer."""
        if self.secure is None or not up:
            return 0, 0
        down, sent = self.secure.traffic(tree.floats(up), clients)
        return down * clients, sent * len(self.answered()) - tree.nbytes(up)

    def privacy(self, before: Iterable[Sequence[int]], clients: Sequence[int]) -> Line:
        """Return what those who answered have spent."""
        return super().privacy(before, self.answered().tolist())


class RemoteLoop(Loop):
    """The same rounds; what the server concludes comes from the sites that answered."""

    def __init__(
        self, run: ClientRun, remote: RemoteFleet, record: Record, settings: Settings, welcome: Callable[[], None]
    ) -> None:
        here = tuple(guard for guard in run.guards.guards if guard.side == "server" and guard is not remote.guard)
        guards = AnsweredGuards(here, run.guards.accountant, lambda: remote.answered, remote.guard)
        super().__init__(run.method, run.task, remote, run.shards, run.store, record, settings, guards)
        self.remote, self.welcome = remote, welcome

    def round(self, t: int) -> tuple[Tree, Line]:
        """Run round `t`; its line also says who was silent, refused or late, and which personal trees were made."""
        if t >= self.settings.rounds:
            self.welcome()
        server, line = super().round(t)
        events = self.remote.messenger.take_events()
        line["clients"] = self.remote.answered.tolist()
        line["traffic"]["up_floats"] = tree.floats(self.remote.expected.up)
        line["versions"] = {str(client): name for client, name in self.remote.versions.items()}
        line["sites"] = _describe(events)
        self.remote.versions = {}
        return server, line

    def closing(self) -> None:
        """Test every client's received model once more."""
        self._evaluate(self.server, self.settings.total, adapt=False)

    def _deployed_score(self, server: Tree) -> dict[str, float] | None:
        return None  # there is no test image here


def _describe(events: Events) -> Line:
    return {"silent": events.silent, "refused": events.refused, "late": events.late}


def create(folder: Path, recipe: Recipe, federation: Federation) -> None:
    """Begin a run folder."""
    if recipe.sampling != "uniform":
        raise PromptFedError(f"sampling={recipe.sampling} is not supported over sites; set sampling=uniform.")
    if recipe.guards.get("noise") and recipe.guards["entropy"] != "system":
        raise PromptFedError("Over sites noise must be a secret of theirs; set guards.entropy=system.")
    present = min(federation.needed, recipe.per_round or recipe.clients - recipe.newcomers)
    if recipe.guards.get("robust", "mean") != "mean":  # its rule must hold for as few as a round may have
        guards.check(recipe.guards, config.build_method(recipe), min(present, recipe.newcomers or present))
    founders = recipe.clients - recipe.newcomers
    drawn = recipe.per_round or founders
    affordable(recipe, guards.build(recipe.guards, config.build_method(recipe), recipe.seed, founders, drawn))
    Record.create(folder, config.dump(recipe), environment(pick_device("cpu")))
    known = {"sites": federation.sites, "newcomers": recipe.newcomers, "run": f"{folder.name}-{secrets.token_hex(4)}"}
    write_json(folder / names.FEDERATION, known)


class Busy(Exception):  # noqa: N818  (the run is well, it only needs nobody else)
    """Another process conducts the run."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the run folder; the process of a job that has just died holds it no longer."""
    ends = time.monotonic() + LOCK_SECONDS
    with (folder / names.LOCK).open("a+") as lock:
        while True:
            try:
                acquire(lock)
                break
            except BlockingIOError as error:
                if time.monotonic() > ends:
                    raise Busy(f"Another process is at work in {folder}.") from error
                time.sleep(0.1)
        yield


def conduct(folder: Path, federation: Federation, exchange: Exchange, progress: Progress) -> Line:
    """Run what is left of the run in `folder`; every finished round is saved before the next one begins."""
    with lock_folder(folder):
        record = Record.reopen(folder)
        text = (folder / names.RECIPE).read_text(encoding="utf-8")
        recipe = read_recipe(text, str(folder))
        known = json.loads((folder / names.FEDERATION).read_text(encoding="utf-8"))
        if tuple(known["sites"]) != federation.sites or recipe.clients != len(federation.sites):
            raise PromptFedError(f"{folder} is a run of {', '.join(known['sites'])}, not of this federation.")
        header = RunHeader(known["run"], text, federation.classes)
        founders = recipe.clients - recipe.newcomers
        sites = _introduced(folder / names.SITES, Messenger(exchange, federation, header), range(founders))
        header = RunHeader(known["run"], text, tuple(sites["classes"]))
        run = build_client_run(recipe, blank_dataset(tuple(sites["shape"]), header.classes), 0, "cpu", folder)
        loop = _loop(run, Messenger(exchange, federation, header), sites, record)
        digest = hashlib.sha256(json.dumps(sites, sort_keys=True).encode()).hexdigest()
        state = record.state(recipe.hash, digest)
        if state is None:
            record.rewind(0)
        else:
            loop.restore(state)

        def save() -> None:
            loop.save(recipe.hash, digest)

        def finished(line: Line) -> None:
            save()  # before any site is asked to build on this round
            progress(line)

        loop.run(save, finished)
        return _conclude(loop, recipe, digest)


def _loop(run: ClientRun, messenger: Messenger, sites: Line, record: Record) -> RemoteLoop:
    recipe = run.recipe
    evaluate = make(EvaluateOptions, recipe.evaluate, "evaluate")
    settings = Settings(
        seed=recipe.seed,
        rounds=run.rounds,
        per_round=recipe.per_round,
        newcomers=recipe.newcomers,
        join_rounds=recipe.join_rounds,
        every=evaluate.every,
        personal=True,
        after=evaluate.after,
        checkpoint_seconds=0.0,
        domain_names=run.dataset.domain_names,
    )

    def base(client: int) -> str:
        """Return the personal tree of the last round in which this client took part."""
        lines = (line["versions"] for line in reversed(record.rounds))
        return next((made[str(client)] for made in lines if str(client) in made), "")

    def welcome() -> None:
        """Ask the newcomers who they are, once."""
        known: list[float] = sites["weights"]
        if len(remote.expected.weights) == len(known):
            who = range(len(known), recipe.clients)
            came = _introduced(record.folder / names.NEWCOMERS, messenger, who, sites)
            remote.expected = replace(remote.expected, weights=(*known, *came["weights"]))

    remote = RemoteFleet(messenger, run, Expected({}, {}, ()), base, record.folder)
    loop = RemoteLoop(run, remote, record, settings, welcome)
    down = run.method.download(run.task, loop.server, torch.tensor([0]))
    remote.expected = Expected.of(run, down, sites["weights"])
    return loop


def _introduced(path: Path, messenger: Messenger, clients: range, others: Line | None = None) -> Line:
    """Return what sites say of themselves: asked before their first round, remembered ever after.

    They must agree with each other, and with `others` where some have come before them.
    """
    if path.exists():
        known: Line = json.loads(path.read_text(encoding="utf-8"))
        return known

    def check(site: str, answer: Message) -> None:
        classes, shape = answer.head.get("classes"), answer.head.get("shape")
        if not (isinstance(classes, list) and classes and all(isinstance(name, str) for name in classes)):
            raise Refused("it names no classes")
        if not (isinstance(shape, list) and len(shape) == 2 and all(type(side) is int for side in shape)):
            raise Refused("it does not say how large its images are")
        weight = answer.tree.get("weight")
        if weight is None or weight.ndim or weight.dtype != torch.float32 or not 0 < float(weight) < MOST:
            raise Refused("its weight is no positive number")

    names = messenger.federation.sites
    asked = {client: Message({"kind": "hello", "round": 0}, {}) for client in clients}
    answers, ends = dict[int, Message](), time.monotonic() + messenger.federation.patience_seconds
    while len(answers) < len(asked):
        missing = {client: message for client, message in asked.items() if client not in answers}
        answers |= messenger.gather(missing, 0, check, 0)
        if messenger.events.refused or (len(answers) < len(asked) and time.monotonic() > ends):
            raise PromptFedError(f"The run cannot {'go on' if others else 'begin'}: {messenger.complaints()}")
        if len(answers) < len(asked):
            time.sleep(RETRY_SECONDS)
    answers = dict(sorted(answers.items()))
    first: Line = others or answers[0].head
    for client, answer in answers.items():
        for key, what in (("classes", "classes"), ("shape", "image size")):
            if answer.head[key] != first[key]:
                raise PromptFedError(
                    f"{names[client]} and {names[0]} differ in their {what}: {answer.head[key]} and {first[key]}; "
                    + ("name all classes in fed.toml." if key == "classes" else "set data.size in the recipe.")
                )
    sites: Line = {
        "classes": first["classes"],
        "shape": first["shape"],
        "weights": [float(answer.tree["weight"]) for answer in answers.values()],
        "sites": {
            names[client]: {key: answer.head.get(key) for key in ("train", "test")}
            for client, answer in answers.items()
        },
    }
    write_json(path, sites)
    return sites


def _conclude(loop: RemoteLoop, recipe: Recipe, digest: str) -> Line:
    """Let every site write its own model and report, then write the summary and the report of the whole."""
    record = loop.record
    after = loop.after()
    loop.remote.final = True
    adapted = loop.adapted()
    if adapted is None:
        loop.closing()
    about = {
        "method": recipe.method["name"],
        "dataset": "sites",
        "partition": "sites",
        "backbone": recipe.backbone["name"],
        "seed": recipe.seed,
        "clients": recipe.clients,
        "rounds": recipe.rounds,
        "device": "sites",
        "recipe_hash": recipe.hash,
        "partition_hash": digest,
    }
    if (accountant := loop.guards.accountant) is not None:
        spent = accountant.spent([line["clients"] for line in record.rounds], loop.everyone.tolist())
        about["privacy"] = {"epsilon": spent, "delta": accountant.delta}
        if loop.settings.rounds < recipe.rounds:
            about["stopped"] = (
                f"Stopped after round {loop.settings.rounds} of {recipe.rounds}: one more would take a site beyond "
                f"guards.budget={accountant.budget:g}, from ε={max(spent):.3g} at δ={accountant.delta:g}."
            )
    summary = summarise(record, about, adapted, after, recipe.newcomers)
    summary["sites"] = _tally(record.rounds)
    record.finish(summary)
    write_report([record.folder])
    return summary


def _tally(rounds: list[Line]) -> Line:
    """Count the rounds in which each site was silent, and its refused and late answers."""
    total: Line = {"silent": {}, "refused": {}, "late": {}}
    for line in rounds:
        for site in line["sites"]["silent"]:
            total["silent"][site] = total["silent"].get(site, 0) + 1
        for site, reasons in line["sites"]["refused"].items():
            total["refused"][site] = total["refused"].get(site, 0) + len(reasons)
        for site, count in line["sites"]["late"].items():
            total["late"][site] = total["late"].get(site, 0) + count
    return total
