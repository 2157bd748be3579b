"""What a site does with a request: train, test, keep its personal tree in its own folder, and log what leaves.

    HOME/terms.toml                the owner's terms, if there are any
    HOME/ledger.jsonl              a line per noisy answer, of all runs
    HOME/audit.jsonl, audit.head   a record per answer: names, shapes and a digest of what was sent, never a value
    HOME/runs/RUN/sources.json     digests of the images and frozen weights the run began with
    HOME/runs/RUN/versions/        personal trees, each named by the round and the request that made it
    HOME/runs/RUN/answers.json, given.safetensors    with noise: the number of answers given, and the last one
    HOME/tests.json, rounds.json   what it has told about tests, and how often it has trained, in all runs
    HOME/runs/RUN/tests.json, models.json    the same of one run
    HOME/identity.pem              its signing key
    HOME/members.json, company.json    with secure aggregation: the keys of the others, and who took part in which run
    HOME/runs/RUN/revealed.json    with secure aggregation: the last round it helped to sum, and of whom
    HOME/runs/RUN/model.safetensors, model.json, report.json     the site's result

A request names the version it builds on. So a round that came to nothing, a late answer, or a coordinator that went
back to its last checkpoint leaves no trace in the site's state.
"""

import hashlib
import json
import logging
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from promptfed.core import tree
from promptfed.core.files import make_private, write_json
from promptfed.core.tree import Tree
from promptfed.federation.fleet import Fitted
from promptfed.federation.store import read_tree, write_tree
from promptfed.runs.site_model import write_model
from promptfed.sites import terms, wire
from promptfed.sites.admission import MOST_SITES, admit
from promptfed.sites.audit_log import AUDIT, AuditLog, describe
from promptfed.sites.client_run import ClientRun, build_client_run, own_data, relabelled
from promptfed.sites.company import Company
from promptfed.sites.disclosure import Disclosure, Purpose, digest
from promptfed.sites.failures import describe_failure
from promptfed.sites.identity import load_identity
from promptfed.sites.masks import Masks, Trust, find_secure_sum
from promptfed.sites.protocol import join_parts, pick_part, version
from promptfed.sites.signed_requests import SIGNED, asker
from promptfed.sites.sources import pin_sources, shown_sources
from promptfed.sites.spending import protection, spend
from promptfed.sites.versions import PACKED_BY, NoteTaker, find_mismatch
from promptfed.sites.wire import Header, Message, Refused

log = logging.getLogger("promptfed.site")
KEPT = ("run", "round", "nonce", "kind")  # what an answer repeats of its request
GIVEN = "given.safetensors"  # the last noisy answer
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")


@dataclass
class Worker:
    """One site: its name, its own folder, its data, and the run it last worked for."""

    site: str
    home: Path
    data: str
    device: str = "auto"
    limit: int = 2**30  # bytes of the largest request it reads
    foreign_methods: bool = False  # also run methods that a recipe names by a dotted path
    signed: bool = False  # answer only what the coordinator has signed, with the key of its certificate
    _key: object = None
    _run: ClientRun | None = None
    _once: Tree = field(default_factory=dict)
    _masks: Masks | None = None  # of the current session
    _told: Header = field(default_factory=dict)  # what protects the current answer, and what it has cost
    _unrecorded: int = 0  # sentences that left since the last record: that none could be written

    def __post_init__(self) -> None:
        self._audit, self._notes = AuditLog(self.home, self.site), NoteTaker(self.home)

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request; whatever goes wrong becomes an answer too."""
        head: Header = {"site": self.site}
        self._told, about = {}, dict[str, str | None]()
        try:
            message = wire.unpack(request, self.limit)
            self._notes.take(message.head)
            if trouble := find_mismatch(message.head.get(PACKED_BY), "the coordinator"):
                raise Refused(trouble)
            head |= {key: message.head[key] for key in KEPT}
            if message.head["site"] != self.site:
                raise Refused(f'the request is for "{message.head["site"]}"')
            about = self._circumstances(message.head)
            reply = self._work(message)
        except Refused as refusal:
            log.warning("refused a request: %s", refusal)
            reply = Message({"error": str(refusal)}, {})
        except Exception as error:  # a site must survive anything; details may be private and stay here
            log.error("%s", traceback.format_exc())
            reply = Message({"error": describe_failure(error)}, {})
        return self._sent(Message(head | reply.head, reply.tree), head, about)

    def _circumstances(self, head: Header) -> dict[str, str | None]:
        """Return to whom the answer goes and under which terms, as the audit log has it."""
        own = self.home / terms.FILE
        return {
            "to": asker(self.home, head) if self.signed else None,
            "request": head[SIGNED]["signature"] if self.signed else None,
            "terms": hashlib.sha256(own.read_bytes()).hexdigest() if own.exists() else None,
            "recipe": hashlib.sha256(str(head["recipe"]).encode()).hexdigest(),
        }

    def _sent(self, reply: Message, head: Header, about: Mapping[str, str | None]) -> bytes:
        """Return the answer as bytes once its record is on the disk: what cannot be recorded does not leave."""
        entry = {
            "to": None,
            "request": None,
            "terms": None,
            "recipe": None,
            **about,
            "guards": self._told,
            **describe(reply),
        }
        if self._unrecorded:
            entry["unrecorded"] = self._unrecorded
        try:
            mark = self._audit.append(entry)
        except (OSError, Refused) as error:
            log.error("%s/audit.jsonl cannot be written: %s", self.home, error)
            self._unrecorded += 1
            reason = str(error) if isinstance(error, Refused) else describe_failure(error)
            return wire.pack(Message(head | {"error": reason}, {}))
        self._unrecorded = 0
        return wire.pack(Message(reply.head | {AUDIT: {"n": mark.number, "hash": mark.hash}}, reply.tree))

    def _work(self, message: Message) -> Message:
        kinds: dict[str, Callable[[ClientRun, Path, Message], Message]] = {
            "hello": self._hello,
            "fit": self._fit,
            "evaluate": self._evaluate,
            "keys": self._begin_masks,
            "shares": self._share,
            "open": self._open,
            "confirm": self._confirm,
            "reveal": self._reveal,
        }
        head = message.head
        if head["kind"] not in kinds or not NAME.fullmatch(head["run"]):
            raise Refused("the request is of an unknown kind")
        if type(head["round"]) is not int or head["round"] < 0:
            raise Refused("the request does not name a round")
        wire.check_finite(message.tree)
        folder = self.home / "runs" / head["run"]
        if type(head["client"]) is not int or not 0 <= head["client"] < MOST_SITES:
            raise Refused("the request does not say which client this site is")
        make_private(self.home)
        run = self._client_run(head, folder)
        if head["round"] > (last := terms.total_rounds(run.recipe)):
            raise Refused(f"the recipe has {last} rounds, and this is a request for round {head['round'] + 1}")
        return kinds[head["kind"]](run, folder, message)

    def _client_run(self, head: Header, folder: Path) -> ClientRun:
        """Return this site's end of the run, built at the first request: the backbone is loaded once."""
        key, classes = (head["run"], head["recipe"], head["client"]), tuple(head["classes"] or ())
        # the first request may leave the classes open; the site then uses its own
        if self._run is None or key != self._key or classes not in ((), self._run.dataset.classes):
            recipe = admit(head["recipe"], folder, terms.of_site(self.home), foreign_methods=self.foreign_methods)
            dataset = own_data(self.data, recipe)
            if classes:
                dataset = relabelled(dataset, classes)
            torch.set_float32_matmul_precision("high" if recipe.fleet["precision"] == "tf32" else "highest")
            made = build_client_run(recipe, dataset, head["client"], self.device, folder)
            pin_sources(folder, made.sources)
            self._run = made
            self._key, self._once = key, {}
            log.info("run %s: %s images", head["run"], len(dataset))
        return self._run

    def _disclosure(self, run: ClientRun, folder: Path) -> Disclosure:
        """Return what may be told about tests in this run."""
        own, accountant = terms.of_site(self.home), run.guards.accountant
        noisy = accountant is not None and accountant.place == "local"
        detail = own.detail(noisy, len(run.shards.rows["test"][run.client]))
        rounds = terms.total_rounds(run.recipe)
        return Disclosure(self.home, folder, detail, own.max_evaluations, rounds, own.rounds_for_life)

    def _hello(self, run: ClientRun, folder: Path, message: Message) -> Message:
        shards, client = run.shards, run.client
        size = {"train": len(shards.rows["train"][client]), "test": len(shards.rows["test"][client])}
        about = {"classes": list(run.dataset.classes), "shape": list(run.dataset.sides), **size}
        about |= {"sources": shown_sources(self.home, run.sources)}
        return Message(about, {"weight": _weight(run)})

    def _fit(self, run: ClientRun, folder: Path, message: Message) -> Message:
        head, down, personal = (
            message.head,
            self._complete_download(run, folder, message),
            self._load(run, folder, message),
        )
        masks = self._session(message) if "session" in head else None
        answer = self._repeat_answer(folder, head, down) or self._train(run, folder, head, down, personal)
        up = pick_part(answer.tree, "up")
        if not up or find_secure_sum(run.guards) is None:
            return answer
        if masks is None:
            raise Refused("the recipe asks for secure aggregation; nothing leaves without a mask")
        rest = tree.drop(answer.tree, ["weight", *join_parts({"up": up})])
        return Message(answer.head, rest | masks.masked(up, answer.tree["weight"]))

    def _train(self, run: ClientRun, folder: Path, head: Header, down: Tree, personal: Tree) -> Message:
        """Train from `down`, and return what may leave: clipped and with noise, if the recipe says so."""
        limits, model = self._disclosure(run, folder), digest(down, personal)
        if not head["keep"]:
            return self._test_training(run, limits, head, down, personal)
        limits.train(f"{head['round']} {model}")
        test = head["test"] and limits.detail != "none"
        fitted = self._fit_once(run, head, down, personal, test)
        up, weight = tree.row(fitted.up, 0), fitted.weights[0]
        if private := sorted(up.keys() & personal.keys()):
            raise Refused(f"{private} are personal and must not leave the site")
        spent = spend(run, self.home, folder, head)
        if noisy := bool(spent):  # a number that is not finite would show through any noise
            up = {name: value.nan_to_num(0.0, 0.0, 0.0) for name, value in up.items()}
        _, up, weight = run.guards.protect(head["round"], torch.tensor(run.client), down, up, weight)
        self._keep(run, folder, head)
        parts = {"up": up}
        if limits.detail == "exact" and not noisy:
            parts["measures"] = tree.row(fitted.measures, 0)
        if test:
            parts["tested"] = limits.test(head["round"], "trained", model, lambda: tree.row(fitted.tested, 0))
        answer = Message({"images": fitted.images}, join_parts(parts) | {"weight": weight})
        self._told = protection(run) | spent
        if noisy:
            about = {"key": _key(head, down), "version": version(head["round"], head["nonce"])}
            whole = folder / f"{GIVEN}.part"
            whole.write_bytes(wire.pack(Message(answer.head | about, answer.tree)))
            whole.replace(folder / GIVEN)
        return answer

    def _fit_once(self, run: ClientRun, head: Header, down: Tree, personal: Tree, test: bool) -> Fitted:
        run.store.put(run.client, personal)
        run.store.seal()
        who = torch.tensor([run.client])
        return run.fleet.fit(head["round"], who, _stacked(down), keep=head["keep"], test=test)

    def _test_training(self, run: ClientRun, limits: Disclosure, head: Header, down: Tree, personal: Tree) -> Message:
        """Train only to test what comes of it: none of the training is sent."""

        def fresh() -> Tree:
            return tree.row(self._fit_once(run, head, down, personal, test=True).tested, 0)

        tested = limits.test(head["round"], "after", digest(down, personal), fresh)
        return Message({"images": 0}, join_parts({"tested": tested}))

    def _repeat_answer(self, folder: Path, head: Header, down: Tree) -> Message | None:
        """Return the last noisy answer if it is requested again: new noise would reveal more, and cost more."""
        path = folder / GIVEN
        if not head["keep"] or not path.is_file():
            return None
        given = wire.unpack(path.read_bytes(), self.limit)
        if given.head["key"] != _key(head, down):
            return None
        kept = folder / "versions" / f"{given.head['version']}.safetensors"
        if kept.is_file():
            write_tree(kept.with_stem(version(head["round"], head["nonce"])), read_tree(kept), sealed=True)
        self._told = {"repeated": True}  # and it costs nothing
        return Message({"images": given.head["images"]}, given.tree)

    # -- secure aggregation -------------------------------------------------------------------------------------------
    def _begin_masks(self, run: ClientRun, folder: Path, message: Message) -> Message:
        guard, head = find_secure_sum(run.guards), message.head
        if guard is None:
            raise Refused("the recipe does not ask for secure aggregation")
        own, identity = terms.of_site(self.home), load_identity(self.home, self.site)
        company = Company(self.home, head["run"], own.min_change)
        trusts = Trust(own.min_members, own.members, company.check)
        self._masks = Masks.begin(head, run.client, guard, identity, trusts)
        return self._masks.public()

    def _share(self, run: ClientRun, folder: Path, message: Message) -> Message:
        return self._session(message).shares(message, run.recipe.clients)

    def _open(self, run: ClientRun, folder: Path, message: Message) -> Message:
        return self._session(message).open(message)

    def _confirm(self, run: ClientRun, folder: Path, message: Message) -> Message:
        """Agree to one sum of a round, or to the same one again; another one could tell a single site's answer."""
        session, path = self._session(message), folder / "revealed.json"
        wanted = {"round": message.head["round"], "survivors": session.survivors(message.head)}
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"round": -1}
        if wanted["round"] <= before["round"] and wanted != before:
            raise Refused("it has already helped to open another sum of this round")
        write_json(path, wanted)
        return session.confirm(wanted["survivors"])

    def _reveal(self, run: ClientRun, folder: Path, message: Message) -> Message:
        return self._session(message).reveal(message.head)

    def _session(self, message: Message) -> Masks:
        if self._masks is None or message.head.get("session") != self._masks.session:
            raise Refused("it does not have the secrets of this session")
        if message.head["round"] != self._masks.round:
            raise Refused("this session is for another round")
        return self._masks

    def _evaluate(self, run: ClientRun, folder: Path, message: Message) -> Message:
        head, down, personal = (
            message.head,
            self._complete_download(run, folder, message),
            self._load(run, folder, message),
        )
        run.store.put(run.client, personal)
        run.store.seal()

        @cache
        def sums() -> Tree:
            client = torch.tensor([run.client])
            found = run.fleet.evaluate(head["round"], client, lambda _: _stacked(down), adapt=head["adapt"])
            return tree.row(found, 0)

        if head["final"]:
            self._conclude(run, folder, head, down, personal, sums())
        purpose: Purpose = "adapted" if head["adapt"] else "received"
        tested = self._disclosure(run, folder).test(head["round"], purpose, digest(down, personal), sums)
        return Message({}, join_parts({"tested": tested}))

    def _conclude(self, run: ClientRun, folder: Path, head: Header, down: Tree, personal: Tree, sums: Tree) -> None:
        """Write the site's result: its model, and a report of its own accuracy."""
        params = down | personal
        if head["adapt"]:
            data = run.shards.data([run.client], head["round"], stacked=False)
            params = run.method.adapt(run.task, down, personal, data)
        facts = tree.row(run.shards.facts([run.client]), 0)
        write_model(folder, params, run.recipe, run.dataset, facts, head["round"])
        about = {"site": self.site, "run": head["run"], "rounds": head["round"], "method": run.recipe.method["name"]}
        known = {name: float(value) for name, value in sums.items() if value.ndim == 0}
        share = known["correct"] / known["count"] if known.get("count") and "correct" in known else None
        write_json(folder / "report.json", about | {"accuracy": share} | known)

    # -- what stays here ----------------------------------------------------------------------------------------------
    def _complete_download(self, run: ClientRun, folder: Path, message: Message) -> Tree:
        """Return `down` completed with what is sent only once, in its original order."""
        names, path = run.method.traits.once, folder / "once.safetensors"
        order: list[str] = message.head["names"]
        wanted = [name for name in order if name in names]
        came = {name: message.tree[name] for name in wanted if name in message.tree}
        if came and len(came) == len(wanted):
            write_tree(path, came, sealed=True)
            self._once = came
        elif wanted and not self._once:
            if not path.is_file():
                raise Refused("it no longer has what is sent only once")
            self._once = read_tree(path)
        down = message.tree | self._once
        return tree.to(tree.pick(down, order), run.shards.pool.x.device)

    def _load(self, run: ClientRun, folder: Path, message: Message) -> Tree:
        """Return the personal tree the request builds on.

        Versions older than the settled one are deleted: a coordinator never goes back beyond its last checkpoint.
        """
        base, settled = str(message.head["base"]), str(message.head["settled"])
        if not run.fresh or not base:
            return run.fresh
        path = folder / "versions" / f"{base}.safetensors"
        if not NAME.fullmatch(base) or not path.is_file():
            raise Refused(f"it does not have version {base} of its personal state")
        if settled > base:
            raise Refused(f"version {settled} is newer than {base}, on which the request builds")
        for other in path.parent.glob("*.safetensors"):
            if other.stem < settled:
                other.unlink()
        return read_tree(path)

    def _keep(self, run: ClientRun, folder: Path, head: Header) -> None:
        after = run.store.get(run.client)
        if after:
            versions = folder / "versions"
            versions.mkdir(exist_ok=True)
            write_tree(versions / f"{version(head['round'], head['nonce'])}.safetensors", after, sealed=True)
        run.store.discard()


def _key(head: Header, down: Tree) -> str:
    """Return a fingerprint of a training request, the same whenever it is repeated."""
    return f"{head['round']} {head['base']} {head['test']} {digest(down)}"


def _stacked(single: Tree) -> Tree:
    return {name: value.unsqueeze(0) for name, value in single.items()}


def _weight(run: ClientRun) -> torch.Tensor:
    """Return the weight as every answer will have it; with noise it is the same for all."""
    weight, nothing = run.method.weight(run.shards.facts([run.client]))[0], {"nothing": torch.zeros(1)}
    return run.guards.protect(0, torch.tensor(run.client), {}, nothing, weight)[2]
