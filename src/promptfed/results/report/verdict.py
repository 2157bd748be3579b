"""The report's first line: should these sites federate? In words with numbers, from runs on the same photographs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from promptfed.results.folder.reader import RunFolder
from promptfed.results.report.groups import RunGroup, Setting
from promptfed.results.report.table import human_bytes, percent

SURE = 2  # standard errors
AVERAGED = ("fedavg", "vit-full", "resnet-full")  # one whole model for all
Pair = tuple[RunFolder, RunFolder]


@dataclass(frozen=True)
class Verdict:
    """The answer in a word or two, and the sentences that back it."""

    answer: str
    reasons: str


def role(group: RunGroup) -> str:
    """Say which baseline a method is; empty if it is none."""
    if sends_nothing(group):
        return "baseline, everyone alone"
    return "baseline, one model for all" if group.runs[0].method in AVERAGED else ""


def sends_nothing(group: RunGroup) -> bool:
    """Return whether every client trains alone."""
    return all(not run.traffic.down_bytes and not run.traffic.up_bytes for run in group.runs)


def verdicts(groups: Sequence[RunGroup]) -> list[Verdict]:
    """Return an answer for every setting in which clients were trained alone as well as together."""
    found = []
    for setting in dict.fromkeys(group.setting for group in groups):
        some = [group for group in groups if group.setting == setting and group.finished and _scored(group)]
        apart, together = ([group for group in some if sends_nothing(group) == alone] for alone in (True, False))
        if apart and together:
            found.append(_verdict(max(apart, key=_mean), max(together, key=_mean), together, setting, len(groups)))
    return [one for one in found if one is not None]


def _verdict(
    alone: RunGroup, best: RunGroup, together: Sequence[RunGroup], setting: Setting, count: int
) -> Verdict | None:
    """Compare the best method that federates with the best that does not, client by client."""
    pairs = _pairs(alone, best)
    if not pairs:
        return None
    gains = [new - old for one, other in pairs for old, new in _both(one, other)]
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    means = [(one.scores.mean, other.scores.mean) for one, other in pairs if one.scores and other.scores]
    worsts = [(one.scores.worst, other.scores.worst) for one, other in pairs if one.scores and other.scores]
    (old, new), (low, high) = map(mean, zip(*means, strict=True)), map(mean, zip(*worsts, strict=True))
    gains_mean, gains_worst = round(new - old, 4) > 0, round(high - low, 4) >= 0
    answer = "Yes" if gains_mean and gains_worst else "In the mean, but not for every client" if gains_mean else "No"
    seeds = f", over {len(pairs)} seeds" if len(pairs) > 1 else ""
    where = f" ({setting})" if count > len(together) + 1 and setting.dataset else ""
    reasons = (
        f"{better} of {len(gains)} clients {_do(better)} better together ({best.label}) than alone ({alone.label}), "
        f"{worse} {_do(worse)} worse{seeds}. "
        f"The mean {_moves(old, new)}, the worst client {_moves(low, high)}. "
        f"Each client sent {human_bytes(_sent(best))} a round{_share(best, together)}."
        f"{_caution(pairs, old, new)}{where}"
    )
    return Verdict(answer, reasons)


def _caution(pairs: Sequence[Pair], old: float, new: float) -> str:
    """Say so if the test images are too few to tell two means apart, as if each model had seen others."""
    partition = pairs[0][0].partition  # further seeds test mostly the same images once more
    tested = sum(client.test for client in partition.clients) if partition else 0
    if not tested or abs(new - old) >= SURE * math.sqrt((old * (1 - old) + new * (1 - new)) / tested):
        return ""
    return f" With {tested:,} test images in all, a difference this small may be chance; more seeds say more."


def _do(clients: int) -> str:
    return "does" if clients == 1 else "do"


def _moves(old: float, new: float) -> str:
    verb = "rises" if new > old else "falls" if new < old else "stays"
    return f"{verb} from {percent(old)} to {percent(new)} %" if new != old else f"stays at {percent(old)} %"


def _share(best: RunGroup, together: Sequence[RunGroup]) -> str:
    """Compare what was sent with the averaging of whole models, if such a run is there."""
    whole = [group for group in together if group.runs[0].method in AVERAGED and group is not best]
    if not whole or not _sent(best):
        return ""
    rival = max(whole, key=_mean)
    times = _sent(rival) / _sent(best)
    return f", {rival.label} {human_bytes(_sent(rival))}" + (f" ({times:,.0f} times as much)" if times >= 2 else "")


def _pairs(alone: RunGroup, best: RunGroup) -> list[Pair]:
    """Pair the runs of the same seed that divide the images in the same way."""
    return [
        (one, other)
        for one in alone.runs
        for other in best.runs
        if one.seed == other.seed
        and (not one.partition or not other.partition or one.partition.hash == other.partition.hash)
    ]


def _both(one: RunFolder, other: RunFolder) -> list[tuple[float, float]]:
    """Return the two accuracies of every client that has both."""
    each = zip(
        one.scores.per_client if one.scores else (), other.scores.per_client if other.scores else (), strict=False
    )
    return [(old, new) for old, new in each if old is not None and new is not None]


def _scored(group: RunGroup) -> bool:
    return all(run.scores for run in group.runs)


def _mean(group: RunGroup) -> float:
    return mean(run.scores.mean for run in group.runs if run.scores)


def _sent(group: RunGroup) -> float:
    return mean(run.up_bytes for run in group.runs)
