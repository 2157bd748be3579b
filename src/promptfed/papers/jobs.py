"""Run a table's jobs one by one, or in parallel in worker processes; each run has its own folder.

Finished runs are kept and stopped ones are resumed. Of jobs with the same training only the first is trained; the
others evaluate its models. A failure ends one job, not the others, and is reported at once, as the rest may take hours.
"""

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.core.progress import about_left, bar
from promptfed.papers.claims import Claims
from promptfed.papers.comparison import with_quality
from promptfed.papers.timing import gpu_load, timed
from promptfed.results.folder import names
from promptfed.results.folder.parts import read_summary
from promptfed.runs import config
from promptfed.runs.recipe import Recipe, first_difference

STOPPED = "Stopped; run the same command again to resume."


@dataclass(frozen=True)
class Job:
    """One run: its label, its recipe and its folder."""

    label: str
    recipe: Recipe
    folder: Path
    twins: tuple[Path, ...] = ()  # runs with the same training and another evaluation


@dataclass(frozen=True)
class JobResult:
    """The result of a job: its summary, or a sentence about what went wrong; neither if it was not run."""

    summary: Mapping[str, Any] | None = None
    problem: str = ""
    elsewhere: bool = False  # it came from another process that works on the same table


OnProgress = Callable[[Mapping[Path, JobResult]], None]


def execute(
    jobs: Mapping[str, list[Job]],
    wanted: Sequence[str],
    out: Path,
    *,
    merge: Sequence[Path] = (),
    workers: int = 1,
    claims: Claims | None = None,
    keep: OnProgress | None = None,
) -> dict[Path, JobResult]:
    """Return the results of the jobs of all cells by folder; the folders are in `out`.

    Jobs of `wanted` cells are run unless they are finished there or in a folder to merge; the others are only looked
    up. With `claims`, other processes may work on the same folder: each run is made by one of them.
    `keep` gets the results so far: before the first run, if any job is already finished, and after every run.
    """
    done = {
        job.folder: JobResult(_found(job, out, merge), claims.problem(job.folder) if claims else "")
        for some in jobs.values()
        for job in some
    }
    twins = _with_twins(jobs) if wanted else {}
    asked = {job.folder: job for name in wanted for job in twins.get(name, [])}  # cells may share the runs of a grid
    left = [job for job in asked.values() if done[job.folder].summary is None]
    for job in left:
        refuse_foreign(job)
    if not left:
        return done
    workers = min(workers, len(left))
    sample = gpu_load if any(job.recipe.device != "cpu" for job in left) else None
    if keep is not None and any(one.summary is not None for one in done.values()):
        keep(done)
    last_problem = ""
    with timed(out, workers, sample) as count:
        for job, result in _results(left, workers, claims):
            done[job.folder] = result
            if result.summary is not None and not result.elsewhere:
                count()
            elif (
                result.problem and result.problem != last_problem
            ):  # a problem that ends all remaining jobs is reported once
                last_problem = result.problem
                sys.stderr.write(f"{job.label}: {last_problem}\n")
            if keep is not None:
                keep(done)
    return done


# -- what need not be run -------------------------------------------------------------------------------------------


def _with_twins(jobs: Mapping[str, list[Job]]) -> dict[str, list[Job]]:
    """Note in every job which others have the same training, so that only the first of them is trained."""
    trained: dict[str, list[Path]] = {}
    for job in (job for some in jobs.values() for job in some):
        trained.setdefault(config.training(job.recipe).hash, []).append(job.folder)
    return {
        name: [
            replace(job, twins=tuple(one for one in trained[config.training(job.recipe).hash] if one != job.folder))
            for job in some
        ]
        for name, some in jobs.items()
    }


def _found(job: Job, out: Path, merge: Sequence[Path]) -> Mapping[str, Any] | None:
    """Return the summary of the job's run if it is finished in `out` or in one of the folders to merge."""
    for place in (out, *merge):
        summary = finished(replace(job, folder=place / job.folder.relative_to(out)))
        if summary is not None:
            return summary
    return None


def finished(job: Job) -> Mapping[str, Any] | None:
    """Return the summary of the job's run if it is finished and has the same recipe."""
    if not (job.folder / names.SUMMARY).is_file():
        return None
    summary = read_summary(job.folder)
    same = summary["recipe_hash"] == job.recipe.hash and summary["rounds"] == job.recipe.rounds
    return with_quality(summary, job.folder) if same else None


def refuse_foreign(job: Job) -> None:
    """Refuse a folder with the run of another recipe before anything runs; asking for more rounds is fine."""
    path = job.folder / names.RECIPE
    if not path.is_file():
        return
    (stored,) = config.load(str(path))
    if stored.hash != job.recipe.hash or stored.rounds > job.recipe.rounds:
        odd = first_difference(stored, job.recipe)
        raise PromptFedError(f"{job.folder} was run with {odd}; choose another --out.")


def _same_training(job: Job, twin: Path) -> bool:
    """Return whether the folder holds a finished run with the job's training, its models included."""
    if not (twin / names.SUMMARY).is_file() or not (twin / names.CHECKPOINT / names.STATE).is_file():
        return False
    (stored,) = config.load(str(twin / names.RECIPE))
    return stored.rounds == job.recipe.rounds and config.training(stored).hash == config.training(job.recipe).hash


# -- running --------------------------------------------------------------------------------------------------------


def run_job(job: Job, workers: int = 1) -> JobResult:
    """Start or resume one run, beside those of other workers; a failure becomes a sentence, and the others can run."""
    import torch

    from promptfed.runs import execution, memory, reevaluating, resuming

    (job.folder / names.TRACEBACK).unlink(missing_ok=True)
    try:
        with memory.enough(job.recipe):
            if (job.folder / names.RECIPE).is_file():
                return JobResult(resuming.resume(job.folder, job.recipe).summary)
            if twin := next(filter(partial(_same_training, job), job.twins), None):
                return JobResult(reevaluating.reevaluate(twin, job.recipe, job.folder).summary)
            return JobResult(execution.start(job.recipe, job.folder).summary)
    except memory.NoRoomError as error:
        return JobResult(problem=error.among(workers))
    except PromptFedError as error:
        return JobResult(problem=str(error))
    except OSError as error:
        return JobResult(problem=f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.")
    except Exception as error:  # a bug in one method, or a full GPU, must not cost the rest of the table
        sentence = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if job.folder.is_dir():
            (job.folder / names.TRACEBACK).write_text(traceback.format_exc(), encoding="utf-8")
            sentence += f"; {job.folder / names.TRACEBACK} says where."
        return JobResult(problem=sentence)
    finally:
        gc.collect()
        torch.cuda.empty_cache()  # other workers share the GPU


def _results(jobs: Sequence[Job], workers: int, claims: Claims | None) -> Iterator[tuple[Job, JobResult]]:
    if claims is not None:
        return _together(jobs, claims)
    return _one_by_one(jobs) if workers < 2 else _side_by_side(jobs, workers)


def _together(jobs: Sequence[Job], claims: Claims) -> Iterator[tuple[Job, JobResult]]:
    """Run what no other process runs, one by one, and wait for what the others do."""
    left = {job.folder: job for job in jobs}
    with bar("table", len(jobs)) as advance:
        while left:
            known = len(left)
            for job in list(left.values()):
                result = _claimed(job, claims)
                if result is not None:
                    del left[job.folder]
                    advance(1, job.label)
                    yield job, result
            if len(left) == known:
                time.sleep(claims.beat / 5)


def _claimed(job: Job, claims: Claims) -> JobResult | None:
    """Run a job under a claim; return its result, whoever made it, or None while another process works on it."""
    if (summary := finished(job)) is not None:
        return JobResult(summary, elsewhere=True)
    if problem := claims.problem(job.folder):
        return JobResult(problem=problem, elsewhere=True)
    if any(claims.working(twin) for twin in job.twins):  # once that is trained, this only needs evaluation
        return None
    with claims.taken(job.folder) as mine:
        if not mine:
            return None
        if (summary := finished(job)) is not None:  # by the process that held the claim a moment ago
            return JobResult(summary, elsewhere=True)
        result = run_job(job)
        if result.problem:
            claims.fail(job.folder, result.problem)
        return result


def _one_by_one(jobs: Sequence[Job]) -> Iterator[tuple[Job, JobResult]]:
    """Run the jobs in this process. Each shows a progress bar of its rounds, below a line with the table's progress."""
    began = time.monotonic()
    for number, job in enumerate(jobs):
        if sys.stderr.isatty():
            left = (time.monotonic() - began) / number * (len(jobs) - number) if number else None
            sys.stderr.write(f"[{number + 1}/{len(jobs)}] {job.label}{about_left(left)}\n")
        yield job, run_job(job)


def _side_by_side(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, JobResult]]:
    """Run the jobs in `workers` processes, because a single run does not keep a GPU busy."""
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    left, running, waiting = {job.folder: job for job in jobs}, dict[Future[JobResult], Job](), list(jobs)
    with (
        bar("table", len(jobs)) as advance,
        ProcessPoolExecutor(workers, context, _enter_worker, (workers,)) as processes,
    ):
        try:
            while left:
                # jobs do not wait inside the pool, where Ctrl-C could not reach them
                while len(running) < workers and (job := _next(waiting, running.values())):
                    waiting.remove(job)
                    running[processes.submit(_work_interruptibly, job, workers)] = job
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job, result = running.pop(future), future.result()
                    if result.problem == STOPPED:  # Ctrl-C reached the worker; here it may still be on its way
                        raise KeyboardInterrupt
                    del left[job.folder]
                    advance(1, job.label)
                    yield job, result
        except BrokenProcessPool:
            sentence = (
                f"A worker process died, possibly out of memory that {workers} workers share; run the same command "
                "again to resume, with fewer --workers if it dies again."
            )
            yield from ((job, JobResult(problem=sentence)) for job in left.values())
        except KeyboardInterrupt:
            for child in set(multiprocessing.active_children()) - others:
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGINT)  # its run commits the finished rounds
            raise


def _next(waiting: Sequence[Job], running: Iterable[Job]) -> Job | None:
    """Return the first job whose training is not running already: once that is done, it only needs evaluation."""
    busy = {job.folder for job in running}
    return next((job for job in waiting if busy.isdisjoint(job.twins)), None)


def _enter_worker(workers: int) -> None:
    """Prepare a worker: give it its share of the cores, hide its progress bars, and end it when the parent ends."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent.sentinel,), daemon=True).start()


def _leave_with(sentinel: int) -> None:
    """End this process as soon as the parent is gone, since its results would be lost."""
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _work_interruptibly(job: Job, workers: int) -> JobResult:
    """Run a job so that Ctrl-C stops the run but not its worker."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run_job(job, workers)
    except KeyboardInterrupt:
        return JobResult(problem=STOPPED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
