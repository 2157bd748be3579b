"""Accuracy over hours on the same links: the argument for small messages in one picture."""

from collections.abc import Mapping
from dataclasses import asdict

from promptfed.analysis.figures import plotting
from promptfed.analysis.figures.drawing import Drawing
from promptfed.analysis.network.timeline import Timeline
from promptfed.core.errors import PromptFedError
from promptfed.federation.clock.links import Profile


def draw(found: Mapping[str, Timeline], profile: Profile, name: str) -> Drawing:
    """Draw a line per run; the hours are spread by their logarithm, since messages differ by orders of magnitude."""
    empty = [run for run, line in found.items() if not line.points]
    if empty:
        raise PromptFedError(f"{empty[0]} was never tested on all clients, so it has no accuracy to draw.")
    curves = {run: [(hours, 100 * mean) for hours, mean in line.points] for run, line in found.items()}
    caption = (
        f"Mean accuracy of clients over the hours that the run would have taken with profile {name}: "
        f"{profile.down_mbit:g} Mbit/s down, {profile.up_mbit:g} Mbit/s up, training {profile.slowness:g} times "
        "as long as on the machine that made the run."
    )
    numbers = {"profile": asdict(profile), "runs": {run: list(points) for run, points in curves.items()}}
    return Drawing(
        "Accuracy over time", caption, numbers, plotting.times(curves, "hours", "mean accuracy of clients, %")
    )
