"""Write the report: one HTML file that needs nothing else, from one run folder or several."""

import os
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from promptfed.errors import PromptFedError
from promptfed.files import write_text
from promptfed.report.folder import Figures, Likeness, Matrix, Partition, Places, Round, RunFolder, read_run
from promptfed.report.plots import (
    MOST_BARS,
    MOST_NAMES,
    Bars,
    Head,
    Line,
    Load,
    Spot,
    cell_chart,
    client_chart,
    exchange_chart,
    heat_map,
    line_chart,
    point_map,
    shape_path,
    traffic_chart,
)
from promptfed.report.tables import Group, Setting, compare, group_runs, human_bytes, percent

# Drawn twice at these widths, so that text keeps its size on a desk and on a phone.
WIDE, NARROW, SMALL = 960, 380, 460
# Two of these stand side by side on a desk and one fills a phone, so once is enough.
SQUARE = 400
MOST_PICTURES = 24
MOST_GROUPS = 24
# More bars than this turn into curves on a phone.
CROWDED = 120

Draw = Callable[[int], str]


@dataclass(frozen=True)
class Key:
    """One entry of a legend: its mark ("line", "dash", "dot", "band", "bar" or "group"), series and text."""

    kind: str
    series: int
    text: str


@dataclass(frozen=True)
class Figure:
    """A drawing for wide pages, one for narrow pages (or one for both), its legend and what one sees in it."""

    wide: Markup
    narrow: Markup
    keys: tuple[Key, ...]
    caption: str


@dataclass(frozen=True)
class Tile:
    """A big number, what it is, and a line of detail."""

    name: str
    value: str
    unit: str
    detail: str


def write_report(dirs: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write the report of these run folders and return its path, by default next to what it reports."""
    folders = list({Path(one).resolve(): Path(one) for one in dirs}.values())
    if not folders:
        raise PromptFedError("There is no run to report; give at least one run folder.")
    runs = [read_run(folder) for folder in folders]
    target = Path(out) if out is not None else _default_place(folders)
    if target.is_dir():
        raise PromptFedError(f'The report cannot be written to "{target}", a folder; name a file such as report.html.')
    _write_whole(target, render(runs))
    return target


def render(runs: Sequence[RunFolder]) -> str:
    """Return the page as text; the same folders always give the same page."""
    groups = group_runs(runs)
    # A method has one colour, in every figure and setting.
    colours = {label: index for index, label in enumerate(dict.fromkeys(group.label for group in groups))}
    by_setting: dict[Setting, list[Group]] = {}
    for group in groups:
        by_setting.setdefault(group.setting, []).append(group)
    figures: dict[str, list[Figure]] = {"holdings": list(_holdings(groups))}
    for setting, some in by_setting.items():
        where = f"{setting}. " if len(by_setting) > 1 else ""
        for name, draw in _SECTIONS.items():
            figures.setdefault(name, []).extend(draw(some, colours, where))
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        files("promptfed.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    return page.render(
        title=_title(groups),
        facts=_facts(groups),
        badges=[_badge(run, len(runs) > 1) for run in runs if not run.finished],
        tiles=_tiles(groups),
        table=compare(runs),
        sections={name: [figure for figure in found if figure.wide] for name, found in figures.items()},
        exhibits=[_exhibit(group) for group in groups if group.runs[0].figures or group.runs[0].figures_fault],
        shape=shape_path,
        galleries=[_gallery(group) for group in groups if group.runs[0].pictures],
        details=[_details(run) for run in runs],
        several=len(runs) > 1,
    )


def _default_place(folders: Sequence[Path]) -> Path:
    """DIR/report.html of one run, or report.html in the folder that holds them all."""
    if len(folders) == 1:
        return folders[0] / "report.html"
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders])) / "report.html"


def _write_whole(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    except OSError as error:
        raise PromptFedError(f'The report cannot be written to "{target}": {error.strerror}.') from error


def _title(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(group.runs[0].method for group in groups))
    data = " and ".join(dict.fromkeys(group.setting.dataset for group in groups))
    return f"{', '.join(names[:4])}{' and more' if len(names) > 4 else ''} on {data}"


def _facts(groups: Sequence[Group]) -> list[str]:
    """What all runs share, as short phrases under the title."""
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
    """Say that a run has not ended, and how far it is."""
    far = f"{run.rounds[-1].number} of {run.planned_rounds}" if run.planned_rounds else str(run.rounds[-1].number)
    return f"{run.path.name}: unfinished, {far} rounds" if several else f"unfinished, {far} rounds"


def _tiles(groups: Sequence[Group]) -> list[Tile]:
    """The big numbers of one group, or the leaders of several that may be compared."""
    if len({group.setting for group in groups}) > 1:
        return []
    several = len(groups) > 1
    racing = [group for group in groups if group.finished] or groups
    scored = [group for group in racing if all(run.scores for run in group.runs)]
    tiles = []
    for name, attribute in (("Mean accuracy", "mean"), ("Worst client", "worst")):
        if scored:
            value, index = max((_mean_score(group, attribute), -index) for index, group in enumerate(scored))
            tiles.append(Tile(name, percent(value), "%", _tile_detail(scored[-index], attribute, several)))
    sizes = [(mean(run.down_bytes for run in group.runs), mean(run.up_bytes for run in group.runs)) for group in racing]
    least = min(range(len(racing)), key=lambda index: sum(sizes[index]))
    number, unit = human_bytes(sum(sizes[least])).split()
    down, up = map(human_bytes, sizes[least])
    tie = len({round(sum(size)) for size in sizes}) == 1
    leader = "the same for all" if tie else f"least of all: {racing[least].label}"
    detail = leader if several else f"{down} down, {up} up"
    return [*tiles, Tile("Traffic per client and round", number, unit, detail)]


def _mean_score(group: Group, attribute: str) -> float:
    values: list[float] = [getattr(run.scores, attribute) for run in group.runs]
    return mean(values)


def _tile_detail(group: Group, attribute: str, several: bool) -> str:
    """Who leads; or for one run, the numbers next to the big one."""
    scores = group.runs[0].scores
    if several or len(group.runs) > 1 or scores is None:
        return f"{'best of all: ' if several else ''}{group.label}, {_seed_count(group)}"
    if attribute == "mean":
        best = group.runs[0].best_mean
        return f"best {percent(best or scores.mean)} % in round {group.runs[0].best_round}"
    known = [index for index, value in enumerate(scores.per_client) if value == scores.worst]
    return f"client {known[0]}; p10 {percent(scores.p10)} %" if known else f"p10 {percent(scores.p10)} %"


def _seed_count(group: Group) -> str:
    return f"seed {group.runs[0].seed}" if len(group.runs) == 1 else f"mean of {len(group.runs)} seeds"


def _over_seeds(
    group: Group, read: Callable[[Round], float | None], scale: float = 1
) -> tuple[tuple[float, float], ...]:
    """A value per round, averaged over the seeds, at the rounds where every seed has it."""
    found: dict[int, list[float]] = {}
    for run in group.runs:
        for one in run.rounds:
            if (value := read(one)) is not None:
                found.setdefault(one.number, []).append(scale * value)
    return tuple((number, mean(all_)) for number, all_ in sorted(found.items()) if len(all_) == len(group.runs))


def _curves(groups: Sequence[Group], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Accuracy over the rounds: one method in detail, or several with the mean and the worst client of each."""
    lines, keys = _one_curve(groups[0], colours[groups[0].label]) if len(groups) == 1 else _many_curves(groups, colours)
    caption = "Test accuracy of the clients with what they hold at the start of a round. "
    caption += (
        "Line: their mean; band: from the worst to the best client."
        if len(groups) == 1
        else "Solid: the mean of the clients; dashed: the worst client."
    )
    draw: Draw = lambda width: line_chart(  # noqa: E731
        lines, width=width, title="Accuracy over the rounds", y_label="accuracy (%)", unit="%"
    )
    yield _figure(draw, keys, where + caption)


def _one_curve(group: Group, colour: int) -> tuple[list[Line], list[Key]]:
    """The mean within its band, after local training, and the server's own model."""
    low = _over_seeds(group, lambda one: one.received.worst if one.received else None, 100)
    high = _over_seeds(group, lambda one: one.received.best if one.received else None, 100)
    band = tuple((x, worst, best) for (x, worst), (_, best) in zip(low, high, strict=True))
    lines = [Line(group.label, _mean_curve(group), colour, band=band)]
    keys = [Key("line", colour, "mean"), Key("band", colour, "worst to best client")]
    more = {
        "after local training": _over_seeds(group, lambda one: one.trained.mean if one.trained else None, 100),
        "the server's own model": _over_seeds(group, lambda one: (one.deployed or {}).get("all"), 100),
    }
    # The palette's last two colours, so that no method seems to be drawn.
    for (label, points), dash, other in zip(more.items(), ("dash", "dot"), (6, 7), strict=True):
        if points:
            lines.append(Line(label, points, other, dash=dash))
            keys.append(Key(dash, other, label))
    return lines, keys


def _many_curves(groups: Sequence[Group], colours: Mapping[str, int]) -> tuple[list[Line], list[Key]]:
    """The mean of each method and its worst client; bands would cover each other."""
    lines = []
    for group in groups:
        worst = _over_seeds(group, lambda one: one.received.worst if one.received else None, 100)
        lines.append(Line(group.label, _mean_curve(group), colours[group.label]))
        lines.append(Line(f"{group.label}, worst client", worst, colours[group.label], dash="dash thin", tag=False))
    return lines, [Key("line", line.colour, line.label) for line in lines[::2]]


def _mean_curve(group: Group) -> tuple[tuple[float, float], ...]:
    return _over_seeds(group, lambda one: one.received.mean if one.received else None, 100)


def _clients(groups: Sequence[Group], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Each client's accuracy in the end, of the first seed: with another seed client 3 is another client."""
    series = []
    for group in groups:
        scores = group.runs[0].scores
        if scores:
            values = tuple(None if value is None else 100 * value for value in scores.per_client)
            series.append(Bars(group.label, values, colours[group.label]))
    if not series:
        return
    many = any(len(one.values) > MOST_BARS for one in series)
    seed = f" (seed {groups[0].runs[0].seed})" if any(len(group.runs) > 1 for group in groups) else ""
    caption = f"Test accuracy of the clients in the last evaluation{seed}. "
    if many or sum(len(one.values) for one in series) > CROWDED:
        caption += "Where bars would not fit, a curve shows the clients sorted from worst to best. "
    caption += "The more even, the fewer clients are left behind."
    keys = [Key("line" if many else "bar", one.colour, one.label) for one in series]
    draw: Draw = lambda width: client_chart(series, width=width, title="Accuracy per client")  # noqa: E731
    yield _figure(draw, keys, where + caption)


def _holdings(groups: Sequence[Group]) -> Iterable[Figure]:
    """Who holds what: one map per partition, by class and where there are several by domain."""
    shown: dict[str, tuple[Partition, Setting]] = {}
    for group in groups:
        partition = group.runs[0].partition
        if partition is not None:
            shown.setdefault(partition.hash, (partition, group.setting))
    for partition, setting in shown.values():
        where = f" {setting}." if len(shown) > 1 else ""
        yield _map("class", partition.classes, [client.counts for client in partition.clients], where)
        if len(partition.domain_names) > 1:
            yield _map("domain", partition.domain_names, [client.domains for client in partition.clients], where)


def _map(noun: str, rows: Sequence[str], columns: Sequence[Sequence[int]], where: str) -> Figure:
    total = sum(map(sum, columns))
    caption = (
        f"Training images of each client by {noun}: {total:,} images in all.{where} "
        "The larger (on narrow columns: the darker) a mark, the more images; no mark, none."
    )
    return _figure(
        lambda width: heat_map(rows, columns, width=width, title=f"Images per client and {noun}"), [], caption
    )


def _measures(groups: Sequence[Group], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """One small chart for the test loss and for each number a method records."""
    names = dict.fromkeys(name for group in groups for run in group.runs for one in run.rounds for name in one.measures)
    readers: dict[str, Callable[[Round], float | None]] = {"test loss": lambda one: one.loss}
    readers |= {name.replace("_", " "): partial(_measured, name) for name in names}
    for name, read in readers.items():
        lines = [Line(group.label, _over_seeds(group, read), colours[group.label]) for group in groups]
        lines = [line for line in lines if line.points]
        keys = [Key("line", line.colour, line.label) for line in lines] if len(groups) > 1 else []
        drawn = Markup(line_chart(lines, width=SMALL, title=name.capitalize(), y_label=name))
        over = "the test images of all clients" if name == "test loss" else "the clients of each round"
        yield Figure(drawn, Markup(), tuple(keys), f"{where}{name.capitalize()}, mean over {over}.")


def _measured(name: str, one: Round) -> float | None:
    return one.measures.get(name)


def _traffic(groups: Sequence[Group], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Bytes per client and round, of the first seed."""
    loads = []
    for group in groups:
        run, sent = group.runs[0], group.runs[0].traffic
        notes = (f"{sent.down_floats:,} floats", f"{sent.up_floats:,} floats")
        loads.append(Load(group.label, run.down_bytes, run.up_bytes, colours[group.label], notes))
    caption = "Bytes that travel per client and round, down to the client and up from it. The scale is logarithmic."
    draw: Draw = lambda width: traffic_chart(loads, width=width, title="Traffic per client and round")  # noqa: E731
    yield _figure(draw, [], where + caption)


def _exchange(groups: Sequence[Group], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Accuracy against traffic, a point per method: where there is but one, there is nothing to weigh."""
    spots = []
    for group in groups:
        reached = [100 * run.scores.mean for run in group.runs if run.scores]
        if reached:
            sent = mean(run.traffic.down_floats + run.traffic.up_floats for run in group.runs)
            spread = stdev(reached) if len(reached) > 1 else 0.0
            spots.append(Spot(group.label, sent, mean(reached), spread, colours[group.label]))
    if len(spots) < 2:
        return
    caption = "Up is better, left is cheaper. Numbers count both ways, down to a client and up from it, in one round"
    caption += "; the scale is logarithmic."
    if any(one.spread for one in spots):
        caption += " Bars: one standard deviation over the seeds, to either side."
    draw: Draw = lambda width: exchange_chart(spots, width=width, title="Accuracy against traffic")  # noqa: E731
    yield _figure(draw, [], where + caption)


_SECTIONS: Mapping[str, Callable[[Sequence[Group], Mapping[str, int], str], Iterable[Figure]]] = {
    "exchange": _exchange,
    "curves": _curves,
    "clients": _clients,
    "traffic": _traffic,
    "measures": _measures,
}


def _exhibit(group: Group) -> dict[str, Any]:
    """What a method shows of its clients, of the group's first run; or why it cannot be shown."""
    run = group.runs[0]
    shown = run.figures
    if shown is None:
        fault = f"What the method shows of its clients cannot be drawn. {run.figures_fault}"
        return {"label": group.label, "keys": [], "figures": [], "note": fault}
    heads = _heads(shown, run.partition)
    order = sorted(range(len(heads)), key=lambda client: (heads[client].series, shown.classes[client], client))
    drawn: list[Figure] = []
    if shown.prompts:
        drawn += _likeness(shown, shown.prompts, heads, order)
    if shown.descriptors:
        drawn.append(_places(shown.descriptors, heads))
    if shown.attention:
        drawn.append(_attention(shown.attention, heads, order))
    groups = sorted({(head.series or 0, head.group) for head in heads})
    by = "domain" if _several_domains(shown) else "most frequent class"
    seed = f" of seed {run.seed}" if len(group.runs) > 1 else ""
    first = f"The first {len(heads)} of {run.clients} clients" if len(heads) < run.clients else "All clients"
    note = f"{first}{seed}, in the order of their groups; colours: the client's {by}."
    keys = [Key("group", series, name) for series, name in groups] if len(groups) <= MOST_GROUPS else []
    return {"label": group.label, "keys": keys, "figures": drawn, "note": note}


def _several_domains(figures: Figures) -> bool:
    return len(set(figures.domains)) > 1


def _heads(figures: Figures, partition: Partition | None) -> list[Head]:
    """Each client with its group: its domain where there are several, else its most frequent class."""
    if _several_domains(figures):
        noun, numbers, names = "domain", figures.domains, figures.domain_names
    else:
        noun, numbers, names = "class", figures.classes, partition.classes if partition else ()
    series = {number: index for index, number in enumerate(sorted(set(numbers)))}
    return [
        Head(str(client), series[number], names[number] if 0 <= number < len(names) else f"{noun} {number}")
        for client, number in enumerate(numbers)
    ]


def _likeness(figures: Figures, found: Likeness, heads: Sequence[Head], order: Sequence[int]) -> Iterable[Figure]:
    """The likeness of the clients' prompts beside the distance of their labels, both purple where clients agree."""
    ordered = [heads[client] for client in order]
    pairs = [(a, b) for a in range(len(heads)) for b in range(a)]
    cosines = [found.cosine[a][b] for a, b in pairs]

    def told_prompts(i: int, j: int) -> tuple[str, str]:
        a, b = order[i], order[j]
        value, whole = found.centred[a][b], found.cosine[a][b]
        return f"{value:.2f}", f"clients {a} and {b}: {value:.3f}; with the mean prompt {whole:.4f}"

    def told_labels(i: int, j: int) -> tuple[str, str]:
        a, b = order[i], order[j]
        same = "the same domain" if figures.domains[a] == figures.domains[b] else "different domains"
        value = found.label_distance[a][b]
        return f"{value:.2f}", f"clients {a} and {b}: distance {value:.3f}, {same}"

    alike = [[found.centred[a][b] for b in order] for a in order]
    drawn = cell_chart(
        ordered, ordered, alike, told_prompts, width=SQUARE, title="Prompt similarity",
        ends=("−1 opposite", "1 same direction"),
    )  # fmt: skip
    caption = (
        "How alike the clients' prompts are: the cosine of any two, the mean prompt removed. With it they range from "
        f"{min(cosines):.3f} to {max(cosines):.3f}; the prompts lie {100 * found.spread:.3g} % of the mean prompt's "
        "length away from it."
    )
    yield Figure(Markup(drawn), Markup(), (), caption)
    near = [[1 - 2 * found.label_distance[a][b] for b in order] for a in order]
    drawn = cell_chart(
        ordered, ordered, near, told_labels, width=SQUARE, title="Label distance",
        ends=("1 no class shared", "0 the same"),
    )  # fmt: skip
    caption = "How far apart the clients' labels are: the total variation between the shares of their classes."
    yield Figure(Markup(drawn), Markup(), (), caption + _correlations(found))


def _correlations(found: Likeness) -> str:
    """Whether like clients have like prompts, in one number for the labels and one for the domains."""
    known = {"the distance of labels": found.label_correlation, "being of different domains": found.domain_correlation}
    told = [f"{_signed(value)} with {what}" for what, value in known.items() if value is not None]
    if not told:
        return ""
    return (
        f" Rank correlation of the likeness of prompts: {' and '.join(told)}; "
        "below zero, clients with like images have like prompts."
    )


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _places(found: Places, heads: Sequence[Head]) -> Figure:
    named = [Head(f"client {head.name}", head.series, head.group) for head in heads]
    drawn = point_map(named, found.points, width=SQUARE, title="Map of the descriptors")
    if found.kind == "t-SNE":
        how = "by t-SNE, which keeps neighbours together; its axes and long distances mean nothing."
    else:
        shares = " and ".join(f"{100 * share:.0f} %" for share in found.explained)
        how = f"on their first two {found.kind}" + (f", with {shares} of the variance." if shares else ".")
    named_by = " A number names its client." if len(heads) <= MOST_NAMES else ""
    return Figure(Markup(drawn), Markup(), (), f"The clients' descriptors {how}{named_by}")


def _attention(found: Matrix, heads: Sequence[Head], order: Sequence[int]) -> Figure:
    """How each client weighs the basis; blank is even, and differences below a tenth of that stay pale."""
    count = len(found[0])
    even = 1 / count
    reach = max(even / 10, *(abs(value - even) for row in found for value in row))
    values = [[(found[client][k] - even) / reach for client in order] for k in range(count)]

    def told(k: int, j: int) -> tuple[str, str]:
        value = found[order[j]][k]
        return f"{value:.2f}", f"client {order[j]}, basis prompt {k}: {value:.4f}, {value / even:.2f} times even"

    ends = ("less", f"{even + reach:.3g}")
    drawn = cell_chart(
        [Head(str(k)) for k in range(count)], [heads[client] for client in order], values, told,
        width=SQUARE, title="Attention over the basis prompts", ends=ends,
    )  # fmt: skip
    weights = [value for row in found for value in row]
    caption = (
        f"How much of each basis prompt a client asks for, from {min(weights):.3g} to {max(weights):.3g}. "
        f"Blank: {even:.3g}, an even share."
    )
    return Figure(Markup(drawn), Markup(), (), caption)


def _figure(draw: Draw, keys: Sequence[Key], caption: str) -> Figure:
    return Figure(Markup(draw(WIDE)), Markup(draw(NARROW)), tuple(keys), caption)


def _gallery(group: Group) -> dict[str, Any]:
    """The learned prompts of a group's first run, each with its client's main classes."""
    run = group.runs[0]
    shown = [
        {
            "source": f"data:image/png;base64,{b64encode(one.path.read_bytes()).decode('ascii')}",
            "name": f"client {one.client}",
            "kind": one.name,
            "classes": ", ".join(_main_classes(run.partition, one.client)),
        }
        for one in run.pictures[:MOST_PICTURES]
    ]
    return {"label": group.label, "pictures": shown, "hidden": len(run.pictures) - len(shown)}


def _main_classes(partition: Partition | None, client: int) -> list[str]:
    """The up to three classes a client holds most of, each at least a tenth of its images."""
    if partition is None or client >= len(partition.clients):
        return []
    counts = partition.clients[client].counts
    ordered = sorted(zip(counts, partition.classes, strict=False), key=lambda pair: -pair[0])
    return [name for count, name in ordered[:3] if count and count >= 0.1 * sum(counts)]


def _details(run: RunFolder) -> dict[str, Any]:
    """How a run was made, and the command that makes it again."""
    speed = {"images per second": f"{run.images_per_second:,.0f}"} if run.images_per_second else {}
    return {
        "name": run.path.name or str(run.path),
        "command": f"promptfed run {shlex.quote(str(run.path / 'recipe.toml'))}",
        "environment": {key.replace("_", " "): str(value) for key, value in run.env.items()} | speed,
        "recipe": run.recipe_text,
    }
