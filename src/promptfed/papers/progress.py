"""What runs where: the state of every run below a folder, from its files and claims."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.papers.claims import FOLDER, Claims
from promptfed.results.folder import names
from promptfed.results.folder.parts import parse_recipe, read_text

STATES = ("running", "failed", "stopped", "finished")


@dataclass(frozen=True)
class RunState:
    """One run: how it stands, how far it is, who works on it and how long they have been silent, or its problem."""

    run: str
    state: str
    rounds: int
    planned: int | None
    where: str = ""
    silent: float | None = None
    problem: str = ""


def look(out: Path) -> list[RunState]:
    """Return the state of every run of a table below `out`: those that run first, then what needs a look."""
    if not out.is_dir():
        raise PromptFedError(f"There is no {out}; give the --out of promptfed reproduce.")
    claims = Claims(out) if (out / FOLDER).is_dir() else None
    found = [_state(path.parent, out, claims) for path in out.rglob(names.RECIPE)]
    if not found:
        raise PromptFedError(f"No run has begun below {out}.")
    if claims is not None:
        claims.close()
    return sorted(found, key=lambda one: (STATES.index(one.state), one.run))


def _state(folder: Path, out: Path, claims: Claims | None) -> RunState:
    run = str(folder.relative_to(out))
    planned = _planned(folder)
    done = _rounds(folder)
    if (folder / names.SUMMARY).is_file():
        return RunState(run, "finished", done, planned)
    claim = claims.last(folder) if claims else None
    if claims and claim and claims.working(folder):
        return RunState(run, "running", done, planned, str(claim.worker or ""), claim.silent)
    if claims and (problem := claims.problem(folder)):
        return RunState(run, "failed", done, planned, problem=problem)
    return RunState(run, "stopped", done, planned)


def _planned(folder: Path) -> int | None:
    recipe = parse_recipe(folder / names.RECIPE, read_text(folder / names.RECIPE))
    rounds, joining = recipe.get("rounds"), recipe.get("join_rounds") if recipe.get("newcomers") else 0
    return rounds + joining if isinstance(rounds, int) and isinstance(joining, int) else None


def _rounds(folder: Path) -> int:
    """Return how many rounds a run has recorded; a last line without its line break is still being written."""
    path = folder / names.ROUNDS
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def counts(states: Sequence[RunState]) -> dict[str, int]:
    """Return how many runs are in each state."""
    return {state: sum(one.state == state for one in states) for state in STATES}
