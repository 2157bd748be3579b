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
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed_toml, write_sealed
from promptfed.core.options import make
from promptfed.core.tree import Tree
from promptfed.federation import guards
from promptfed.federation.examples_privacy import hides_examples
from promptfed.federation.guards import Guards
from promptfed.federation.guards.guard import Handed
from promptfed.federation.guards.secure import SecureSum
from promptfed.federation.loop import Aggregate, Loop, Settings
from promptfed.federation.summarising import summarise
from promptfed.results.folder import names
from promptfed.results.folder.parts import read_json, read_text
from promptfed.results.folder.record import Line, Record
from promptfed.results.report import write_report
from promptfed.runs import config
from promptfed.runs.environment import environment
from promptfed.runs.planning import WEIGHTS, affordable, pick_device
from promptfed.runs.recipe import EvaluateOptions, Recipe
from promptfed.runs.summary import privacy_spent, summary_head
from promptfed.sites.client_run import ClientRun, blank_dataset, build_client_run, read_recipe
from promptfed.sites.exchange import Exchange
from promptfed.sites.introductions import introduce
from promptfed.sites.messenger import Events, Messenger, RunHeader
from promptfed.sites.oversight import Oversight
from promptfed.sites.pid_file import acquire
from promptfed.sites.remote import Expected, RemoteFleet
from promptfed.sites.settings import Federation

LOCK_SECONDS = 30.0  # a job that was just ended may hold the lock this long
Progress = Callable[[Line], None]


@dataclass(frozen=True)
class AnsweredGuards(Guards):
    """The server's guards, which see the answers that arrived; the sites' guards run at the sites."""

    answered: Callable[[], Tensor] = lambda: torch.arange(0)
    secure: SecureSum | None = None  # answers came under masks: only their mean, as one row, is here

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Return (clients, up, weights) of the sites that answered, as the method sees them."""
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
    """The same rounds, with results from the sites that answered."""

    def __init__(
        self, run: ClientRun, remote: RemoteFleet, record: Record, settings: Settings, welcome: Callable[[], None]
    ) -> None:
        here = tuple(guard for guard in run.guards.guards if guard.side == "server" and guard is not remote.guard)
        guards = AnsweredGuards(here, run.guards.accountant, lambda: remote.answered, remote.guard)
        super().__init__(run.method, run.task, remote, run.shards, run.store, record, settings, guards)
        self.remote, self.welcome = remote, welcome

    def round(self, t: int) -> tuple[Tree, Line]:
        """Run round `t`; its line also records who was silent, refused or late, and the new personal trees."""
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

    def _next(self, t: int) -> tuple[Tensor, Tree, Aggregate]:
        """Return the same as any loop; the next server tree is checked before anyone sees it."""
        clients, server, conclude = super()._next(t)
        return clients, server, partial(self._concluded, t, conclude)

    def _concluded(self, t: int, conclude: Aggregate, *given: Any) -> Tree:
        server = conclude(*given)
        if all(bool(torch.isfinite(value).all()) for value in server.values()):
            return server
        sites, clients = self.remote.messenger.federation.sites, self.remote.suspects()
        raise PromptFedError(
            f"Training diverged in round {t + 1}: the server's model would hold numbers that are not finite; at "
            f"fault is an answer of {' or '.join(sites[one] for one in clients)}. Leave it out, or lower method.lr."
        )

    def closing(self) -> None:
        """Evaluate every client's received model at the end."""
        self._evaluate(self.server, self.settings.total, adapt=False)

    def _deployed_score(self, server: Tree) -> dict[str, float] | None:
        return None  # the coordinator has no test images


def _describe(events: Events) -> Line:
    return {"silent": events.silent, "refused": events.refused, "late": events.late}


def create(folder: Path, recipe: Recipe, federation: Federation) -> None:
    """Create a run folder."""
    if recipe.sampling != "uniform":
        raise PromptFedError(f"sampling={recipe.sampling} is not supported over sites; set sampling=uniform.")
    if (metric := recipe.evaluate["metric"]) != "accuracy":
        raise PromptFedError(
            f"evaluate.metric={metric} needs the answer for every test image, which never leaves a site; use accuracy."
        )
    if "half" in recipe.data:
        raise PromptFedError("data.half is not supported over sites, each of which names its own; leave it out.")
    if "sets" in recipe.evaluate:
        raise PromptFedError(
            "evaluate.sets tests clients on each other's images, which never leave a site; leave it out."
        )
    if "elsewhere" in recipe.evaluate:
        raise PromptFedError("evaluate.elsewhere is not supported over sites; leave it out.")
    if recipe.clock:
        raise PromptFedError("Over sites the clock is the real one; leave [clock] out.")
    if recipe.stop:
        raise PromptFedError("stop.patience is not supported over sites; leave it out, and set rounds.")
    if recipe.guards.get("noise") and recipe.guards["entropy"] != "system":
        raise PromptFedError("Over sites, noise must be drawn at the site; set guards.entropy=system.")
    method = config.build_method(recipe)
    if hides_examples(method):
        raise PromptFedError(
            f"Over sites, the noise of {method.name} hides nothing, since it follows from the recipe's seed; set "
            "method.noise=0, and guards.noise with guards.entropy=system."
        )
    present = min(federation.needed, recipe.per_round or recipe.clients - recipe.newcomers)
    if recipe.guards.get("robust", "mean") != "mean":  # the rule must work for the smallest round allowed
        guards.check(recipe.guards, method, min(present, recipe.newcomers or present))
    founders = recipe.clients - recipe.newcomers
    drawn = recipe.per_round or founders
    affordable(recipe, guards.build(recipe.guards, method, recipe.seed, founders, drawn, secret_draw=False))
    Record.create(folder, recipe.to_toml(), environment(pick_device("cpu")), own=True)
    known = {"sites": federation.sites, "newcomers": recipe.newcomers, "run": f"{folder.name}-{secrets.token_hex(4)}"}
    write_sealed(folder / names.FEDERATION, known)


class Busy(Exception):  # noqa: N818  (not an error: someone else is doing the work)
    """Another process conducts the run."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the run folder; the process of a job that has just died no longer holds it."""
    ends = time.monotonic() + LOCK_SECONDS
    with (folder / names.LOCK).open("a+") as lock:
        while True:
            try:
                acquire(lock)
                break
            except BlockingIOError as error:
                if time.monotonic() > ends:
                    raise Busy(f"Another process is working in {folder}.") from error
                time.sleep(0.1)
        yield


def conduct(
    folder: Path, federation: Federation, exchange: Exchange, progress: Progress, oversight: Oversight | None = None
) -> Line:
    """Run the remaining rounds of the run in `folder`; each is saved before the next one begins."""
    oversight = oversight or Oversight()
    with lock_folder(folder):
        record = Record.reopen(folder)
        text, recipe = _stored_recipe(folder)
        known = read_json(folder / names.FEDERATION) or {"sites": ()}
        if tuple(known["sites"]) != federation.sites or recipe.clients != len(federation.sites):
            raise PromptFedError(f"{folder} is a run of other sites: {', '.join(known['sites'])}.")
        header, oversight.run = RunHeader(known["run"], text, federation.classes), known["run"]
        founders = recipe.clients - recipe.newcomers
        first = Messenger(exchange, federation, header, oversight)
        sites = introduce(folder / names.SITES, first, range(founders))
        header = RunHeader(known["run"], text, tuple(sites["classes"]))
        run = build_client_run(recipe, blank_dataset(tuple(sites["shape"]), header.classes), 0, "cpu", folder)
        _check_weights(run, sites)
        loop = _loop(run, Messenger(exchange, federation, header, oversight), sites, record)
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
            oversight.keep()
            progress(line)

        loop.run(save, finished)
        summary = _conclude(loop, recipe, digest)
        oversight.keep()
        return summary


def _stored_recipe(folder: Path) -> tuple[str, Recipe]:
    """Return the recipe of the run in `folder`, as the sites get it and as a value."""
    try:
        text = unsealed_toml(read_text(folder / names.RECIPE))
    except ValueError as error:
        raise PromptFedError(f"{folder / names.RECIPE} cannot be used: {error}.") from error
    return text, read_recipe(text, str(folder))


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
        """Let the newcomers introduce themselves, once."""
        known: list[float] = sites["weights"]
        if len(remote.expected.weights) == len(known):
            who = range(len(known), recipe.clients)
            came = introduce(record.folder / names.NEWCOMERS, messenger, who, sites)
            tests = (*remote.expected.tests, *_tests(came))
            remote.expected = replace(remote.expected, weights=(*known, *came["weights"]), tests=tests)

    remote = RemoteFleet(messenger, run, Expected({}, {}, ()), base, record.folder)
    loop = RemoteLoop(run, remote, record, settings, welcome)
    down = run.method.download(run.task, loop.server, torch.tensor([0]))
    remote.expected = Expected.of(run, down, sites["weights"], _tests(sites))
    return loop


def _check_weights(run: ClientRun, sites: Line) -> None:
    """Refuse a site whose backbone has other frozen weights than the coordinator's: their answers would not add up."""
    own = run.sources.get(WEIGHTS)
    for site, declared in sites["sites"].items():
        theirs = (declared.get("sources") or {}).get(WEIGHTS)
        if own and theirs and theirs != own:
            raise PromptFedError(
                f"{site} has other frozen weights than the coordinator; give both the same files of backbone.weights."
            )


def _tests(sites: Line) -> list[int | None]:
    """Return how many test images each site declared."""
    return [declared["test"] for declared in sites["sites"].values()]


def _conclude(loop: RemoteLoop, recipe: Recipe, digest: str) -> Line:
    """Let every site write its own model and report, then write the summary and report of the run."""
    record = loop.record
    after = loop.after()
    loop.remote.final = True
    adapted = loop.adapted()
    if adapted is None:
        loop.closing()
    head = summary_head(recipe, digest, "sites", "sites") | privacy_spent(loop, recipe.rounds, "site")
    summary = summarise(record, head, adapted, after, recipe.newcomers)
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
