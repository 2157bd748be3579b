"""What the lines of all rounds come to: the content of summary.json."""

from collections.abc import Sequence

from promptfed.federation.evaluate import Score
from promptfed.results.folder.record import Line, Record

NEARLY = 0.95
BEYOND = ("sets", "hm", "cm")  # scores on other images than a client's own


def summarise(record: Record, about: Line, adapted: Line | None, after: Score | None, newcomers: int = 0) -> Line:
    """Return summary.json's content from the lines of all rounds; the last `newcomers` clients get a mean of their own.

    The best round, by the plain mean and by the weighted one, is one in which all clients were there.
    """
    rounds = record.rounds
    last = rounds[-1]
    everyone = len((last["received"] or {}).get("per_client", ()))
    scored = [
        line
        for line in rounds
        if line["received"] and line["received"]["mean"] is not None and len(line["received"]["per_client"]) == everyone
    ]
    best = max(scored, key=lambda line: line["received"]["mean"], default=last)
    best_weighted = max(scored, key=lambda line: line["received"]["weighted"], default=last)
    local = max(
        (line for line in scored if line.get("local")), key=lambda line: line["local"]["weighted"], default=None
    )
    seconds = sum(line["seconds"] for line in rounds)
    return about | {
        "accuracy": {
            **{name: last[name] for name in BEYOND if name in last},
            **(adapted or last["received"]),
            "round": last["round"],
            "best_round": best["round"],
            "best_mean": best["received"]["mean"],
            "best_weighted_round": best_weighted["round"],
            "best_weighted": best_weighted["received"]["weighted"],
            "best_local_round": local and local["round"],
            "best_local": local and local["local"]["weighted"],
            "before": last["received"],
            "trained": last["trained"],
            "after": after,
            "deployed": last["deployed"],
            **({"newcomers": _mean_of_last(adapted or last["received"], newcomers)} if newcomers else {}),
        },
        "traffic": {
            "down_floats": last["traffic"]["down_floats"],
            "up_floats": last["traffic"]["up_floats"],
            "down_bytes": sum(line["traffic"]["down_bytes"] for line in rounds),
            "up_bytes": sum(line["traffic"]["up_bytes"] for line in rounds),
        },
        "rounds95": _nearly(scored, rounds),
        "seconds": round(seconds, 3),
        "images_per_second": round(sum(line["images"] for line in rounds) / seconds, 1) if seconds else 0.0,
    }


def _nearly(scored: Sequence[Line], rounds: Sequence[Line]) -> int | None:
    """Return the first tested round with 95 % of the best one's accuracy: of the clients, or of the server's model.

    It is of those models that more rounds were tested with, of the clients' if as many; `scored` are these rounds.
    """
    clients = {line["round"]: line["received"]["mean"] for line in scored}
    server = {line["round"]: line["deployed"]["all"] for line in rounds if line.get("deployed")}
    curve = max(clients, server, key=len)
    return next((number for number, value in curve.items() if value >= NEARLY * max(curve.values())), None)


def _mean_of_last(scored: Score, count: int) -> float | None:
    each = scored["per_client"]
    known = [value for value in each[-count:] if value is not None]
    return sum(known) / len(known) if known else None
