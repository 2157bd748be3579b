"""Accuracy against hours on the same links: FedAvg, LoRA and prompts, waiting for all and not, on phones and on DSL.

    python benchmarks/hours.py [--out runs/hours] [--figure docs/hours.png]

Nine runs of the recipes links/fedavg, links/lora and links/prompts. A finished one is not run again, a stopped one is
resumed. One that waits for all serves both profiles; FedBuff makes a model of every five answers, four of them in place
of a round of twenty clients.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from promptfed.analysis.figures import plotting
from promptfed.analysis.figures.drawing import Drawing, save
from promptfed.analysis.network.timeline import Timeline, simulate
from promptfed.federation.clock.links import PROFILES
from promptfed.results.folder.reader import RunFolder, read_run
from promptfed.runs import config, resuming

METHODS = {"fedavg": "FedAvg, the whole network", "lora": "LoRA and a head", "prompts": "pFedVPT, a prompt and a head"}
PLACES = {"clinic-dsl": "clinics on DSL", "mobile": "phones, awake eight hours a day"}
BUFFER = 5
TIMES = {
    "1 s": 1 / 3600,
    "10 s": 1 / 360,
    "1 min": 1 / 60,
    "10 min": 1 / 6,
    "1 h": 1,
    "6 h": 6,
    "1 day": 24,
    "1 week": 168,
}
Row = dict[str, Any]


def made(folder: Path, method: str, profile: str = "") -> RunFolder:
    """Return a run: one that waits for all, or with a profile, one that does not."""
    sync = config.load_one(f"links/{method}")
    models = sync.clients // BUFFER  # in place of a round
    rounds, every = models * sync.rounds, models * int(sync.evaluate["every"])
    words = [f"clock.profile={profile}", "clock.mode=fedbuff", f"clock.buffer={BUFFER}"]
    words += [f"rounds={rounds}", f"evaluate.every={every}"]
    recipe = config.load_one(f"links/{method}", words) if profile else sync
    return read_run(resuming.start_or_resume(recipe, folder / f"{method}-{profile or 'sync'}").folder)


def rows(folder: Path) -> list[Row]:
    """Return a row for each method, profile and way to wait."""
    found = []
    for method in METHODS:
        waiting = made(folder, method)
        for profile in PLACES:
            for run in (waiting, made(folder, method, profile)):
                line = simulate(run, PROFILES[profile], run.seed)
                mode = "sync" if run is waiting else "fedbuff"
                found.append(_row(run, line, {"method": method, "profile": profile, "mode": mode}))
    return found


def _row(run: RunFolder, line: Timeline, head: Row) -> Row:
    return head | {
        "bytes_down": round(run.down_bytes),
        "bytes_up": round(run.up_bytes),
        "image_ms": run.recipe["clock"]["image_ms"],
        "hours": line.hours,
        "points": [list(point) for point in line.points],
    }


def draw(found: Sequence[Row]) -> Drawing:
    """Draw a panel for each profile: a colour for each method, dashes where the server does not wait for all."""
    picture = plotting.blank(9.6, 4.4)
    panels = picture.subplots(1, len(PLACES), sharey=True)
    for axes, (profile, title) in zip(panels, PLACES.items(), strict=True):
        for row in found:
            if row["profile"] == profile:
                _curve(axes, row)
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xscale("log")
        shown = [hours for row in found if row["profile"] == profile for hours, _ in row["points"]]
        ticks = {name: hours for name, hours in TIMES.items() if 0.5 * min(shown) <= hours <= 2 * max(shown)}
        axes.set_xticks(list(ticks.values()), list(ticks), fontsize=9)
        axes.minorticks_off()
        axes.set_xlabel("time, by the simulated clock")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e3e6ea")
        axes.set_axisbelow(True)
    panels[0].set_ylabel("mean accuracy of clients, %")
    handles, names = panels[0].get_legend_handles_labels()
    picture.legend(handles, names, frameon=False, loc="outside upper center", ncols=len(METHODS), fontsize=9)
    caption = (
        "Mean accuracy of clients over time by a simulated clock. Lines: every round waits for all twenty clients; "
        f"dashes: FedBuff, a model of every {BUFFER} answers."
    )
    return Drawing("Accuracy over hours", caption, {"profiles": _profiles(), "runs": list(found)}, picture)


def _profiles() -> dict[str, Mapping[str, float]]:
    return {name: vars(PROFILES[name]) for name in PLACES}


def _curve(axes: Any, row: Row) -> None:
    hours, means = zip(*row["points"], strict=True)
    late = row["mode"] == "fedbuff"
    axes.plot(
        hours,
        [100 * mean for mean in means],
        "s--" if late else "o-",
        color=plotting.COLOURS[list(METHODS).index(row["method"])],
        markersize=3.5,
        markerfacecolor="white" if late else None,
        linewidth=1.6,
        label=f"{METHODS[row['method']]}, {'FedBuff' if late else 'waiting for all'}",
    )


def main() -> None:
    """Make the runs, print how long each took, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/hours"), help="folder of the runs")
    parser.add_argument("--figure", type=Path, default=Path("docs/hours.png"), help="the picture; numbers beside it")
    words = parser.parse_args()
    found = rows(words.out)
    print("| run | links | server | hours | last, % |\n|---|---|---|--:|--:|")
    for row in found:
        last = f"{row['hours']:.3g} | {100 * row['points'][-1][1]:.1f}"
        print(f"| {row['method']} | {row['profile']} | {row['mode']} | {last} |")
    save(draw(found), "network", words.figure)


if __name__ == "__main__":
    main()
