"""RELIC's tables: what its words draw, at several rates and for single clients, and what uploads show."""

import json
from statistics import mean, stdev
from typing import Any

from result_cells import RESULTS, markdown, outcome, two

RELIC = "relic-clematis"
RATES = {"0.002": "relic-clematis-0.002", "0.005": RELIC, "0.02": "relic-clematis-0.02"}


def measured(run: str, kind: str) -> dict[str, Any] | None:
    """Return what `promptfed quality` or `promptfed audit` found in a run of RELIC's table."""
    every = json.loads((RESULTS / RELIC / "measured.json").read_text(encoding="utf-8"))
    found: dict[str, Any] | None = every.get(f"{run}/seed0", {}).get(kind)
    return found


def relic_table(column: str) -> list[str]:
    """Return one column of RELIC's Figure 2: the FID of the server's word over the rounds, and what it is like."""
    found = outcome(RELIC)
    title = next(one["title"] for one in found["columns"] if one["name"] == column)
    runs = {one["title"]: measured(f"{column}/{one['row']}", "quality") for one in found["rows"]}
    last = {name: one["words"][0] for name, one in runs.items() if one and "client" not in one["words"][0]}
    curves = [{one["round"]: one["fid"] for one in (runs[name] or {})["rounds"]} for name in last]
    parts = [("method", list(last))]
    for end in sorted({end for curve in curves for end in curve})[:-1]:
        parts.append((f"FID, round {end}", [two(curve.get(end)) for curve in curves]))
    parts.append(("FID at the end", [two(one["fid"]) for one in last.values()]))
    parts += [(kind, [f"{one[kind]:.3f}" for one in last.values()]) for kind in ("image", "text")]
    return markdown(f"{found['title']}, {title}", parts)


def rates_table() -> list[str]:
    """Return the FID of FedTI's and RELIC's words at the end by the clients' rate, three images each."""
    parts = [("method", ["FedTI", "RELIC"])]
    for rate, folder in RATES.items():
        found = {one["row"]: one["ours"]["mean"] for one in outcome(folder)["rows"] if one["column"] == "equal"}
        parts.append((f"rate {rate}", [two(found[row]) for row in ("fedti", "relic")]))
    return markdown("FID at the end, three images each, by rate", parts)


def words_table(column: str) -> list[str]:
    """Return RELIC's Figure 4: the FID of single clients' words to the client's own images."""
    title = next(one["title"] for one in outcome(RELIC)["columns"] if one["name"] == column)
    alone, relic = (measured(f"{column}/{row}", "quality") or {} for row in ("ti-local", "relic"))
    cells = {("ti-local", one["client"]): one for one in alone["words"]}
    cells |= {(one["word"], one["client"]): one for one in relic["words"] if "client" in one}
    clients = sorted({client for _, client in cells})
    kinds = {"TI-Local": "ti-local", "Server S^c": "sent", "S*": "global", "S^{c*}": "client"}
    parts = [("client", [*map(str, clients), "mean"])]
    parts.append(("its images", [*(str(cells["client", client]["real"]) for client in clients), ""]))
    for name, kind in kinds.items():
        fids = [cells[kind, client]["fid"] for client in clients]
        parts.append((name, [two(value) for value in (*fids, mean(fids))]))
    return markdown(f"RELIC, Figure 4: words of single clients, {title}", parts)


def audit_table() -> list[str]:
    """Return what a curious server draws from the words that clients send."""
    found = {one["title"]: measured(f"equal/{one['row']}", "audit") for one in outcome(RELIC)["rows"]}
    seen = {name: one for name, one in found.items() if one}
    own, others = (
        [[client[key] for client in one["per_client"]] for one in seen.values()]
        for key in ("nearest", "nearest_others")
    )
    gaps = [[mine - theirs for mine, theirs in zip(*pair, strict=True)] for pair in zip(own, others, strict=True)]
    parts = [
        ("method", list(seen)),
        ("likeness to own images", [f"{mean(values):.3f}" for values in own]),
        ("to another client's", [f"{mean(values):.3f}" for values in others]),
        ("own − other", [f"{mean(gap):.3f} ± {stdev(gap) / len(gap) ** 0.5:.3f}" for gap in gaps]),
        ("FID", [two(one["mean"]["fid"]) for one in seen.values()]),
        ("clients found again", [f"{one['reidentified']:.0%}" for one in seen.values()]),
        ("by chance", [f"{one['chance']:.0%}" for one in seen.values()]),
    ]
    return markdown("What uploads show", parts)
