"""The head of summary.json: what was run, and what it cost in privacy."""

from promptfed.federation.examples_privacy import spent_on_examples
from promptfed.federation.loop import Loop
from promptfed.results.folder.record import Line
from promptfed.runs.recipe import Recipe


def summary_head(recipe: Recipe, partition_hash: str, device: str, source: str | None = None) -> Line:
    """Return what was run, where, and on which images; `source` stands for them where they are not the recipe's."""
    return {
        "method": recipe.method["name"],
        "dataset": source or recipe.data["name"],
        "partition": source or recipe.partition["name"],
        "backbone": recipe.backbone["name"],
        "seed": recipe.seed,
        "clients": recipe.clients,
        "rounds": recipe.rounds,
        "device": device,
        "recipe_hash": recipe.hash,
        "partition_hash": partition_hash,
    }


def privacy_spent(loop: Loop, asked: int, who: str = "client") -> Line:
    """Return what every client has spent, and why the run ended if its budget did not allow all rounds asked for."""
    accountant, rounds, everyone = loop.guards.accountant, loop.record.rounds, loop.everyone.tolist()
    examples = spent_on_examples(loop.method, [line["clients"] for line in rounds], everyone)
    told: Line = {"examples": examples} if examples else {}
    if accountant is None:
        return told
    epsilon = accountant.spent([line["clients"] for line in rounds], everyone)
    spent: Line = told | {"privacy": {"epsilon": epsilon, "delta": accountant.delta}}
    if loop.settings.rounds == asked:
        return spent
    return spent | {
        "stopped": f"Stopped after round {loop.settings.rounds} of {asked}: one more would take a {who} beyond "
        f"guards.budget={accountant.budget:g}, from ε={max(epsilon):.3g} at δ={accountant.delta:g}."
    }


def stopped_early(loop: Loop) -> Line:
    """Return which round was best on validation images, with its scores; and why the run ended, if it ended early."""
    if loop.stopping is None:
        return {}
    last, best = loop.record.rounds[-1], loop.stopping.best(loop.record.rounds)
    if best is None:
        return {}
    found: Line = {"validation": {"round": best["round"]} | {key: best[key] for key in ("validation", "received")}}
    if last["round"] >= loop.settings.total:
        return found
    return found | {
        "stopped": f"Stopped after round {last['round']} of {loop.settings.rounds}: validation images gained nothing "
        f"since round {best['round']} (stop.patience={loop.stopping.patience}); the models are those of round "
        f"{last['round']}."
    }
