"""A Slurm of one node on this machine, from Debian's slurm-wlm and munge, in a folder of its own; it needs root."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
PATIENCE = 120.0
CONFIG = """
ClusterName=tiny
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
PluginDir={plugins}
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
KillWait=5
MinJobAge=300
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=1000 State=UNKNOWN
PartitionName=tiny Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing() -> str:
    """Return why there can be no Slurm here, or nothing."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if lacking:
        return f"no {lacking[0]}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "Slurm is started by root"


def _ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _until(command: list[str], text: str, environment: dict[str, str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if text in done.stdout:
            return
        assert time.monotonic() < deadline, done
        time.sleep(0.1)


@contextlib.contextmanager
def small_slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment in which sbatch and squeue speak to a Slurm that lives in `folder` as long as the block."""
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    controller, node = _ports(2)
    host = socket.gethostname().partition(".")[0]
    plugins = next(Path("/usr/lib").glob("*/slurm-wlm"))
    config = folder / "slurm.conf"
    values = {"folder": folder, "host": host, "controller": controller, "node": node, "plugins": plugins}
    config.write_text(CONFIG.format(**values, cores=os.cpu_count()))
    environment = {**os.environ, "SLURM_CONF": str(config), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]
    commands = (munge, ["slurmctld", "-D", "-c", "-f", str(config)], ["slurmd", "-D", "-c", "-f", str(config)])
    started: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "said.log").open("ab") as said:
            for command in commands:
                started.append(subprocess.Popen(command, env=environment, stdout=said, stderr=said))
                if command is munge:
                    _until(["ls", str(folder)], "munge.socket", environment)
        _until(["sinfo", "--noheader", "--format=%T"], "idle", environment)
        yield environment
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
