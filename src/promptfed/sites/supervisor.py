"""Supervises runs: submits job after job to the server until a run is finished."""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed, write_json
from promptfed.results.folder import names
from promptfed.results.folder.parts import read_summary
from promptfed.sites.admin_session import WAIT_SECONDS, AdminSession
from promptfed.sites.flare_workspace import CONDUCTOR, SITE
from promptfed.sites.pid_file import running, watching
from promptfed.sites.settings import Federation, read_federation
from promptfed.sites.watchdog import Say

WATCH_SECONDS = 0.5
PRESENCE_SECONDS = 3.0  # between two looks at who is connected and at work
START_SECONDS = 40.0  # in which a submitted job must have begun; twice, three times as long for those after it
MAX_FRUITLESS_JOBS = 5  # jobs in a row that may end without a finished round


class Supervisor:
    """Supervises one run: submits a job, watches it, and submits the next one if it was lost."""

    def __init__(
        self,
        home: Path,
        folder: Path,
        say: Say,
        show_round: Callable[[dict[str, Any]], None],
        wait: float = WAIT_SECONDS,
    ) -> None:
        self.home, self.folder, self.say, self.show_round = home.resolve(), folder.resolve(), say, show_round
        self.federation: Federation = read_federation(home / "fed.toml")
        self.session = AdminSession(home, say, wait)
        self._lines = 0

    def run(self) -> dict[str, Any]:
        """Return the summary once the run is finished."""
        self.show()
        with watching(self.folder / names.WINDOW), contextlib.closing(self.session):
            return self._run_jobs()

    def _run_jobs(self) -> dict[str, Any]:
        fruitless = 0
        while True:
            if (found := self._outcome()) is not None:
                return found
            before = self._lines
            if not self._at_work():
                self._submit(START_SECONDS * (1 + fruitless))
            self._watch()
            self.show()
            fruitless = 0 if self._lines > before else fruitless + 1
            if fruitless == MAX_FRUITLESS_JOBS:
                raise PromptFedError(
                    f"{MAX_FRUITLESS_JOBS} jobs in a row finished no round; see {self.home / 'server.log'}."
                )

    def _outcome(self) -> dict[str, Any] | None:
        failed = self.folder / names.FAILED
        if failed.exists():
            reason = json.loads(failed.read_text(encoding="utf-8"))["reason"]
            failed.replace(self.folder / names.FAILED_SHOWN)
            raise PromptFedError(reason)
        return read_summary(self.folder) if (self.folder / names.SUMMARY).exists() else None

    def show(self) -> None:
        """Show the rounds that have finished since the last call."""
        path = self.folder / names.ROUNDS
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines[self._lines :]:
            with contextlib.suppress(ValueError):  # the last line may still be being written
                self.show_round(unsealed(line))
                self._lines += 1

    def _at_work(self) -> int | None:
        """Return the process that conducts the run, if there is one."""
        return running(self.folder / names.LOCK)

    def _submit(self, seconds: float) -> None:
        """Wait until enough sites are connected, then submit the next job and give it `seconds` to begin."""
        told = False
        while missing := self._missing():
            if not told:
                self.say(f"Waiting for {', '.join(sorted(missing))}.")
                told = True
            time.sleep(WATCH_SECONDS)
        self._forget_job()
        (self.folder / names.FAILED_SHOWN).unlink(missing_ok=True)
        job = self.session.command(lambda session: session.submit_job(str(self._job_folder())))
        write_json(self.folder / names.JOB, {"job": job})
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self._at_work() and not self._over():
            time.sleep(0.1)

    def _missing(self) -> frozenset[str]:
        """Return the missing sites: the first job needs all but the newcomers, later ones as many as a round.

        A job waits for newcomers itself, once their rounds have come.
        """
        presence, founders = self.session.presence(), self._founders()
        there = presence.connected if presence is not None else frozenset[str]()
        missing = frozenset(founders) - there
        if missing and (self.folder / names.SITES).exists() and len(there) >= self._wanted():
            return frozenset()
        return missing

    def _founders(self) -> tuple[str, ...]:
        known = json.loads((self.folder / names.FEDERATION).read_text(encoding="utf-8"))
        return self.federation.sites[: len(self.federation.sites) - known.get("newcomers", 0)]

    def _wanted(self) -> int:
        """Return how many sites a job needs: all for the first, then as many as a round."""
        founders = len(self._founders())
        return min(self.federation.needed, founders) if (self.folder / names.SITES).exists() else founders

    def _over(self) -> bool:
        return (self.folder / names.FAILED).exists() or (self.folder / names.SUMMARY).exists()

    def _job_folder(self) -> Path:
        """Write the job: which of our classes run where, and with what."""
        folder = self.folder / names.JOB_FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        name = self.folder.name
        config = folder / "app" / "config"
        config.mkdir(parents=True)
        meta = {
            "name": name,
            "resource_spec": {},
            "min_clients": self._wanted(),
            "deploy_map": {"app": ["@ALL"]},
        }
        given = {"folder": str(self.folder.resolve()), "federation": str((self.home / "fed.toml").resolve())}
        server = {
            "format_version": 2,
            "server": {"heart_beat_timeout": 600, "task_request_interval": 0.02},
            "task_data_filters": [],
            "task_result_filters": [],
            "components": [],
            "workflows": [{"id": "conductor", "path": CONDUCTOR, "args": given}],
        }
        client = {
            "format_version": 2,
            "executors": [{"tasks": ["work"], "executor": {"path": SITE, "args": {}}}],
            "task_data_filters": [],
            "task_result_filters": [],
            "components": [],
        }
        write_json(folder / "meta.json", meta)
        write_json(config / "config_fed_server.json", server)
        write_json(config / "config_fed_client.json", client)
        return folder

    def _watch(self) -> None:
        """Return once the job is no longer running; end it if a site is back that does not belong to it."""
        looked = absent = 0.0
        began, lines = time.monotonic(), self._lines
        while self._at_work():
            self.show()
            time.sleep(WATCH_SECONDS)
            now = time.monotonic()
            if now - looked < PRESENCE_SECONDS or now - began < 2 * PRESENCE_SECONDS:
                continue
            looked = now
            presence = self.session.presence(patient=False)
            if presence is None:
                if self._lines == lines:  # rounds may be finished without us
                    self.session.require_answer()
                lines = self._lines
                continue
            idle = presence.idle
            absent = absent + 1 if idle else 0
            if absent >= 2 and self._at_work() and not self._over():
                self.say(f"{', '.join(sorted(idle))} is back; the run continues in a new job.")
                self._end_job()

    def _forget_job(self) -> None:
        """Tell the server to end the last job, whatever state it believes the job is in."""
        path = self.folder / names.JOB
        if path.exists():
            job = json.loads(path.read_text(encoding="utf-8"))["job"]
            with contextlib.suppress(PromptFedError):
                self.session.command(lambda session: session.abort_job(job), patient=False)

    def _end_job(self) -> None:
        """End the running job: through the server, or, if that has lost track of it, through its process."""
        self._forget_job()
        ends = time.monotonic() + 15
        while self._at_work() and time.monotonic() < ends:
            time.sleep(0.1)
        if process := self._at_work():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            time.sleep(WATCH_SECONDS)
