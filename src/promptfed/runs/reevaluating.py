"""Evaluating a finished run with other options: what was trained is taken over, not trained again."""

import shutil
from pathlib import Path

from promptfed.core.errors import PromptFedError
from promptfed.results.folder import names
from promptfed.results.folder.record import Record
from promptfed.runs import config
from promptfed.runs.environment import environment, precision
from promptfed.runs.execution import Result, execute
from promptfed.runs.planning import digests, make_loop, prepare
from promptfed.runs.recipe import Recipe, first_difference


def reevaluate(source: Path, recipe: Recipe, folder: Path) -> Result:
    """Evaluate the finished run in `source` as `recipe` says, in a new folder; only options of testing may differ."""
    stored = config.load_one(str(source / names.RECIPE))
    theirs, ours = config.training(stored), config.training(recipe)
    if theirs.hash != ours.hash or stored.rounds != recipe.rounds:
        raise PromptFedError(
            f"{source} was trained with {first_difference(theirs, ours)}; it cannot be evaluated as that."
        )
    plan, old = prepare(recipe, None, source / names.PARTITION), Record(source)
    sources = digests(plan)
    state = old.state(stored.hash, plan.partition.hash, sources)
    record = Record(folder)
    loop = make_loop(plan, record)
    if state is None or not (source / names.SUMMARY).is_file():
        raise PromptFedError(f"{source} is not finished; resume it first.")
    old.read(state["round"])
    record.begin(recipe.to_toml(), environment(plan.device), own=recipe.own_images)
    plan.partition.save(folder / names.PARTITION, plan.dataset)
    shutil.copytree(old.checkpoint, record.checkpoint, dirs_exist_ok=True)
    (record.checkpoint / names.STATE).unlink()  # it is the other recipe's
    for name in loop.method.traits.keeps:
        shutil.copytree(old.kept(name, 0).parent, record.kept(name, 0).parent)
    changed = {key for key in recipe.method if recipe.method[key] != stored.method.get(key)}
    same = changed <= set(loop.method.traits.adapting)  # the models are adapted after the rounds, not in them
    for line in old.rounds:
        record.append(line | ({} if same else dict.fromkeys(("loss", "received", "trained", "local", "deployed"))))
    loop.restore(state)
    if not same:
        record.rewind(loop.finished - 1)
        with precision(str(recipe.fleet["precision"])):
            record.append(loop.reevaluated(old.rounds[-1]))
    loop.save(recipe.hash, plan.partition.hash, sources)
    return execute(plan, loop)
