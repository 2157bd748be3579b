"""What a round over real sites costs beside the work itself: processes, TLS, messages, checkpoints, on one machine.

The sites hold a frozen pretrained ViT and send 48 prompt tokens of width 160, 7,680 numbers each way, without training
them (`fedvpt method.epochs=0`). A round's time is from one answer of the first site to its next, so all is in it that
comes between: also the server's checkpoint, and the sites' own. The CPU time of a round is that of all processes of the
federation, in user and kernel mode, over the middle half of the rounds; other programs on the machine do not change it
much. With `--flower PYTHON`, a Python that has flwr installed, Flower's deployment sends as many numbers in the same
run, over TLS, its clients doing nothing; their processes end with every message, so their CPU time is not counted.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

FLOATS, TOKENS = 7680, 48
PATIENCE = 600.0  # seconds for anything to happen
PROMPTFED = [sys.executable, "-m", "promptfed", "sites"]


@dataclass(frozen=True)
class Measured:
    """One engine with so many sites."""

    engine: str
    sites: int
    start: float  # seconds from the first process to the first finished round
    rounds: list[float]  # seconds of every round after the first
    memory: dict[str, list[float]]  # resident MB of every process, by role
    loads: str  # how often a site loaded its backbone
    work: dict[str, float]  # CPU ms a round of all processes, by role; empty if not counted


# -- processes ---------------------------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """Return free ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


class Processes:
    """Commands in the background, each at the head of its own group, all of which end with the benchmark."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, os.environ | {"OMP_NUM_THREADS": "1"} | environment
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: object) -> "subprocess.Popen[bytes]":
        """Start a command; what it says goes to NAME.out."""
        with (self.folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [*map(str, command)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def end(self) -> None:
        """End them all, gently first."""
        for process in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def processes(folder: Path, **environment: str) -> Iterator[Processes]:
    """Give commands a folder, and leave none of them behind."""
    started = Processes(folder, environment)
    try:
        yield started
    finally:
        started.end()


def wait(true: Callable[[], bool], doing: str, *needed: "subprocess.Popen[bytes]") -> None:
    """Wait until something is true; give up if a process it needs has failed."""
    ends = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > ends or any(process.poll() not in (None, 0) for process in needed):
            sys.exit(f"Gave up waiting for: {doing}. The output is in *.out; --keep keeps it.")
        time.sleep(0.2)


def at_work(folder: Path, roles: dict[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the role and /proc folder of every process that works in `folder` or names it in its command line."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) not in line and not (path / "cwd").readlink().is_relative_to(folder):
                continue
            if (role := next((role for role, word in roles.items() if word in line), None)) is not None:
                yield role, path


def resident(folder: Path, roles: dict[str, str]) -> dict[str, list[float]]:
    """Return the resident MB of every process of the federation, by role."""
    found: dict[str, list[float]] = {}
    for role, path in at_work(folder, roles):
        with contextlib.suppress(OSError):
            pages = int((path / "statm").read_text().split()[1])
            found.setdefault(role, []).append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
    return found


def consumed(folder: Path, roles: dict[str, str]) -> dict[str, float]:
    """Return the CPU ms that the processes of the federation have used so far, by role."""
    found = dict.fromkeys(roles, 0.0)
    for role, path in at_work(folder, roles):
        with contextlib.suppress(OSError):
            ticks = (path / "stat").read_text().rpartition(")")[2].split()[11:13]
            found[role] += 1000 * sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return found


# -- PromptFed ---------------------------------------------------------------------------------------------------------

OURS = {
    "server": "server_train",
    "server's job": "runner_process",
    "site": "client_train",
    "site's worker (torch, the backbone)": "sites.worker",
    "site's job": "client.worker_process",
    "watchdog of the server, a site or the run": "promptfed sites",
}


def write_images(path: Path, seed: int) -> None:
    """Write a few images of two classes."""
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 256, (8, 32, 32, 3), np.uint8), np.arange(8) % 2
    np.savez(path, x_train=images[:6], y_train=labels[:6], x_test=images[6:], y_test=labels[6:])


def provision(folder: Path, names: Sequence[str]) -> None:
    """Make the kits of a federation with these sites, and their data."""
    port, admin_port = free_ports(2)
    (folder / "fed.toml").write_text(f"sites = {json.dumps(names)}\nport = {port}\nadmin_port = {admin_port}\n")
    subprocess.run([*PROMPTFED, "init", "fed.toml"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    for number, name in enumerate(names):
        write_images(folder / f"{name}.npz", number)


def answers(home: Path) -> list[float]:
    """Return when a site sent its trained prompt, round by round, as its audit log says."""
    path = home / "audit.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line["time"] for line in map(json.loads, lines) if line["kind"] == "fit"]


def promptfed(folder: Path, sites: int, rounds: int) -> Measured:
    """Run a federation of so many sites."""
    names = [f"site-{number}" for number in range(sites)]
    provision(folder, names)
    with processes(folder) as started:
        began = time.time()
        started.start("server", *PROMPTFED, "start")
        for name in names:
            place = ("--data", f"{name}.npz", "--home", folder / "homes" / name, "--device", "cpu")
            started.start(name, *PROMPTFED, "join", f"federation/kits/{name}.zip", *place)
        words = ("fedvpt", f"rounds={rounds + 1}", f"method.tokens={TOKENS}", "method.epochs=0", "device=cpu")
        tests = (f"evaluate.every={rounds + 1}", "evaluate.after=false")
        run = started.start("run", *PROMPTFED, "run", *words, *tests, "--out", "run")
        home = folder / "homes" / names[0]
        wait(lambda: len(answers(home)) > rounds // 4, "a quarter of the rounds", run)
        first, before = len(answers(home)), consumed(folder, OURS)
        wait(lambda: len(answers(home)) > 3 * rounds // 4, "three quarters of the rounds", run)
        last, after = len(answers(home)), consumed(folder, OURS)
        memory = resident(folder, OURS)
        work = {role: (after[role] - before[role]) / (last - first) for role in OURS}
        wait(lambda: (folder / "run" / "summary.json").exists(), "the end of the run", run)
    times = answers(home)
    traffic = json.loads((folder / "run" / "summary.json").read_text())["traffic"]
    assert traffic["up_floats"] == traffic["down_floats"] == FLOATS
    return Measured("PromptFed on FLARE", sites, times[0] - began, gaps(times), memory, loads(folder / "homes"), work)


def loads(homes: Path) -> str:
    """Return how often the sites' workers built the run, its backbone included; each time they note it."""
    counts = {len(re.findall(r"(?m) run \S+: \d+ images$", log.read_text())) for log in homes.glob("*/worker.log")}
    return " or ".join(map(str, sorted(counts)))


def gaps(times: list[float]) -> list[float]:
    """Return the seconds between one time and the next."""
    return [after - before for before, after in pairwise(times)]


# -- Flower ------------------------------------------------------------------------------------------------------------

THEIRS = {
    "server": "flower-superlink",
    "server's job": "flwr-serverapp",
    "site": "flower-supernode",
    "site's job": "flwr-clientapp",
    "starter of jobs": "flower-superexec",
}
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "overhead"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "overhead.server:app"
clientapp = "overhead.client:app"
[tool.flwr.app.config]
rounds = 1
sites = 1
log = ""
"""
CLIENT = """
from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    return Message(content=message.content, reply_to=message)
"""
SERVER = f"""
import time
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    while len(nodes := list(grid.get_node_ids())) < config["sites"]:
        time.sleep(0.2)
    for number in range(config["rounds"]):
        content = lambda: RecordDict({{"prompt": ArrayRecord([np.zeros({FLOATS}, np.float32)])}})
        about = dict(message_type="train", group_id=str(number))
        sent = [Message(content=content(), dst_node_id=node, **about) for node in nodes]
        replies = list(grid.send_and_receive(sent))
        assert len(replies) == len(nodes) and not any(reply.has_error() for reply in replies), replies
        with open(config["log"], "a") as log:
            print(time.time(), file=log, flush=True)
"""


def flower(folder: Path, sites: int, rounds: int, python: Path) -> Measured:
    """Run Flower's SuperLink and as many SuperNodes, with a certificate of our own."""
    key, certificate = folder / "server.key", folder / "server.crt"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    made = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(certificate))
    subprocess.run(["openssl", "req", *made, *names], check=True, capture_output=True)
    app = folder / "app"
    (app / "overhead").mkdir(parents=True)
    for name, text in {"pyproject.toml": PROJECT, "overhead/client.py": CLIENT, "overhead/server.py": SERVER}.items():
        (app / name).write_text(text)
    (app / "overhead" / "__init__.py").touch()
    port, *ports = free_ports(1 + sites)
    address = f"localhost:{port}"
    here = f'address = "{address}"\nroot-certificates = "{certificate}"\n'
    (folder / "config.toml").write_text(f'[superlink]\ndefault = "here"\n[superlink.here]\n{here}')
    secured = ("--ssl-ca-certfile", certificate, "--ssl-certfile", certificate, "--ssl-keyfile", key)
    log, tools = folder / "times.txt", python.parent
    path = f"{tools}:{os.environ['PATH']}"
    with processes(folder, FLWR_HOME=str(folder), FLWR_TELEMETRY_ENABLED="0", PATH=path) as started:
        began = time.time()
        place = ("--port", port, "--disable-runtime-dependency-installation")
        started.start("superlink", tools / "flower-superlink", *secured, *place)
        for number in range(sites):
            where = ("--superlink", address, "--root-certificates", certificate, "--port", ports[number])
            started.start(f"supernode-{number}", tools / "flower-supernode", *where)
        wait(lambda: listening(port), "a SuperLink that listens")
        config = f'rounds={rounds + 1} sites={sites} log="{log}"'
        run = started.start("run", tools / "flwr", "run", app, "here", "--run-config", config)

        def count() -> int:
            return len(log.read_text().splitlines()) if log.exists() else 0

        wait(lambda: count() > rounds // 2, "half of Flower's rounds", run)
        memory: dict[str, list[float]] = {}
        while count() <= rounds:  # a client's process lives for one message: look often
            for role, found in resident(folder, THEIRS).items():
                memory[role] = max(memory.get(role, []), found, key=sum)
            time.sleep(0.2)
    times = [float(line) for line in log.read_text().split()]
    return Measured("Flower 1.41", sites, times[0] - began, gaps(times), memory, "no backbone", {})


def listening(port: int) -> bool:
    """Say whether someone listens on the port."""
    with socket.socket() as one:
        return one.connect_ex(("localhost", port)) == 0


# -- the table ---------------------------------------------------------------------------------------------------------


def show(measured: Measured) -> None:
    """Print a row of the table."""
    ordered = sorted(measured.rounds)
    median, p90 = statistics.median(ordered), ordered[int(0.9 * (len(ordered) - 1))]
    total = sum(sum(found) for found in measured.memory.values())
    work = f"{sum(measured.work.values()):,.0f}" if measured.work else "–"
    cells = (measured.engine, measured.sites, len(ordered), f"{1000 * median:,.0f}", f"{1000 * p90:,.0f}", work)
    print(
        "|", " | ".join(map(str, (*cells, f"{measured.start:.1f}", f"{total:,.0f}", measured.loads))), "|", flush=True
    )


def show_processes(measured: Measured) -> None:
    """Print what each process takes."""
    for role, found in measured.memory.items():
        work = f"{measured.work[role]:,.1f}" if measured.work else "–"
        who = f"{measured.engine}, {measured.sites} sites | {role}"
        print(f"| {who} | {len(found)} | {statistics.mean(found):,.0f} | {work} |")


def fresh(folder: Path) -> Path:
    """Make a folder that is not there yet."""
    folder.mkdir(parents=True)
    return folder


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--flower", type=Path, help="a Python that has flwr installed, such as VENV/bin/python")
    parser.add_argument("--flower-rounds", type=int, default=10, help="Flower takes seconds a round")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that all processes are ended
    folder = (given.keep or Path(tempfile.mkdtemp())).resolve()
    done = []
    print(
        "| engine | sites | rounds | median ms | p90 ms | CPU ms a round, all processes | start s | MB, all processes "
        "| backbone loads a site |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|---|")
    try:
        for sites in given.sites:
            done.append(promptfed(fresh(folder / f"promptfed-{sites}"), sites, given.rounds))
            show(done[-1])
            if given.flower is not None:
                place, python = fresh(folder / f"flower-{sites}"), given.flower.absolute()
                done.append(flower(place, sites, given.flower_rounds, python))
                show(done[-1])
    finally:
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print("\n| | process | how many | MB each | CPU ms a round, all of them |\n|---|---|--:|--:|--:|")
    for measured in done:
        show_processes(measured)


if __name__ == "__main__":
    main()
