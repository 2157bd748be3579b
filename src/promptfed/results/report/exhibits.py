"""What a method shows of its clients: similarity of prompts, a map of descriptors, attention over basis prompts."""

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from promptfed.results.folder.values import ClientMatrix, DescriptorMap, Figures, Holdings, PromptSimilarity
from promptfed.results.report.client_plots import MOST_NAMES, Head, cell_chart, point_map
from promptfed.results.report.figure import SQUARE, Figure, Key
from promptfed.results.report.groups import RunGroup

MOST_GROUPS = 24


def exhibit(group: RunGroup) -> dict[str, Any]:
    """Return what a method shows of its clients in the group's first run, or why it cannot be shown."""
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


def _heads(figures: Figures, partition: Holdings | None) -> list[Head]:
    """Return each client with its group: its domain if there are several, else its most frequent class."""
    if _several_domains(figures):
        noun, numbers, names = "domain", figures.domains, figures.domain_names
    else:
        noun, numbers, names = "class", figures.classes, partition.classes if partition else ()
    series = {number: index for index, number in enumerate(sorted(set(numbers)))}
    return [
        Head(str(client), series[number], names[number] if 0 <= number < len(names) else f"{noun} {number}")
        for client, number in enumerate(numbers)
    ]


def _likeness(
    figures: Figures, found: PromptSimilarity, heads: Sequence[Head], order: Sequence[int]
) -> Iterable[Figure]:
    """Draw the similarity of the clients' prompts and the distance of their labels, both purple if clients agree."""
    ordered = [heads[client] for client in order]
    pairs = [(a, b) for a in range(len(heads)) for b in range(a)]
    cosines = [found.cosine[a][b] for a, b in pairs]

    def describe_prompts(i: int, j: int) -> tuple[str, str]:
        a, b = order[i], order[j]
        value, whole = found.centred[a][b], found.cosine[a][b]
        return f"{value:.2f}", f"clients {a} and {b}: {value:.3f}; with the mean prompt {whole:.4f}"

    def describe_labels(i: int, j: int) -> tuple[str, str]:
        a, b = order[i], order[j]
        same = "the same domain" if figures.domains[a] == figures.domains[b] else "different domains"
        value = found.label_distance[a][b]
        return f"{value:.2f}", f"clients {a} and {b}: distance {value:.3f}, {same}"

    alike = [[found.centred[a][b] for b in order] for a in order]
    drawn = cell_chart(
        ordered, ordered, alike, describe_prompts, width=SQUARE, title="Prompt similarity",
        ends=("−1 opposite", "1 same direction"),
    )  # fmt: skip
    caption = (
        "How similar the clients' prompts are: the cosine of any two without the mean prompt. With it, cosines range "
        f"from {min(cosines):.3f} to {max(cosines):.3f}; the prompts' distance from the mean prompt is on average "
        f"{100 * found.spread:.3g} % of its length."
    )
    yield Figure(Markup(drawn), Markup(), (), caption)
    near = [[1 - 2 * found.label_distance[a][b] for b in order] for a in order]
    drawn = cell_chart(
        ordered, ordered, near, describe_labels, width=SQUARE, title="Label distance",
        ends=("1 no class shared", "0 the same"),
    )  # fmt: skip
    caption = "How much the clients' labels differ: the total variation between their class shares."
    yield Figure(Markup(drawn), Markup(), (), caption + _correlations(found))


def _correlations(found: PromptSimilarity) -> str:
    """Say whether similar clients have similar prompts: one number for the labels and one for the domains."""
    known = {"label distance": found.label_correlation, "a difference of domain": found.domain_correlation}
    shown = [f"{_signed(value)} with {what}" for what, value in known.items() if value is not None]
    if not shown:
        return ""
    return (
        f" Rank correlation of prompt similarity: {' and '.join(shown)}; "
        "below zero, clients with similar images have similar prompts."
    )


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _places(found: DescriptorMap, heads: Sequence[Head]) -> Figure:
    named = [Head(f"client {head.name}", head.series, head.group) for head in heads]
    drawn = point_map(named, found.points, width=SQUARE, title="Map of the descriptors")
    if found.kind == "t-SNE":
        how = "by t-SNE, which keeps neighbours together; its axes and long distances mean nothing."
    else:
        shares = " and ".join(f"{100 * share:.0f} %" for share in found.explained)
        how = f"on their first two {found.kind}" + (f", with {shares} of the variance." if shares else ".")
    named_by = " A number names its client." if len(heads) <= MOST_NAMES else ""
    return Figure(Markup(drawn), Markup(), (), f"The clients' descriptors {how}{named_by}")


def _attention(found: ClientMatrix, heads: Sequence[Head], order: Sequence[int]) -> Figure:
    """Draw each client's weights over the basis prompts; even weights are blank, small differences pale."""
    count = len(found[0])
    even = 1 / count
    reach = max(even / 10, *(abs(value - even) for row in found for value in row))
    values = [[(found[client][k] - even) / reach for client in order] for k in range(count)]

    def describe(k: int, j: int) -> tuple[str, str]:
        value = found[order[j]][k]
        return f"{value:.2f}", f"client {order[j]}, basis prompt {k}: {value:.4f}, {value / even:.2f} times even"

    ends = ("less", f"{even + reach:.3g}")
    drawn = cell_chart(
        [Head(str(k)) for k in range(count)], [heads[client] for client in order], values, describe,
        width=SQUARE, title="Attention over the basis prompts", ends=ends,
    )  # fmt: skip
    weights = [value for row in found for value in row]
    caption = (
        f"The weight a client gives to each basis prompt, from {min(weights):.3g} to {max(weights):.3g}. "
        f"Blank: {even:.3g}, an even share."
    )
    return Figure(Markup(drawn), Markup(), (), caption)
