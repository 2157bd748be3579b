"""A table over a Slurm cluster: an array of tasks, through submitit, that work on one shared folder.

Every task works as with --on shared, so each run is made by one of them. A task that is preempted or out of time is
queued again and goes on from its runs' last checkpoints.
"""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.core.progress import bar
from promptfed.papers.claims import Claims
from promptfed.papers.plan import TablePlan, plan_table
from promptfed.papers.reproduce import find_table, reproduce
from promptfed.results.folder import names
from promptfed.runs.cells import SUFFIX, PaperTable

MINUTES = 24 * 60  # of a task, unless --slurm time=… says otherwise
POLL = 5.0  # seconds between two looks at the queue
NEVER = 1_000_000  # times a task may be queued again
OWN = ("array", "output", "error", "job-name", "wrap", "signal", "open-mode")  # of sbatch, set here


@dataclass(frozen=True)
class Work:
    """What a task does; submitit stores it and, when the task is queued again, starts it again."""

    source: str
    plan: TablePlan

    def __call__(self) -> None:
        """Work on the table until all of it is done."""
        with stopped_by_term():
            reproduce(find_table(self.source), replace(self.plan, on="shared", workers=1))

    def checkpoint(self) -> Any:
        """Return what goes on with the work: the same, since runs have checkpoints of their own."""
        return _submitit().helpers.DelayedSubmission(self)


@contextmanager
def stopped_by_term() -> Iterator[None]:
    """Let SIGTERM stop the run at work as Ctrl-C does: its finished rounds are kept, and its claim is removed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def submit(source: str, plan: TablePlan, options: Sequence[str]) -> str:
    """Put an array of `plan.workers` tasks into Slurm's queue and return its number."""
    wanted = read_options(options)
    plan_table(find_table(source), plan)  # a mistake is told now, not by every task
    if shutil.which("sbatch") is None:
        raise PromptFedError("There is no Slurm here: sbatch is not on the PATH. Leave out --on slurm.")
    submitit = _submitit()
    Claims(plan.out).forgive()
    executor = submitit.SlurmExecutor(folder=plan.out / "slurm", max_num_timeout=NEVER)
    known = executor._valid_parameters()
    named = {key.replace("-", "_"): value for key, value in wanted.items()}
    executor.update_parameters(
        job_name="promptfed",
        **{"time": MINUTES} | {key: value for key, value in named.items() if key in known},
        array_parallelism=plan.workers,
        additional_parameters={key: value for key, value in wanted.items() if key.replace("-", "_") not in known},
    )
    absolute = replace(plan, out=plan.out.resolve(), merge=tuple(one.resolve() for one in plan.merge))
    work = Work(str(Path(source).resolve()) if source.endswith(SUFFIX) else source, absolute)
    try:
        with executor.batch():
            jobs = [executor.submit(work) for _ in range(plan.workers)]
    except (submitit.core.utils.FailedJobError, subprocess.CalledProcessError, OSError) as error:
        raise PromptFedError(f"Slurm refused the job: {' '.join(str(error).split())[-300:]}") from error
    return str(jobs[0].job_id).partition("_")[0]


def read_options(options: Sequence[str]) -> dict[str, Any]:
    """Read options of sbatch of the form KEY=VALUE; those that this module sets itself are refused."""
    found: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise PromptFedError(
                f'--slurm takes an option of sbatch as KEY=VALUE, such as partition=gpu, not "{option}".'
            )
        if key in OWN:
            raise PromptFedError(f"--slurm {key}=… is set by promptfed itself; leave it out.")
        found[key] = int(value) if value.isdigit() else value
    if not isinstance(found.get("time", 1), int):
        raise PromptFedError(f"--slurm time is a whole number of minutes, not {found['time']!r}.")
    return found


def wait(job: str, table: PaperTable, plan: TablePlan) -> None:
    """Wait until Slurm has no task of the array left; show how many runs are finished meanwhile."""
    planned = plan_table(table, plan)
    folders = {one.folder for some in planned.jobs.values() for one in some}
    folders |= {one.folder for some in planned.trials.values() for _, one in some}
    ended: set[Path] = set()
    with bar("table", len(folders)) as advance:
        while True:
            queued = _queued(job)
            now = {folder for folder in folders if (folder / names.SUMMARY).is_file()}
            if now - ended:
                advance(len(now - ended), f"{queued} tasks in the queue")
            ended = now
            if not queued:
                return
            time.sleep(POLL)


def _queued(job: str) -> int:
    """Return how many tasks of an array Slurm still has; it forgets a job some minutes after its end."""
    said = subprocess.run(
        ["squeue", "--noheader", "--array", "--jobs", job, "--format=%T"], capture_output=True, text=True, check=False
    )
    if said.returncode and "Invalid job id" not in said.stderr:
        return 1  # the controller does not answer for a moment
    return len(said.stdout.split())


def _submitit() -> Any:
    try:
        return import_module("submitit")
    except ImportError:
        raise PromptFedError('Slurm needs submitit: pip install "promptfed[cluster]".') from None
