"""What a noisy answer costs a site: counted before it leaves, in its run and in all runs together.

HOME/runs/RUN/answers.json    how many noisy answers it has given in the run
HOME/ledger.jsonl             a line for each, of all runs
"""

import json
from pathlib import Path

from promptfed.core.files import write_json
from promptfed.federation.guards.accountant import Accountant, epsilon
from promptfed.sites import terms
from promptfed.sites.client_run import ClientRun
from promptfed.sites.ledger import Ledger
from promptfed.sites.wire import Header, Refused

FILE = "answers.json"
DELTA = 1e-5  # of ε for life, unless the owner's terms name another


def protection(run: ClientRun) -> Header:
    """Return what protects the answers of a run, as its audit log says it."""
    guards = run.recipe.guards
    return {key: guards[key] for key in ("clip", "noise", "place", "secure") if guards.get(key)}


def spend(run: ClientRun, home: Path, folder: Path, head: Header) -> Header:
    """Count one more noisy answer, and refuse it if that is beyond a budget; return what all of them cost.

    Nothing is counted, and nothing returned, where the site adds no noise.
    """
    accountant, path = run.guards.accountant, folder / FILE
    if accountant is None or accountant.place != "local":
        return {}
    given = json.loads(path.read_text(encoding="utf-8")) if path.exists() else 0
    if accountant.budget and given >= accountant.most(run.client):
        raise Refused(f"its privacy budget allows no more than {given} answers")
    life, delta = _charge(accountant, home, head)
    write_json(path, given + 1)
    spent = epsilon(accountant.noise, accountant.delta, given + 1)
    return {"delta": accountant.delta, "epsilon": spent, "epsilon_for_life": life, "delta_for_life": delta}


def delta_for_life(home: Path) -> float:
    """Return the δ at which a site counts all its runs: never the recipe's, a large one would make ε look small."""
    own = terms.of_site(home).guards
    return own.delta if own.delta < 1 else DELTA


def _charge(accountant: Accountant, home: Path, head: Header) -> tuple[float, float]:
    """Enter a noisy answer in the ledger of all runs, if the owner's budget for life allows it; return ε and δ."""
    ledger, own, delta = Ledger(home), terms.of_site(home).guards, delta_for_life(home)
    spent = ledger.spent(delta, accountant.noise)
    if own.epsilon_for_life and spent > own.epsilon_for_life:
        raise Refused(
            f"its owner's terms allow ε={own.epsilon_for_life:g} for life, and one more answer would make it "
            f"{spent:.3g} at δ={delta:g}"
        )
    ledger.charge(accountant.noise, head["run"], head["round"])
    return spent, delta
