"""The report's sections of figures; a line in `RESULTS` or `WORKINGS` adds one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, stdev

from markupsafe import Markup

from promptfed.results.folder.values import Holdings, Round
from promptfed.results.report import domains, measured, sure
from promptfed.results.report.client_plots import MOST_BARS, Bars, client_chart, evenly, heat_map
from promptfed.results.report.curves import Trace, draw_traces
from promptfed.results.report.figure import SMALL, Chart, Figure, Key, both_widths
from promptfed.results.report.groups import RunGroup, Setting
from promptfed.results.report.plots import Curve, Load, Spot, exchange_chart, line_chart, traffic_chart

# More bars than this turn into curves on a phone.
CROWDED = 120
# Of more clients than this, the maps of who holds what show some.
MOST_COLUMNS = 1000


@dataclass(frozen=True)
class Section:
    """A section of the page: its anchor, its heading, and the function that draws its figures.

    `draw` gets the groups of one setting (all groups unless `per_setting`), each label's colour, and the beginning of
    the captions, which names the setting if there are several. A section without figures is left out.
    """

    name: str
    heading: str
    draw: Callable[[Sequence[RunGroup], Mapping[str, int], str], Iterable[Figure]]
    grid: bool = False  # small figures side by side
    per_setting: bool = True


@dataclass(frozen=True)
class Drawn:
    """A section with its figures."""

    section: Section
    figures: tuple[Figure, ...]


def drawn(sections: Sequence[Section], groups: Sequence[RunGroup]) -> list[Drawn]:
    """Draw the sections that have something to show."""
    # A method has one colour, in every figure and setting.
    colours = {label: index for index, label in enumerate(dict.fromkeys(group.label for group in groups))}
    by_setting: dict[Setting, list[RunGroup]] = {}
    for group in groups:
        by_setting.setdefault(group.setting, []).append(group)
    found = []
    for section in sections:
        parts = [(f"{setting}. " if len(by_setting) > 1 else "", some) for setting, some in by_setting.items()]
        parts = parts if section.per_setting else [("", list(groups))]
        figures = [
            figure
            for where, some in parts
            for figure in section.draw(some, colours, where)
            if figure.wide or figure.table
        ]
        if figures:
            found.append(Drawn(section, tuple(figures)))
    return found


def _over_seeds(
    group: RunGroup, read: Callable[[Round], float | None], scale: float = 1
) -> tuple[tuple[float, float], ...]:
    """Return a value per round, averaged over the seeds, for the rounds in which every seed has it."""
    found: dict[int, list[float]] = {}
    for run in group.runs:
        for one in run.rounds:
            if (value := read(one)) is not None:
                found.setdefault(one.number, []).append(scale * value)
    return tuple((number, mean(all_)) for number, all_ in sorted(found.items()) if len(all_) == len(group.runs))


def _curves(groups: Sequence[RunGroup], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Draw accuracy over the rounds: one method in detail, or the mean and the worst client of several."""
    yield draw_traces([_trace(group, colours[group.label]) for group in groups], where)


def _trace(group: RunGroup, colour: int) -> Trace:
    """Return a method's accuracy over the rounds, the mean over its seeds."""
    return Trace(
        label=group.label,
        colour=colour,
        mean=_over_seeds(group, lambda one: one.received.mean if one.received else None, 100),
        worst=_over_seeds(group, lambda one: one.received.worst if one.received else None, 100),
        best=_over_seeds(group, lambda one: one.received.best if one.received else None, 100),
        trained=_over_seeds(group, lambda one: one.trained.mean if one.trained else None, 100),
        deployed=_over_seeds(group, lambda one: (one.deployed or {}).get("all"), 100),
        joined=group.runs[0].joined,
        adapts=group.adapts,
    )


def _adapted(groups: Sequence[RunGroup], sentence: str) -> str:
    """Return the sentence with the names of the methods that adapt at the end; empty if none does."""
    names = [group.label for group in groups if group.adapts]
    return sentence.format(" and ".join(names)) if names else ""


def _clients(groups: Sequence[RunGroup], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Draw each client's final accuracy for the first seed; with another seed, client 3 is another client."""
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
    caption = f"Test accuracy of the clients in the last evaluation{seed}"
    caption += _adapted(groups, "; for {}, after adaptation") + ". "
    if many or sum(len(one.values) for one in series) > CROWDED:
        caption += "Where bars would not fit, a curve shows the clients sorted from worst to best. "
    caption += "The more even the values, the fewer clients are left behind."
    keys = [Key("line" if many else "bar", one.colour, one.label) for one in series]
    draw: Chart = lambda width: client_chart(series, width=width, title="Accuracy per client")  # noqa: E731
    yield both_widths(draw, keys, where + caption)


def _holdings(groups: Sequence[RunGroup], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Draw one map per partition: images by class, and by domain if there are several."""
    shown: dict[str, tuple[Holdings, Setting]] = {}
    for group in groups:
        partition = group.runs[0].partition
        if partition is not None:
            shown.setdefault(partition.hash, (partition, group.setting))
    for partition, setting in shown.values():
        where = f" {setting}." if len(shown) > 1 else ""
        clients = evenly(len(partition.clients), MOST_COLUMNS)
        held = [partition.clients[client] for client in clients]
        whose = "each client"
        if len(held) < len(partition.clients):
            whose = f"{len(held):,} of the {len(partition.clients):,} clients, evenly chosen,"
        shown_classes, shown_domains = ([getattr(client, part) for client in held] for part in ("counts", "domains"))
        yield _map(f"{whose} by class", partition.classes, clients, shown_classes, where)
        if len(partition.domain_names) > 1:
            yield _map(f"{whose} by domain", partition.domain_names, clients, shown_domains, where)


def _map(
    what: str, rows: Sequence[str], clients: Sequence[int], columns: Sequence[Sequence[int]], where: str
) -> Figure:
    total, noun = sum(map(sum, columns)), what.rpartition(" ")[2]
    caption = (
        f"Training images of {what}: {total:,} images in all.{where} "
        "The larger a mark (or the darker, if columns are narrow), the more images."
    )
    title = f"Images per client and {noun}"
    return both_widths(lambda width: heat_map(rows, columns, width=width, title=title, clients=clients), [], caption)


def _measures(groups: Sequence[RunGroup], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Draw a small chart of the test loss and of each number a method records."""
    names = dict.fromkeys(name for group in groups for run in group.runs for one in run.rounds for name in one.measures)
    readers: dict[str, Callable[[Round], float | None]] = {"test loss": lambda one: one.loss}
    readers |= {name.replace("_", " "): partial(_measured, name) for name in names}
    for name, read in readers.items():
        lines = [Curve(group.label, _over_seeds(group, read), colours[group.label]) for group in groups]
        lines = [line for line in lines if line.points]
        keys = [Key("line", line.colour, line.label) for line in lines] if len(groups) > 1 else []
        drawn = Markup(line_chart(lines, width=SMALL, title=name.capitalize(), y_label=name))
        over = "the test images of all clients" if name == "test loss" else "the clients of each round"
        yield Figure(drawn, Markup(), tuple(keys), f"{where}{name.capitalize()}, mean over {over}.")


def _measured(name: str, one: Round) -> float | None:
    return one.measures.get(name)


def _traffic(groups: Sequence[RunGroup], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Draw the bytes per client and round of the first seed."""
    loads = []
    for group in groups:
        run, sent = group.runs[0], group.runs[0].traffic
        notes = (f"{sent.down_floats:,} floats", f"{sent.up_floats:,} floats")
        loads.append(Load(group.label, run.down_bytes, run.up_bytes, colours[group.label], notes))
    caption = "Bytes sent per client and round, down to the client and up to the server. The scale is logarithmic."
    draw: Chart = lambda width: traffic_chart(loads, width=width, title="Traffic per client and round")  # noqa: E731
    yield both_widths(draw, [], where + caption)


def _exchange(groups: Sequence[RunGroup], colours: Mapping[str, int], where: str) -> Iterable[Figure]:
    """Draw accuracy against traffic, a point per method; a single method has nothing to compare with."""
    spots = []
    for group in groups:
        reached = [100 * run.scores.mean for run in group.runs if run.scores]
        if reached:
            sent = mean(run.traffic.down_floats + run.traffic.up_floats for run in group.runs)
            spread = stdev(reached) if len(reached) > 1 else 0.0
            spots.append(Spot(group.label, sent, mean(reached), spread, colours[group.label]))
    if len(spots) < 2:
        return
    caption = (
        "Higher is better, further left is cheaper. Numbers are those sent down to and up from one client in one round"
    )
    caption += "; the scale is logarithmic."
    if any(one.spread for one in spots):
        caption += " Bars: one standard deviation over the seeds in each direction."
    caption += _adapted(groups, " Accuracy of {}: after adaptation.")
    draw: Chart = lambda width: exchange_chart(spots, width=width, title="Accuracy against traffic")  # noqa: E731
    yield both_widths(draw, [], where + caption)


RESULTS = (
    Section("exchange", "Accuracy against traffic", _exchange),
    Section("curves", "Accuracy over the rounds", _curves),
    Section("clients", "Client by client", _clients),
    Section("sure", "How sure, and for whom", sure.draw_intervals),
    Section("classes", "Class by class", sure.draw_classes, grid=True),
    Section("quality", "The pictures it draws", measured.draw_quality),
    Section("holdings", "Who holds what", _holdings, per_setting=False),
)
WORKINGS = (
    Section("domains", "Which key for which domain", domains.draw, grid=True),
    Section("audit", "What a curious server learns", measured.draw_audit),
    Section("traffic", "Traffic", _traffic),
    Section("measures", "Measures over the rounds", _measures, grid=True),
)
