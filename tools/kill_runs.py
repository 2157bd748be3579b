"""Kill runs of every method at random moments, resume them, and compare each with a straight run bit for bit.

    python tools/kill_runs.py [--kills 4] [--seed 0] [--cases pfedpt stacked …] [--list]

Every case is a small run: one per registered method, and more for all that changes how a run goes on. Its processes,
forked from one that has imported everything, get SIGKILL at a moment of the straight run's length, by a clock, or as
they are about to write, rename or remove the n-th file. They are resumed until there were `--kills` kills, and then to
the end. All files of the folder must equal the straight run's but for times. Which file is the n-th depends on the
seed alone. It ends with exit code 1 if any run differs, or if a killed run cannot be resumed.
"""

import argparse
import multiprocessing
import os
import pkgutil
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file

import promptfed.methods
from promptfed.backbones import BACKBONES
from promptfed.backbones.painter import Painter
from promptfed.backbones.residual import ResNetArch
from promptfed.backbones.resnet import LoadedResNet, ResNet
from promptfed.core import options
from promptfed.core.files import unsealed, unsealed_toml
from promptfed.federation import loop
from promptfed.federation.segments import open_segment
from promptfed.federation.store import Store
from promptfed.runs import config, registry, resuming

Words = tuple[str, ...]
SHARED = ("clients=4", "per_round=2", "rounds=5", "checkpoint_seconds=0", "device=cpu")
IMAGES = ("data.name=npz:{images}", "partition.name=iid")
SHOPS = ("data.name=fashion-shops", "data.limit=3", "partition.name=domain")
BOOTS = (  # as few as a text-to-image model of real size can do with
    *("data.name=fashion-shops", "data.only=Ankle boot", "data.limit=3", "partition.name=equal", "partition.each=3"),
    *("clients=2", "per_round=1", "rounds=2", "evaluate.every=2", "evaluate.after=false"),
)
SMALL = {  # a backbone for every method's own: its words
    "cnn": ("backbone.name=vit-tiny", "backbone.width=8", "backbone.depth=1", "backbone.heads=2"),
    "diffusion": ("backbone.name=painter",),
    "resnet": ("backbone.name=resnet-small", "backbone.weights=random"),
}
SHORT = {
    "epochs": 1,
    "batch": 4,
    "prompt_epochs": 1,
    "head_epochs": 1,
    "repeats": 1,
    "tokens": 2,
    "rank": 2,
    "join_steps": 2,
}
STACKED = ("fleet.name=stacked", "fleet.width=2")
SPILLING = ("fleet.memory_mb=0.001",)
MORE: dict[str, tuple[str, Words]] = {  # all that changes how a run goes on: the method, and more words
    "a prompt around fedper": ("fedper", ("prompt.kind=frame", "prompt.size=1")),
    "a prompt around moon": ("moon", ("prompt.kind=patch", *SPILLING)),
    "adapted before the test": ("fedavg", ("method.tune_epochs=1",)),
    "augmented and weighted": ("fedavg", ("train.augment=flip+crop", "train.class_weights=balanced")),
    "by a clock": ("fedavg", ("clock.mode=fedbuff", "clock.profile=mobile", "clock.hours=24", "clock.buffer=2")),
    "by a clock, semi": ("pfedpt", ("clock.mode=semi", "clock.profile=mobile", "clock.deadline_minutes=300")),
    "central noise": ("fedvpt", ("guards.clip=1", "guards.noise=1", "guards.place=central")),
    "domains": ("fedapt", SHOPS),
    "dropout": ("fedavg", ("backbone.name=cnn-pfl", "backbone.channels=[4,4]", "backbone.hidden=[8]")),
    "embedded diffusion": ("relic", ("backbone.name=diffusion", *BOOTS)),
    "krum": ("fedavg", ("guards.robust=krum", "guards.byzantine=0", "per_round=4")),
    "local noise, a budget": ("fedavg", ("guards.clip=1", "guards.noise=2", "guards.budget=8", "guards.delta=0.01")),
    "median": ("promptfl", ("guards.robust=median",)),
    "newcomers of fedavg": ("fedavg", ("newcomers=1", "join_rounds=2")),
    "newcomers of pfedpg": ("pfedpg", ("newcomers=1", "join_rounds=2")),
    "one per domain": ("fedvpt", (*SHOPS, "per_round=4", "sampling=one-per-domain", "evaluate.every=2")),
    "scheduled": ("pfedpt", ("schedule.name=cosine", "schedule.warmup=2")),
    "secure sum": ("fedavg", ("guards.secure=true",)),
    "server tested alone": ("fedavg", ("evaluate.personal=false", "evaluate.every=2", "evaluate.after=false")),
    "spilling pfedpt": ("pfedpt", (*SPILLING, "per_round=3")),
    "spilling pfedvpt": ("pfedvpt", ("method.prompt=own", *SPILLING)),
    "stacked fedmtl": ("fedmtl", STACKED),
    "stacked fedrod": ("fedrod", STACKED),
    "stacked pfedpg": ("pfedpg", STACKED),
    "stacked pfedpt": ("pfedpt", (*STACKED, *SPILLING, "per_round=3")),
    "stacked relic": ("relic", STACKED),
    "stopped early": ("fedavg", ("stop.patience=1", "rounds=12", "method.lr=1e-9")),
    "unlabelled fedapt": ("fedapt", ("method.mode=unsupervised", "method.stage1=2")),
    "unlabelled promptfl": ("promptfl", ("method.mode=unsupervised", "method.stage1=2")),
    "validation images": ("fedrep", ("evaluate.split=val",)),
}
# in report.html, whose accuracies have two decimals and whose seconds one
CLOCKED = re.compile(rb"<dt>(started|images per second)</dt><dd>[^<]*|<td>[\d,]+\.\d</td>")
TIMES = re.compile(r"(_|^)(seconds?|started|per_second|crc32|timestamp)$")


@dataclass(frozen=True)
class ResNetSmall(ResNet):
    """A small ResNet with random weights, since none is embedded."""

    name: ClassVar[str] = "resnet-small"

    def to(self, device: torch.device) -> LoadedResNet:
        """Return it on `device`."""
        return ResNet.random(self.shape, self.classes, ResNetArch(4, (8,), (1,)), precision="fp32").to(device)


def cases() -> dict[str, tuple[str, Words]]:
    """Return every case: a method, and the words that make its run a small one."""
    found = registry.methods()
    every = {name: (name, ()) for name in sorted(found)} | MORE

    def words(name: str, more: Words) -> Words:
        kind: Any = found[name]
        short = (f"method.{key}={value}" for key, value in SHORT.items() if key in options.defaults(kind))
        return (*SHARED, *IMAGES, *SMALL.get(kind.backbone, ()), *short, *more)

    return {case: (name, _last_of_each(words(name, more))) for case, (name, more) in every.items()}


def _last_of_each(words: Words) -> Words:
    """Return the last word for each key; what belongs to a backbone or data set that is replaced goes with it."""
    kept: dict[str, str] = {}
    for word in words:
        key = word.partition("=")[0]
        table, _, name = key.partition(".")
        if name == "name":
            kept = {one: value for one, value in kept.items() if not one.startswith(f"{table}.")}
        kept[key] = word
    return tuple(kept.values())


def write_images(path: Path) -> Path:
    """Write 48 noisy 8×8 images of four patterns."""
    rng = np.random.default_rng(0)
    labels = np.arange(48) % 4
    images = rng.integers(40, 216, (4, 8, 8, 3))[labels] + rng.integers(-40, 40, (48, 8, 8, 3))
    np.savez(path, x=images.astype(np.uint8), y=labels)
    return path


# -- a process that is killed ---------------------------------------------------------------------------------------


def work(method: str, words: Words, folder: Path, dying: int) -> None:
    """Start or resume the run in `folder`; die as the `dying`-th file is about to be changed. -1: count them."""
    torch.set_num_threads(1)
    with folder.with_suffix(".errors").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    loop.SAVING = 0  # commit after every round, however long that takes
    BACKBONES.update({"painter": Painter, "resnet-small": ResNetSmall})  # type: ignore[dict-item]
    changes = _die_at(dying, str(folder))
    resuming.start_or_resume(config.load_one(method, words), folder)
    if dying < 0:
        folder.with_suffix(".count").write_text(str(len(changes)))


def _die_at(number: int, folder: str) -> list[str]:
    """Kill this process before the `number`-th change of a file in `folder`; return what changes, as it does."""
    changes: list[str] = []

    def hook(event: str, given: tuple[Any, ...]) -> None:
        writing = event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR)
        if (writing or event in ("os.rename", "os.remove", "os.mkdir")) and str(given[0]).startswith(folder):
            changes.append(event)
            if len(changes) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return changes


def begin(method: str, words: Words, folder: Path, dying: int = 0) -> Any:
    """Return a process at work on a run, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    modules = (f"promptfed.methods.{one.name}" for one in pkgutil.iter_modules(promptfed.methods.__path__))
    context.set_forkserver_preload(["promptfed.runs.runner", "promptfed.results.report", *modules])
    folder.parent.mkdir(exist_ok=True)
    process = context.Process(target=work, args=(method, words, folder, dying))
    process.start()
    return process


# -- what a folder says ---------------------------------------------------------------------------------------------


def content(folder: Path) -> dict[str, object]:
    """Return all that is in a finished run's folder, without times."""
    found: dict[str, object] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != "checkpoint"):
        name, raw = str(path.relative_to(folder)), path.read_bytes()
        if path.suffix == ".json":
            found[name] = _timeless(unsealed(raw.decode()))
        elif path.suffix == ".jsonl":
            found[name] = [_timeless(unsealed(line)) for line in raw.decode().splitlines()]
        elif path.suffix == ".toml":
            found[name] = unsealed_toml(raw.decode())
        elif path.suffix == ".safetensors":  # in which order its header has what, is a matter of chance
            found[name] = _bits(load_file(path))
        else:
            found[name] = raw
    report = found["report.html"]
    assert isinstance(report, bytes)  # it names its own folder too
    found["report.html"] = CLOCKED.sub(b"", report.replace(str(folder).encode(), b""))
    return found | dict(_checkpoint(folder / "checkpoint"))


def _timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _timeless(one) for key, one in value.items() if not TIMES.search(key)}
    return [_timeless(one) for one in value] if isinstance(value, list) else repr(value)


def _checkpoint(folder: Path) -> Iterator[tuple[str, object]]:
    """Yield the state, and every tree as bytes: which file holds a client's depends on when it was committed."""
    state = unsealed((folder / "state.json").read_text())
    server, personal = state.pop("server")["file"], state.pop("personal")
    yield "state", state
    store = Store(lambda client: {}, folder)
    store.restore(personal)
    yield "files beside the committed ones", {path.name for path in folder.iterdir()} - {server, *personal}
    held = {
        client for name, entry in personal.items() for client in open_segment(folder / name, entry).clients.tolist()
    }
    for client in sorted(held):
        yield f"client {client}", _bits(store.get(client))
    yield "server", _bits(load_file(folder / server))


def _bits(tree: Mapping[str, torch.Tensor]) -> dict[str, object]:
    return {
        name: (value.dtype, value.shape, value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        for name, value in tree.items()
    }


def differences(wanted: Mapping[str, object], found: Mapping[str, object]) -> list[str]:
    """Return the names of what differs."""
    return [name for name in sorted(wanted.keys() | found.keys()) if wanted.get(name, ()) != found.get(name, ())]


# -- the campaign ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Campaign:
    """The runs of one case: what they are, where, and what a straight one is like."""

    case: str
    method: str
    words: Words
    place: Path
    wanted: Mapping[str, object]
    changes: int  # of files, in a straight run
    seconds: float

    @classmethod
    def of(cls, case: str, place: Path) -> "Campaign":
        """Make two straight runs; they must be equal for the comparison to mean anything."""
        method, words = cases()[case]
        images = write_images(place / "images.npz")
        words = tuple(word.replace("{images}", str(images)) for word in words)
        counted, timed = (place / name / "run" for name in ("counted", "timed"))
        _ended(begin(method, words, counted, -1), case, counted)
        began = time.monotonic()
        _ended(begin(method, words, timed), case, timed)
        seconds, wanted = time.monotonic() - began, content(counted)
        if unlike := differences(wanted, content(timed)):
            raise SystemExit(f"{case}: two straight runs differ in {', '.join(unlike)}")
        changes = int(counted.with_suffix(".count").read_text())
        return cls(case, method, words, place, wanted, changes, seconds)

    def kill(self, kills: int, rng: random.Random) -> tuple[int, int, list[str]]:
        """Kill runs until there were so many kills; return the kills, the runs, and which of their files differ."""
        done, runs, wrong = 0, 0, list[str]()
        while done < kills:
            runs, folder = runs + 1, self.place / f"killed-{runs}" / "run"
            while self._killed(folder, rng if done < kills else None):
                done += 1
            wrong += differences(self.wanted, content(folder))
        return done, runs, wrong

    def _killed(self, folder: Path, rng: random.Random | None) -> bool:
        """Go on with a run, to be killed at a moment of `rng`'s; say whether it was, or had finished before."""
        by_clock = rng is not None and rng.random() < 0.5
        process = begin(self.method, self.words, folder, rng.randint(1, self.changes) if rng and not by_clock else 0)
        if rng is not None and by_clock:
            process.join(rng.uniform(0, self.seconds))
            process.kill()  # nothing, if it has ended
        process.join()
        if process.exitcode == -signal.SIGKILL:
            return True
        _ended(process, self.case, folder)
        return False


def _ended(process: Any, case: str, folder: Path) -> None:
    """Wait for a process that must end well."""
    process.join()
    if process.exitcode:
        raise SystemExit(f"{case}, {folder}: {folder.with_suffix('.errors').read_text()[-2000:]}")


def main() -> int:
    """Run the campaign and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=4, help="of each case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", nargs="+", default=list(cases()), choices=list(cases()), metavar="CASE")
    parser.add_argument("--list", action="store_true", help="only print the cases")
    given = parser.parse_args()
    if given.list:
        sys.stdout.write("".join(f"{case}\n" for case in given.cases))
        return 0
    sys.stdout.write(f"{'case':26} {'method':15} kills  runs  differing files\n")
    kills, runs, differing = 0, 0, 0
    for case in given.cases:
        with tempfile.TemporaryDirectory() as place:
            found = Campaign.of(case, Path(place))
            done, made, wrong = found.kill(given.kills, random.Random(f"{given.seed} {case}"))
        sys.stdout.write(f"{case:26} {found.method:15} {done:5} {made:5}  {', '.join(wrong) or 'none'}\n")
        sys.stdout.flush()
        kills, runs, differing = kills + done, runs + made, differing + len(wrong)
    sys.stdout.write(f"{len(given.cases)} cases: {kills} kills, {runs} runs resumed, {differing} differing files\n")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
