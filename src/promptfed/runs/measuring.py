"""Measures beyond accuracy: of a run's final models, from what they answered in the last test, and of its memory."""

import torch

from promptfed.federation.loop import Loop
from promptfed.results.folder.predictions import write_predictions
from promptfed.results.folder.record import Line
from promptfed.results.metrics.measures import measure
from promptfed.runs.recipe import Recipe


def measured(loop: Loop, recipe: Recipe) -> Line:
    """Write the final models' answers to the run folder, if there are any, and return the summary's `metrics`."""
    found = loop.predictions()
    if found is None or not len(found) or not loop.ranks.leads:
        return {}
    write_predictions(loop.record.folder, found)
    return {"metrics": measure(found, recipe.seed, str(recipe.evaluate["metric"]))}


def peak_memory(device: torch.device) -> Line:
    """Return the most memory of a GPU that this process had at once since the run was prepared; nothing on a CPU."""
    return {"peak_memory_bytes": torch.cuda.max_memory_allocated(device)} if device.type == "cuda" else {}
