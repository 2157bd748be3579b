"""The admin session with the coordinator's server: every call has a deadline, and a lost session is reopened."""

import contextlib
import io
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptfed.core.errors import PromptFedError
from promptfed.sites.flare_workspace import require_flare
from promptfed.sites.provisioning import ADMIN
from promptfed.sites.watchdog import Say

RETRY_SECONDS = 1.0  # before a server that does not answer is asked again
LOGIN_SECONDS = 10.0
CALL_SECONDS = 60.0  # the longest that one call may take, whatever the server does
WAIT_SECONDS = 300.0  # how long a server may be silent before a run gives up, unless a person says otherwise


class ServerSilent(PromptFedError):  # noqa: N818  (it is read as: the server is silent)
    """The server has not answered for too long."""


@dataclass(frozen=True)
class Presence:
    """The connected sites, and those of them that have no job."""

    connected: frozenset[str]
    idle: frozenset[str]


def connected(home: Path) -> frozenset[str] | None:
    """Return the sites that are connected to the server; None if it does not answer."""
    session = AdminSession(home)
    try:
        presence = session.presence(patient=False)
    finally:
        session.close()
    return None if presence is None else presence.connected


class AdminSession:
    """The admin session with the server, reopened whenever it is lost."""

    def __init__(self, home: Path, say: Say = lambda sentence: None, wait: float = WAIT_SECONDS) -> None:
        self.home, self.say, self.wait = home, say, wait
        self._session: Any = None
        self._trouble = ""
        self._answered = time.monotonic()
        logging.getLogger().addHandler(logging.NullHandler())  # else every lost connection fills the screen

    def presence(self, patient: bool = True) -> Presence | None:
        """Return who is connected and who is idle; None if the server does not answer and `patient` is false."""

        def look(session: Any) -> Presence:
            there = {client.name for client in session.get_system_info().client_info}
            entries = session.get_client_job_status() if there else []
            # one that has just died is on the list for a while, but says nothing
            idle = {str(entry["client_name"]) for entry in entries or () if entry.get("status") == "no_jobs"}
            return Presence(frozenset(there), frozenset(idle))

        found: Presence | None = self.command(look, patient=patient)
        return found

    def command(self, work: Callable[[Any], Any], patient: bool = True) -> Any:
        """Do something with the session; while the server does not answer, wait for it, or return None."""
        require_flare()
        from nvflare.fuel.flare_api import api_spec

        hopeless = (
            api_spec.AuthenticationError,
            api_spec.AuthorizationError,
            api_spec.InvalidArgumentError,
            api_spec.InvalidJobDefinition,
        )
        if patient:
            self._answered = time.monotonic()
        while True:
            try:
                found = _within(CALL_SECONDS, lambda: work(self._opened()))
            except hopeless as error:
                raise PromptFedError(f"The server refused: {error}.") from error
            except Exception as error:  # the session raises many other kinds, all of which mean: not now
                self.close()
                if not patient:
                    return None
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    self.say(f"Waiting for the server: {error}.")
                self.require_answer()
                time.sleep(RETRY_SECONDS)
            else:
                self._answered = time.monotonic()
                return found

    def require_answer(self) -> None:
        """Give up if the server has been silent for too long."""
        if time.monotonic() - self._answered > self.wait:
            raise ServerSilent(
                f"The server has not answered for {self.wait:g} seconds; is it running (promptfed sites start "
                f"--federation {self.home}), and is its admin_port free of other programs?"
            )

    def close(self) -> None:
        """Leave."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):
                _within(LOGIN_SECONDS, session.close)

    def _opened(self) -> Any:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        if self._session is None:
            admin = str((self.home / "kits" / "admin").resolve())
            with contextlib.redirect_stdout(io.StringIO()):  # it prints that it connects
                self._session = new_secure_session(ADMIN, admin, timeout=LOGIN_SECONDS)
        return self._session


def _within(seconds: float, work: Callable[[], Any]) -> Any:
    """Return what `work` returns; TimeoutError if it takes too long, and then nobody waits for it any more."""
    done: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def call() -> None:
        try:
            done.put((work(), None))
        except Exception as error:
            done.put((None, error))

    threading.Thread(target=call, daemon=True).start()
    try:
        found, error = done.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"it gave no answer within {seconds:g} seconds") from None
    if error is not None:
        raise error
    return found
