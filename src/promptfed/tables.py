"""What came out of a table's runs beside what the paper printed: table.json, table.md, and the terminal's tables.

All accuracies here are percents, as papers print them; a FID is what it is. Nothing here runs anything or imports
torch.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from promptfed.cells import Cell, Figure
from promptfed.errors import PromptFedError
from promptfed.files import write_json, write_text
from promptfed.report.measured import QUALITY
from promptfed.report.tables import Cell as Shown
from promptfed.report.tables import Column, Table, human_bytes

Values = NDArray[np.float64]
DIVERGED = "diverged"
FAR = 3.0  # points between ours and the paper's that are worth a line
FEWEST = 3  # methods whose order says something
LEGENDS = {
    "mean": "mean accuracy of the clients in percent, ± std over seeds",
    "deployed": "accuracy of the server's own model in percent, the mean over domains, ± std over seeds",
    "trained": "mean accuracy of the clients' models before the last aggregation in percent, ± std over seeds",
    "fid": "FID of the server's word, the lower the better, ± std over seeds; – until promptfed quality measures it",
}


class Traffic(TypedDict):
    """What one client receives and sends in one round."""

    down_floats: int
    up_floats: int
    down_bytes: float
    up_bytes: float


class Ours(TypedDict):
    """The runs of one setting, one per seed; a seed without a result is under `problems`, with a sentence."""

    mean: float | None
    std: float | None  # over seeds, the sample's
    weighted: NotRequired[float | None]  # every test image counts once, not every client
    measured: NotRequired[str]  # in which features a FID was taken, and of how many pictures
    per_client: list[float | None]
    before: float | None
    after: float | None
    by_seed: dict[str, float | None]
    recipe_hashes: dict[str, str]
    traffic: Traffic | None
    problems: dict[str, str]


class Tried(TypedDict):
    """One point of a row's grid and its mean accuracy on the validation images, or what was the problem."""

    setting: dict[str, Any]
    validation: float | None
    problem: str


class Tuned(TypedDict):
    """The best of a row's grid, and its runs on the test images; nothing is best where no point has a result."""

    setting: dict[str, Any]
    grid: list[Tried]
    ours: Ours
    difference: float | None


class Paper(TypedDict):
    """The paper's figures for the clients that we have too."""

    mean: float
    per_client: list[float]
    traffic: float | None


class Entry(TypedDict):
    """One row in one column."""

    column: str
    row: str
    title: str
    ours: Ours
    paper: Paper | None
    difference: float | None
    tuned: Tuned | None


class Agreement(TypedDict):
    """How far ours agree with the paper's in one column."""

    column: str
    methods: int
    rank_correlation: dict[str, float | None]  # of the methods' order, by measure; None: too few methods, or all alike
    far: list[str]  # rows that differ by more than three points


class Sitting(TypedDict):
    """What one command ran, in how much time."""

    began: str
    runs: int
    workers: int
    seconds: float
    runs_per_hour: float
    gpu_percent: float | None  # how busy the GPU was; None: there was none, or nobody could tell


class Heading(TypedDict):
    """One column: its clients have titles where the paper tells them apart."""

    name: str
    title: str
    clients: list[str]


class Outcome(TypedDict):
    """The content of table.json."""

    table: str
    title: str
    paper: str
    seeds: list[int]
    columns: list[Heading]
    rows: list[Entry]
    deviations: list[str]
    notes: list[str]
    measures: NotRequired[list[str]]
    agreement: NotRequired[list[Agreement]]
    sittings: NotRequired[list[Sitting]]


# -- from summaries to numbers --------------------------------------------------------------------------------------


def headline(summary: Mapping[str, Any], measure: str) -> Mapping[str, Any]:
    """Return `mean` and `per_client` of a run by that measure; of the server's own model, per domain."""
    if measure == "fid":
        return {"mean": _global(summary).get("fid"), "per_client": []}
    accuracy: Mapping[str, Any] = summary["accuracy"]
    if measure == "mean":
        return accuracy
    found: Mapping[str, Any] = accuracy.get(measure) or {}
    if measure == "trained":
        return {"mean": found.get("mean"), "per_client": found.get("per_client", [])}
    each = [value for name, value in found.items() if name != "all" or len(found) == 1]
    return {"mean": mean(each) if each else None, "per_client": each}


def with_quality(summary: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return a run's summary with what `promptfed quality` measured after its last round, if it did."""
    path = folder / QUALITY
    if not path.is_file():
        return summary
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {**summary, "quality": found} if found["round"] == summary["rounds"] else summary
    except (ValueError, KeyError, TypeError):
        raise PromptFedError(f"{path} is damaged; give promptfed quality {folder} again.") from None


def _global(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what was measured of the server's word; nothing if it has none, or if nobody measured."""
    words = summary.get("quality", {}).get("words", [])
    return next((line for line in words if line["word"] == "global" and "client" not in line), {})


def _measured_how(summary: Mapping[str, Any]) -> str:
    word = _global(summary)
    return f"{summary['quality']['features']}, {word['drawn']} pictures, {word['real']} images" if word else ""


def pool(
    summaries: Mapping[int, Mapping[str, Any]], problems: Mapping[int, str], per_round: int, measure: str = "mean"
) -> Ours:
    """Return the runs of one setting as one value; `summaries` and `problems` are by seed."""
    found = [summaries[seed] for seed in sorted(summaries)]
    accuracies = [summary["accuracy"] for summary in found]
    scale = 1 if measure == "fid" else 100
    means = {str(seed): _times(scale, headline(summaries[seed], measure)["mean"]) for seed in sorted(summaries)}
    known = [value for value in means.values() if value is not None]
    ours: Ours = {
        "mean": _mean(list(means.values())),
        "std": round(stdev(known), 4) if len(known) > 1 else None,
        "weighted": _mean([_percent(accuracy.get("weighted")) for accuracy in accuracies]),
        "per_client": _per_client(found, measure),
        "before": _mean([_percent((accuracy["before"] or {}).get("mean")) for accuracy in accuracies]),
        "after": _mean([_percent((accuracy["after"] or {}).get("mean")) for accuracy in accuracies]),
        "by_seed": means,
        "recipe_hashes": {str(seed): summaries[seed]["recipe_hash"] for seed in sorted(summaries)},
        "traffic": _traffic(found[0], per_round) if found else None,
        "problems": {str(seed): problems[seed] for seed in sorted(problems)},
    }
    if measure == "fid":
        ours["measured"] = "; ".join(dict.fromkeys(filter(None, map(_measured_how, found))))
    return ours


def paper_of(cell: Cell, clients: int) -> Paper | None:
    """Return the paper's figures; where we have only the first of its clients, its mean is taken over those."""
    figure: Figure | None = cell.figure
    if figure is None:
        return None
    ours = list(figure.clients[:clients])
    shortened = bool(ours) and len(ours) < len(figure.clients)
    return {
        "mean": round(mean(ours), 2) if shortened else figure.mean,
        "per_client": ours,
        "traffic": cell.row.traffic,
    }


def difference(ours: Ours, paper: Paper | None) -> float | None:
    """Return ours minus the paper's, in points."""
    return None if paper is None or ours["mean"] is None else round(ours["mean"] - paper["mean"], 2)


def agreement(rows: Sequence[Entry], measures: Sequence[str]) -> list[Agreement]:
    """Compare the order of the methods, ours and the paper's, column by column; rows without either are left out."""
    found: list[Agreement] = []
    for column in dict.fromkeys(entry["column"] for entry in rows):
        both = [(entry, entry["paper"]["mean"]) for entry in rows if entry["column"] == column and entry["paper"]]
        both = [(entry, printed) for entry, printed in both if entry["ours"]["mean"] is not None]
        if not both:
            continue
        printed = [value for _, value in both]
        correlations = {
            name: rank_correlation([_measured(entry, name) for entry, _ in both], printed) for name in measures
        }
        far = [entry["row"] for entry, _ in both if abs(entry["difference"] or 0.0) > FAR]
        found.append({"column": column, "methods": len(both), "rank_correlation": correlations, "far": far})
    return found


def rank_correlation(ours: Sequence[float | None], theirs: Sequence[float]) -> float | None:
    """Return Spearman's correlation: 1 for the same order, −1 for the opposite; equal values share a rank."""
    pairs = [(one, other) for one, other in zip(ours, theirs, strict=True) if one is not None]
    if len(pairs) < FEWEST:
        return None
    first, second = (_ranks(np.array(side)) for side in zip(*pairs, strict=True))
    first, second = first - first.mean(), second - second.mean()
    length = math.sqrt(float(first @ first) * float(second @ second))
    return round(float(first @ second) / length, 4) if length else None


def _ranks(values: Values) -> Values:
    """Return each value's rank from 0, equal ones at their mean rank."""
    below = (values[:, None] > values).sum(1)
    ranks: Values = below + ((values[:, None] == values).sum(1) - 1) / 2
    return ranks


def _measured(entry: Entry, measure: str) -> float | None:
    return entry["ours"].get("weighted") if measure == "weighted" else entry["ours"]["mean"]


def _weighted_difference(entry: Entry) -> float | None:
    """Return ours minus the paper's where every test image counts once."""
    ours, paper = entry["ours"].get("weighted"), entry["paper"]
    return None if ours is None or paper is None else round(ours - paper["mean"], 2)


def _percent(fraction: float | None) -> float | None:
    return _times(100, fraction)


def _times(scale: int, value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(scale * value, 4)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(mean(known), 4) if known else None


def _per_client(found: Sequence[Mapping[str, Any]], measure: str) -> list[float | None]:
    """Average every client or domain over the seeds, unless a seed's partition makes client 0 somebody else."""
    if measure != "deployed" and len({summary["partition_hash"] for summary in found}) > 1:
        return []
    runs = [headline(summary, measure)["per_client"] for summary in found]
    return [_mean([_percent(value) for value in client]) for client in zip(*runs, strict=True)]


def _traffic(summary: Mapping[str, Any], per_round: int) -> Traffic:
    sent, contacts = summary["traffic"], summary["rounds"] * per_round
    return {
        "down_floats": sent["down_floats"],
        "up_floats": sent["up_floats"],
        "down_bytes": round(sent["down_bytes"] / contacts, 1),
        "up_bytes": round(sent["up_bytes"] / contacts, 1),
    }


# -- files ----------------------------------------------------------------------------------------------------------


def write_table(folder: Path, outcome: Outcome) -> None:
    """Write table.json and table.md."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "table.json", outcome)
    write_text(folder / "table.md", to_markdown(outcome))


def read_table(folder: Path) -> Outcome:
    """Return the content of table.json in `folder`; `to_markdown` writes it as table.md has it."""
    path = folder / "table.json"
    try:
        content: Outcome = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PromptFedError(f"There is no table in {folder}: {path.name}: {error.strerror}.") from error
    except ValueError as error:
        raise PromptFedError(f"{path} is no valid JSON: {error}.") from error
    if not isinstance(content, dict) or not Outcome.__required_keys__ <= set(content):
        raise PromptFedError(f"{path} is no table.json of promptfed reproduce.")
    return content


# -- showing --------------------------------------------------------------------------------------------------------


def to_markdown(outcome: Outcome) -> str:
    """Write the tables, failures, deviations and notes as Markdown."""
    seeds = f"Seed{'s' if len(outcome['seeds']) > 1 else ''} {', '.join(map(str, outcome['seeds']))}."
    blocks = [f"# {outcome['title']}", " ".join(filter(None, [outcome["paper"], seeds]))]
    several = len(outcome["columns"]) > 1
    for title, table in views(outcome):
        blocks += [f"## {title}"] if several else []
        blocks.append(table.to_markdown().rstrip())
    for title, sentences in remarks(outcome).items():
        blocks += [f"## {title}", "\n".join(f"- {sentence}" for sentence in sentences)]
    return "\n\n".join(blocks) + "\n"


def remarks(outcome: Outcome) -> dict[str, list[str]]:
    """Return the sentences under the tables by their heading; empty headings are left out."""
    groups = {
        "Failures": failures(outcome),
        "Order of the methods": orders(outcome),
        f"More than {FAR:g} points from the paper": differences(outcome),
        "Deviations": outcome["deviations"],
        "Notes": outcome["notes"],
        "Time": [_took(one) for one in outcome.get("sittings", [])],
    }
    return {title: sentences for title, sentences in groups.items() if sentences}


def orders(outcome: Outcome) -> list[str]:
    """Return a sentence per column about the order of its methods, ours against the paper's."""
    titles, found = {column["name"]: column["title"] for column in outcome["columns"]}, []
    for one in outcome.get("agreement", []):
        known = [(name, value) for name, value in one["rank_correlation"].items() if value is not None]
        if known:
            values = ", ".join(f"{value:.2f} by {name}" if len(known) > 1 else f"{value:.2f}" for name, value in known)
            place = f" in {titles[one['column']]}" if len(titles) > 1 else ""
            found.append(f"Rank correlation with the paper's order of {one['methods']} methods{place}: {values}.")
    return found


def differences(outcome: Outcome) -> list[str]:
    """Return a line for every cell that is more than three points from the paper's."""
    far = {(one["column"], row) for one in outcome.get("agreement", []) for row in one["far"]}
    found = []
    for entry in outcome["rows"]:
        if entry["paper"] and (entry["column"], entry["row"]) in far:
            place = entry["title"] if len(outcome["columns"]) == 1 else f"{entry['title']} ({entry['column']})"
            ours, paper = _two(entry["ours"]["mean"]), _two(entry["paper"]["mean"])
            text = f"{place}: {ours}, the paper's is {paper} ({_signed(entry['difference'])})"
            if "weighted" in outcome.get("measures", []):
                text += f"; weighted {_two(entry['ours'].get('weighted'))} ({_signed(_weighted_difference(entry))})"
            found.append(f"{text}.")
    return found


def _took(one: Sitting) -> str:
    """Write how much was run in how much time."""
    hours, minutes = divmod(round(one["seconds"] / 60), 60)
    time = f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{one['seconds']:.0f} s"
    side = f", {one['workers']} side by side" if one["workers"] > 1 else ""
    busy = "" if one["gpu_percent"] is None else f"; the GPU was busy {one['gpu_percent']:.0f} % of the time"
    runs = f"{one['runs']} run{'' if one['runs'] == 1 else 's'}"
    return f"{runs} in {time}{side}: {one['runs_per_hour']:.0f} an hour{busy}."


def failures(outcome: Outcome) -> list[str]:
    """Return a sentence for every run that gave no result; that some points of a grid diverge is no failure."""
    found = []
    for entry in outcome["rows"]:
        place = entry["title"] if len(outcome["columns"]) == 1 else f"{entry['title']} ({entry['column']})"
        found += [f"{place}, seed {seed}: {sentence}" for seed, sentence in entry["ours"]["problems"].items()]
        tuned = entry["tuned"]
        if tuned is None:
            continue
        grid = [tried for tried in tuned["grid"] if tried["problem"] and DIVERGED not in tried["problem"]]
        found += [f"{place}, {_setting(tried['setting'])}: {tried['problem']}" for tried in grid]
        if tuned["ours"]["recipe_hashes"] != entry["ours"]["recipe_hashes"]:
            best = f"{place}, {_setting(tuned['setting'])}"
            found += [f"{best}, seed {seed}: {sentence}" for seed, sentence in tuned["ours"]["problems"].items()]
    return found


def views(outcome: Outcome) -> list[tuple[str, Table]]:
    """Return one table per column that has rows, under its title."""
    found = []
    for heading in outcome["columns"]:
        entries = [entry for entry in outcome["rows"] if entry["column"] == heading["name"]]
        if entries:
            found.append((heading["title"], _view(heading, entries, outcome.get("measures", ["mean"]))))
    return found


def _view(heading: Heading, entries: Sequence[Entry], measures: Sequence[str]) -> Table:
    """Lay out one column of the paper's table: method, clients, ours, the paper's, difference, traffic."""
    parts: list[tuple[Column, list[Shown]]] = [
        (Column("method", "", ("method",), False), [_text(entry["title"]) for entry in entries])
    ]
    for number, title in enumerate(heading["clients"]):
        shown = [_client(entry, number) for entry in entries]
        parts.append((Column(title, "ours (paper's)" if number == 0 else "", (title,)), shown))
    ours = Column("ours", LEGENDS[measures[0]], ("ours",))
    parts.append((ours, _best([entry["ours"] for entry in entries], lowest=measures[0] == "fid")))
    parts.append((_plain("paper"), [_text(_two(entry["paper"] and entry["paper"]["mean"])) for entry in entries]))
    parts.append((_plain("ours − paper"), [_text(_signed(entry["difference"])) for entry in entries]))
    if "weighted" in measures:
        shown = [_text(_two(entry["ours"].get("weighted"))) for entry in entries]
        parts.append((Column("weighted", "every test image counts once, not every client", ("weighted",)), shown))
        parts.append((_plain("weighted − paper"), [_text(_signed(_weighted_difference(entry))) for entry in entries]))
    if any(entry["tuned"] for entry in entries):
        parts += _tuned(entries)
    if measures[0] == "fid":
        shown = [_text(entry["ours"].get("measured") or "–") for entry in entries]
        parts.append((Column("measured", "features, pictures drawn, real images", ("measured",), False), shown))
    accuracies = (("before", "as received, untrained"), ("after", "after one more local training"))
    for key, legend in () if measures[0] == "fid" else accuracies:
        shown = [_text(_two(entry["ours"]["before" if key == "before" else "after"])) for entry in entries]
        parts.append((Column(key, legend, (key,)), shown))
    shown = [_text(_sent(entry["ours"]["traffic"])) for entry in entries]
    parts.append((Column("down + up", "numbers per client and round", ("traffic",)), shown))
    if any(entry["paper"] and entry["paper"]["traffic"] for entry in entries):
        shown = [_text(_count(entry["paper"] and entry["paper"]["traffic"])) for entry in entries]
        parts.append((Column("paper's cost", "numbers, as printed", ("cost",)), shown))
    columns, cells = zip(*parts, strict=True)
    return Table(tuple(columns), tuple(zip(*cells, strict=True)))


def _tuned(entries: Sequence[Entry]) -> list[tuple[Column, list[Shown]]]:
    """Lay out what `--tune` found."""
    tuned = [entry["tuned"] for entry in entries]
    chosen = [_text(_setting(one["setting"]) if one and one["setting"] else "–") for one in tuned]
    return [
        (
            Column("best of grid", "the same with the setting that did best on validation images", ("tuned",)),
            _best([one["ours"] if one else None for one in tuned]),
        ),
        (_plain("best − paper"), [_text(_signed(one["difference"] if one else None)) for one in tuned]),
        (Column("chosen", "", ("chosen",), False), chosen),
    ]


def _setting(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.removeprefix('method.')}={value}" for key, value in setting.items())


def _plain(title: str) -> Column:
    return Column(title, "", (title,))


def _text(text: str) -> Shown:
    return Shown(text, (text,))


def _best(found: Sequence[Ours | None], lowest: bool = False) -> list[Shown]:
    """Write every mean ± std, the highest (of distances the lowest) in bold where there is a choice."""
    means = [round(ours["mean"], 2) if ours and ours["mean"] is not None else None for ours in found]
    known, best = {value for value in means if value is not None}, min if lowest else max
    cells = []
    for ours, value in zip(found, means, strict=True):
        text = _ours(ours) if ours else "–"
        cells.append(Shown(text, (text,), best=len(known) > 1 and value == best(known)))
    return cells


def _ours(ours: Ours) -> str:
    words = ["diverged" if DIVERGED in sentence else "failed" for sentence in ours["problems"].values()]
    if ours["mean"] is None:
        return " and ".join(sorted(set(words))) or "–"
    spread = "" if ours["std"] is None else f" ± {ours['std']:.2f}"
    lost = ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))
    return f"{ours['mean']:.2f}{spread}" + (f" ({lost})" if lost else "")


def _client(entry: Entry, number: int) -> Shown:
    ours, paper = entry["ours"]["per_client"], entry["paper"]
    text = _two(ours[number] if number < len(ours) else None)
    printed = paper["per_client"] if paper else []
    return _text(f"{text} ({printed[number]:.2f})" if number < len(printed) else text)


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _sent(traffic: Traffic | None) -> str:
    if traffic is None:
        return "–"
    size = human_bytes(traffic["down_bytes"] + traffic["up_bytes"])
    return f"{traffic['down_floats']:,} + {traffic['up_floats']:,} ({size})"
