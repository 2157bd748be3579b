"""Testing the server's own model on other data sets, whose classes it knows by name alone: evaluate.elsewhere."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from promptfed.core.method import Method
from promptfed.data import Dataset, open_dataset
from promptfed.data.batches import Shards
from promptfed.federation.fleet import score_deployed
from promptfed.federation.loop import Loop
from promptfed.results.folder.record import Line
from promptfed.runs.planning import Plan, make_task, pool_of, task_for

JOINED = "+"


def tested_elsewhere(plan: Plan, loop: Loop) -> Line:
    """Return the accuracy on all test images of each data set that evaluate.elsewhere names.

    A run that chooses settings on validation images looks at none of them.
    """
    evaluate = plan.recipe.evaluate
    model = plan.method.deploy(loop.task, loop.server) if "elsewhere" in evaluate else {}
    if not model or evaluate["split"] == "val":
        return {}
    sets = {name: _tests(open_dataset(name)) for name in str(evaluate["elsewhere"]).split(JOINED)}
    return {"elsewhere": {name: _accuracy(plan, dataset, plan.method, model) for name, dataset in sets.items()}}


def _tests(dataset: Dataset) -> Dataset:
    """Return a data set's test images alone."""
    rows = np.flatnonzero(dataset.test)
    part = {name: getattr(dataset, name)[rows] for name in ("images", "labels", "test", "domains")}
    return replace(dataset, **part, val=None, used=None)


def _accuracy(plan: Plan, dataset: Dataset, method: Method, model: Mapping[str, Any]) -> float:
    task = make_task(plan.recipe, dataset.sides, dataset.classes, plan.device)
    mean, std = task.backbone.statistics or (dataset.mean, dataset.std)
    pool = pool_of(replace(plan, dataset=replace(dataset, mean=mean, std=std), task=task))
    rows, seen = [np.arange(len(dataset.labels))], task_for(method, task)
    shards = Shards(pool, rows, rows, plan.recipe.seed, method.draws(seen))
    return score_deployed(method, seen, dict(model), shards, (), plan.ranks)["all"]
