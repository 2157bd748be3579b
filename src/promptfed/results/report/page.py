"""Write the report: one HTML file that needs nothing else, from one run folder or several."""

import os
import shlex
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from promptfed.core.errors import PromptFedError
from promptfed.core.files import write_text
from promptfed.results.folder import names
from promptfed.results.folder.reader import RunFolder, most_of, read_run
from promptfed.results.folder.values import Holdings
from promptfed.results.report.exhibits import exhibit
from promptfed.results.report.groups import RunGroup, group_runs
from promptfed.results.report.sections import RESULTS, WORKINGS, drawn
from promptfed.results.report.sure import headline_tiles
from promptfed.results.report.svg import shape_path
from promptfed.results.report.table import Table, human_bytes, percent
from promptfed.results.report.tables import compare
from promptfed.results.report.verdict import role, sends_nothing, verdicts

MOST_PICTURES = 24
TEMPLATE = Path(__file__).with_name("page.html.j2")


@dataclass(frozen=True)
class Tile:
    """One of the main numbers, with its name and a line of detail."""

    name: str
    value: str
    unit: str
    detail: str


def write_report(dirs: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write the report of these run folders and return its path, by default next to what it reports."""
    folders = list({Path(one).resolve(): Path(one) for one in dirs}.values())
    if not folders:
        raise PromptFedError("No run to report; give at least one run folder.")
    runs = [read_run(folder) for folder in folders]
    target = Path(out) if out is not None else _default_place(folders)
    if target.is_dir():
        raise PromptFedError(
            f'The report cannot be written to "{target}", which is a folder; give a file such as report.html.'
        )
    _write_whole(target, render(runs))
    return target


def render(runs: Sequence[RunFolder]) -> str:
    """Return the page as text; the same folders always give the same page."""
    groups = group_runs(runs)
    return _template().render(
        title=_title(groups),
        facts=_facts(groups),
        badges=[_badge(run, len(runs) > 1) for run in runs if run.stopped or not run.finished],
        verdicts=verdicts(groups),
        tiles=_tiles(groups),
        table=_with_roles(compare(runs), groups),
        results=drawn(RESULTS, groups),
        workings=drawn(WORKINGS, groups),
        exhibits=[exhibit(group) for group in groups if group.runs[0].figures or group.runs[0].figures_fault],
        shape=shape_path,
        galleries=[_gallery(group) for group in groups if group.runs[0].pictures],
        requested=[_requested(group) for group in groups if group.runs[0].requested],
        offered=_offered(runs),
        details=[_details(run) for run in runs],
        several=len(runs) > 1,
        adapting=" and ".join(group.label for group in groups if group.adapts),
        joined=any(run.joined for run in runs),
        measured=any(run.metrics for run in runs),
    )


def stylesheet() -> str:
    """Return the page's style, for other pages that show its figures."""
    template = _template()
    return "".join(template.blocks["style"](template.new_context()))


def _template() -> Template:
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return page.from_string(TEMPLATE.read_text(encoding="utf-8"))


def _with_roles(table: Table, groups: Sequence[RunGroup]) -> Table:
    """Name baselines as baselines."""
    named = []
    for row, group in zip(table.rows, groups, strict=True):
        words = f"{row[0].text} ({what})" if (what := role(group)) and len(groups) > 1 else row[0].text
        named.append((replace(row[0], text=words), *row[1:]))
    return replace(table, rows=tuple(named))


def _default_place(folders: Sequence[Path]) -> Path:
    """Return DIR/report.html for one run, or report.html in the folder that holds all of them."""
    if len(folders) == 1:
        return folders[0] / names.REPORT
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders])) / names.REPORT


def _write_whole(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    except OSError as error:
        raise PromptFedError(f'The report cannot be written to "{target}": {error.strerror}.') from error


def _title(groups: Sequence[RunGroup]) -> str:
    names = list(dict.fromkeys(group.runs[0].method for group in groups))
    data = " and ".join(dict.fromkeys(group.setting.dataset for group in groups))
    return f"{', '.join(names[:4])}{' and more' if len(names) > 4 else ''} on {data}"


def _facts(groups: Sequence[RunGroup]) -> list[str]:
    """Return what all runs have in common, as short phrases for under the title."""
    runs = [run for group in groups for run in group.runs]
    parts = {
        "{} partition": {group.setting.partition for group in groups},
        "{} clients": {str(run.clients) for run in runs},
        "{} backbone": {group.setting.backbone for group in groups},
        "{} rounds": {str(run.rounds[-1].number) for run in runs},
        "on {}": {str(run.env.get("device_name") or run.env.get("device", "")) for run in runs},
    }
    shared = [text.format(*values) for text, values in parts.items() if len(values) == 1 and values != {""}]
    shared = [text.removesuffix("s") if text.startswith("1 ") else text for text in shared]
    seeds = sorted({run.seed for run in runs})
    return [*shared, f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"]


def _badge(run: RunFolder, several: bool) -> str:
    """Say that a run is unfinished, and how many rounds it has; or why it ended early."""
    if run.stopped:
        return f"{run.path.name}: {run.stopped}" if several else run.stopped
    far = f"{run.rounds[-1].number} of {run.planned_rounds}" if run.planned_rounds else str(run.rounds[-1].number)
    return f"{run.path.name}: unfinished, {far} rounds" if several else f"unfinished, {far} rounds"


def _tiles(groups: Sequence[RunGroup]) -> list[Tile]:
    """Return the main numbers of one group, or the best of several groups that can be compared."""
    if len({group.setting for group in groups}) > 1:
        return []
    several = len(groups) > 1
    racing = [group for group in groups if group.finished] or groups
    scored = [group for group in racing if all(run.scores for run in group.runs)]
    tiles = [Tile(name, value, "%", detail) for name, value, detail in headline_tiles(racing)]
    for name, attribute in () if tiles else (("Mean accuracy", "mean"), ("Worst client", "worst")):
        if scored:
            value, index = max((_mean_score(group, attribute), -index) for index, group in enumerate(scored))
            tiles.append(Tile(name, percent(value), "%", _tile_detail(scored[-index], attribute, several)))
    tiles += _newcomer_tile(scored, several)
    # who sends nothing does not federate, so nobody is cheaper
    racing = [group for group in racing if not sends_nothing(group)] or racing
    sizes = [(mean(run.down_bytes for run in group.runs), mean(run.up_bytes for run in group.runs)) for group in racing]
    least = min(range(len(racing)), key=lambda index: sum(sizes[index]))
    number, unit = human_bytes(sum(sizes[least])).split()
    down, up = map(human_bytes, sizes[least])
    tie = len({round(sum(size)) for size in sizes}) == 1
    leader = "the same for all" if tie else f"lowest of all: {racing[least].label}"
    detail = leader if len(racing) > 1 else racing[0].label if several else f"{down} down, {up} up"
    return [*tiles, Tile("Traffic per client and round", number, unit, detail)]


def _mean_score(group: RunGroup, attribute: str) -> float:
    values: list[float] = [getattr(run.scores, attribute) for run in group.runs]
    return mean(values)


def _tile_detail(group: RunGroup, attribute: str, several: bool) -> str:
    """Return which method is best, or for a single run the numbers related to the main one."""
    run, scores = group.runs[0], group.runs[0].scores
    adapted = "after adaptation" if group.adapts else ""
    if several or len(group.runs) > 1 or scores is None:
        words = (f"{'best of all: ' if several else ''}{group.label}", role(group), _seed_count(group), adapted)
        return ", ".join(filter(None, words))
    if attribute == "mean":
        best = "" if run.best_mean is None else f"best {percent(run.best_mean)} % in round {run.best_round}"
        if run.before is None or not adapted:
            return best
        return f"{adapted}; as received {percent(run.before.mean)} %, at {best}"
    known = [index for index, value in enumerate(scores.per_client) if value == scores.worst]
    return f"client {known[0]}; p10 {percent(scores.p10)} %" if known else f"p10 {percent(scores.p10)} %"


def _newcomer_tile(groups: Sequence[RunGroup], several: bool) -> list[Tile]:
    """Return the newcomers' mean with that of the founders, if a group has both."""
    found = []
    for group in groups:
        pairs = [(run.newcomers, run.founders) for run in group.runs]
        known = [(new, old) for new, old in pairs if new is not None and old is not None]
        if known:
            new, old = (mean(each) for each in zip(*known, strict=True))
            found.append((new, old, group))
    if not found:
        return []
    new, old, group = max(found, key=lambda one: one[0])
    who = f"best of all: {group.label}" if several else f"joined in round {group.runs[0].joined}"
    return [Tile("Newcomers", percent(new), "%", f"{who}; founders {percent(old)} %")]


def _seed_count(group: RunGroup) -> str:
    return f"seed {group.runs[0].seed}" if len(group.runs) == 1 else f"mean of {len(group.runs)} seeds"


def _requested(group: RunGroup) -> dict[str, Any]:
    """Return the figures that `promptfed figure` drew of a group's first run."""
    figures = [
        {"source": _embedded(one.path), "title": one.title, "caption": one.caption} for one in group.runs[0].requested
    ]
    return {"label": group.label, "figures": figures}


def _offered(runs: Sequence[RunFolder]) -> str:
    """Return a command that draws more figures, if a finished run still has its models."""
    found = next((run for run in runs if run.finished and run.checkpoint), None)
    return f"promptfed figure prior {shlex.quote(str(found.path))}" if found else ""


def _embedded(path: Path) -> str:
    return f"data:image/png;base64,{b64encode(path.read_bytes()).decode('ascii')}"


def _gallery(group: RunGroup) -> dict[str, Any]:
    """Return the learned prompts of a group's first run, each with its client's main classes."""
    run = group.runs[0]
    shown = [
        {
            "source": _embedded(one.path),
            "name": f"client {one.client}",
            "kind": one.name,
            "classes": ", ".join(_main_classes(run.partition, one.client)),
        }
        for one in run.pictures[:MOST_PICTURES]
    ]
    return {"label": group.label, "pictures": shown, "hidden": len(run.pictures) - len(shown)}


def _main_classes(partition: Holdings | None, client: int) -> list[str]:
    """Return the classes of which a client has most images."""
    if partition is None or client >= len(partition.clients):
        return []
    return most_of(partition.clients[client].counts, partition.classes)


def _details(run: RunFolder) -> dict[str, Any]:
    """Return how a run was made, and the command that repeats it."""
    speed = {"images per second": f"{run.images_per_second:,.0f}"} if run.images_per_second else {}
    return {
        "name": run.path.name or str(run.path),
        "command": f"promptfed run {shlex.quote(str(run.path / names.RECIPE))}",
        "environment": {key.replace("_", " "): str(value) for key, value in run.env.items()} | speed,
        "recipe": run.recipe_text,
    }
