"""The sentences under a table: what failed, what differs from the paper, and how long the runs took."""

from collections.abc import Mapping
from typing import Any

from promptfed.papers.comparison import FAR, Agreement, CellResult, Comparison, Timing, difference

DIVERGED = "diverged"
NONE = "–"  # stands for a missing number


def remarks(outcome: Comparison) -> dict[str, list[str]]:
    """Return the sentences under the tables by heading; headings without sentences are left out."""
    groups = {
        "Unfinished": _unfinished(outcome),
        "Failures": failures(outcome),
        "Order of the methods": orders(outcome),
        f"More than {FAR:g} points from the paper": differences(outcome),
        "Deviations": outcome["deviations"],
        "Notes": outcome["notes"],
        "Time": [_took(one) for one in outcome.get("sittings", [])],
    }
    return {title: sentences for title, sentences in groups.items() if sentences}


def orders(outcome: Comparison) -> list[str]:
    """Return a sentence per column that compares the order of its methods with the paper's."""
    titles, found = {column["name"]: column["title"] for column in outcome["columns"]}, []
    for one in outcome.get("agreement", []):
        known = [(name, value) for name, value in one["rank_correlation"].items() if value is not None]
        if known:
            several = len(one["rank_correlation"]) > 1
            values = "; ".join(f"{value:.2f}{_by(name, one) if several else ''}" for name, value in known)
            place = f" in {titles[one['column']]}" if len(titles) > 1 else ""
            found.append(f"Rank correlation with the paper's order of {one['methods']} methods{place}: {values}.")
    return found


def _by(measure: str, agreement: Agreement) -> str:
    """Name the measure of a number, and say whether it is the paper's own."""
    return f" by {measure}{', which is what the paper prints' if measure == agreement.get('by') else ''}"


def differences(outcome: Comparison) -> list[str]:
    """Return a line for every cell that differs from the paper by more than `FAR` points, by the paper's measure."""
    far = {(one["column"], row): one.get("by") for one in outcome.get("agreement", []) for row in one["far"]}
    found = []
    for entry in outcome["rows"]:
        if entry["paper"] and (key := (entry["column"], entry["row"])) in far:
            place = entry["title"] if len(outcome["columns"]) == 1 else f"{entry['title']} ({entry['column']})"
            ours, more = _beside(entry, far[key])
            paper, apart = entry["paper"]["mean"], difference(entry["ours"], entry["paper"], far[key] or "mean")
            found.append(f"{place}: {ours}, the paper's is {two_decimals(paper)} ({signed(apart)}){more}.")
    return found


def compares_best(entry: CellResult, measure: str | None) -> bool:
    """Return whether our best round stands beside the paper's figure, and not the last round."""
    return measure == "best-round" and not entry["ours"].get("adapted")


def _beside(entry: CellResult, measure: str | None) -> tuple[str, str]:
    """Write our number that stands beside the paper's, with its name, and what we would measure ourselves."""
    mean, ours = two_decimals(entry["ours"]["mean"]), entry["ours"]
    weighted, own = f"weighted {two_decimals(ours.get('weighted'))}", f"{mean} ({signed(entry['difference'])})"
    if measure not in ("weighted", "best-round"):
        return mean, ""
    if not compares_best(entry, measure):
        return weighted, f"; the mean over clients is {own}"
    best = f"best round {two_decimals(ours.get('best_weighted'))}"
    return best, f"; in the last round {weighted}, and the mean over clients is {own}"


def _unfinished(outcome: Comparison) -> list[str]:
    count = outcome.get("unfinished", 0)
    runs = f"{count} run{' is' if count == 1 else 's are'}"
    return [f"{runs} not finished; until then a cell may be empty or have fewer seeds."] if count else []


def _took(one: Timing) -> str:
    """Write how many runs were made in how much time."""
    hours, minutes = divmod(round(one["seconds"] / 60), 60)
    time = f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{one['seconds']:.0f} s"
    side = f", {one['workers']} side by side" if one["workers"] > 1 else ""
    busy = "" if one["gpu_percent"] is None else f"; the GPU was busy {one['gpu_percent']:.0f} % of the time"
    runs = f"{one['runs']} run{'' if one['runs'] == 1 else 's'}"
    return f"{runs} in {time}{side}: {one['runs_per_hour']:.0f} an hour{busy}."


def failures(outcome: Comparison) -> list[str]:
    """Return a sentence for every run without a result; points of a grid that diverge are not failures."""
    found = []
    for entry in outcome["rows"]:
        place = entry["title"] if len(outcome["columns"]) == 1 else f"{entry['title']} ({entry['column']})"
        found += [f"{place}, seed {seed}: {sentence}" for seed, sentence in entry["ours"]["problems"].items()]
        tuned = entry["tuned"]
        if tuned is None:
            continue
        grid = [tried for tried in tuned["grid"] if tried["problem"] and DIVERGED not in tried["problem"]]
        found += [f"{place}, {setting_text(tried['setting'])}: {tried['problem']}" for tried in grid]
        if tuned["ours"]["recipe_hashes"] != entry["ours"]["recipe_hashes"]:
            best = f"{place}, {setting_text(tuned['setting'])}"
            found += [f"{best}, seed {seed}: {sentence}" for seed, sentence in tuned["ours"]["problems"].items()]
    return found


def two_decimals(value: float | None) -> str:
    """Write a number with two decimals."""
    return NONE if value is None else f"{value:.2f}"


def signed(value: float | None) -> str:
    """Write a number with its sign and two decimals."""
    return NONE if value is None else f"{value:+.2f}"


def setting_text(setting: Mapping[str, Any]) -> str:
    """Write the values of a grid point."""
    return ", ".join(f"{key.removeprefix('method.')}={value}" for key, value in setting.items())
