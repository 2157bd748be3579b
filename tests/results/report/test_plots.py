"""The figures: right places, right words, and no colour of their own."""

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.results.report.client_plots import Bars, Head, cell_chart, client_chart, heat_map, point_map
from promptfed.results.report.plots import Curve, Load, Spot, exchange_chart, line_chart, traffic_chart
from promptfed.results.report.svg import nice_ticks

NAME = "{http://www.w3.org/2000/svg}"


def parse(svg: str) -> ElementTree.Element:
    """Read an SVG; this fails where it is not well-formed."""
    return ElementTree.fromstring(svg)


def texts(svg: str, kind: str) -> list[str]:
    """The texts of one class."""
    return [one.text or "" for one in parse(svg).iter("text") if kind in one.get("class", "").split()]


def test_an_event_is_an_upright_line_with_its_name() -> None:
    curve = line([50, 60, 70, 80, 90])
    svg = line_chart([curve], width=400, title="t", y_label="y", events={2.0: "a<b", 5.0: "last", 9.0: "too late"})
    places = [one.get("d", "") for one in parse(svg).iter("path") if one.get("class") == "event"]
    # rounds 1 to 5 lie on 46 … 346, from the top at 30 to 40 above the foot at 250
    assert places == ["M121 30V210", "M346 30V210"]
    assert "a<b" in texts(svg, "start")
    assert "last" in texts(svg, "end")
    assert "too late" not in svg
    assert 'class="event"' not in line_chart([curve], width=400, title="t", y_label="y")


def tooltips(svg: str) -> list[str]:
    """All tooltips but the figure's own title."""
    return [one.text or "" for one in parse(svg).iter("title")][1:]


def line(values: list[float], colour: int = 0, label: str = "pfedpt") -> Curve:
    """A curve with a band of one below and one above."""
    points = tuple((float(index + 1), value) for index, value in enumerate(values))
    return Curve(label, points, colour, band=tuple((x, y - 1, y + 1) for x, y in points))


HEADS = [Head("0", 0, "a<b"), Head("2", 0, "a<b"), Head("1", 9, "street")]


def told(row: int, column: int) -> tuple[str, str]:
    """A cell's number and tooltip, both its place."""
    return f"{row}{column}", f"row {row} & column {column}"


FIGURES = {
    "line": line_chart(
        [line([50, 60, 70]), line([40, 45, 50], 9, "a<b")], width=960, title="A & B", y_label="y", unit="%"
    ),
    "bars": client_chart([Bars("x", (50.0, None), 0), Bars("y", (60.0, 70.0), 1)], width=380, title="Clients"),
    "curve": client_chart([Bars("x", tuple(map(float, range(61))), 0)], width=380, title="Clients"),
    "heat": heat_map(["a<b", "c"], [[4, 0], [1, 16]], width=960, title="Who"),
    "shade": heat_map(["a", "c"], [[4, 1]] * 100, width=380, title="Who"),
    "traffic": traffic_chart([Load("x", 3e6, 30720, 0), Load("local", 0, 0, 1)], width=960, title="Traffic"),
    "exchange": exchange_chart([Spot("a<b", 15360, 90, 1, 0), Spot("local", 0, 70, 0, 9)], width=960, title="A & T"),
    "cells": cell_chart(HEADS, HEADS, [[1, 0.5, -1], [0.5, 1, 0], [-1, 0, 1]], told, width=400, title="Cells"),
    "map": point_map(HEADS, [(-1, 0), (0, 0.5), (1, 0)], width=400, title="Map"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_well_formed_responsive_and_described(name: str) -> None:
    root = parse(FIGURES[name])
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.findtext("title") != ""
    assert root.findtext("desc")


@pytest.mark.parametrize("name", FIGURES)
def test_no_figure_has_a_colour_of_its_own(name: str) -> None:
    assert not re.search(r'(fill|stroke|style|color)="', FIGURES[name])
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b|rgb\(", FIGURES[name])


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 100, (0, 25, 50, 75, 100)), (0, 1, (0, 0.25, 0.5, 0.75, 1)), (5, 5, (4, 6, 8, 10))],
)  # fmt: skip
def test_ticks_are_round_numbers(low: float, high: float, ticks: tuple[float, ...]) -> None:
    assert nice_ticks(low, high) == ticks


@settings(deadline=None)
@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e6), st.integers(2, 12), st.booleans())
def test_ticks_enclose_the_values_and_are_few(low: float, span: float, count: int, whole: bool) -> None:
    ticks = nice_ticks(low, low + span, count, whole)
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low + 1e-6 * step
    assert ticks[-1] >= low + span - 1e-6 * step
    assert 2 <= len(ticks) <= count + 2
    assert not whole or all(tick == int(tick) for tick in ticks)


def test_a_curve_tells_its_values_and_stays_in_its_frame() -> None:
    svg = line_chart([line([50, 60, 70.25])], width=400, title="t", y_label="accuracy (%)", unit="%")
    assert "pfedpt, round 2: 60.0%" in tooltips(svg)
    assert texts(svg, "tag") == ["70.2"]
    assert texts(svg, "axis") == ["accuracy (%)", "round"]
    heights = [float(one.get("cy", "nan")) for one in parse(svg).iter("circle")]
    assert all(0 < y < 250 for y in heights)
    assert heights[0] < heights[-1], "the last value, drawn first, is the highest"


def test_end_values_do_not_overlap() -> None:
    svg = line_chart([line([50, 60]), line([50, 60.1], 1), line([50, 60], 2)], width=400, title="t", y_label="y")
    places = sorted(float(one.get("y", "nan")) for one in parse(svg).iter("text") if "tag" in one.get("class", ""))
    assert all(b - a >= 12.9 for a, b in itertools.pairwise(places))


@pytest.mark.parametrize("value", [0.0, 60.0, 100.0, 100 - 1e-13])
@pytest.mark.parametrize("rounds", [1, 3])
def test_values_that_are_all_the_same_show_the_whole_scale(value: float, rounds: int) -> None:
    points = tuple((float(number + 1), value) for number in range(rounds))
    curve = Curve("a", points, 0, band=tuple((x, y, y) for x, y in points))
    charts = (
        line_chart([curve], width=400, title="t", y_label="y", unit="%"),
        exchange_chart([Spot("a", 10, value, 0, 0), Spot("b", 20, value, 0, 1)], width=400, title="t"),
    )
    for svg in charts:
        assert texts(svg, "end")[:5] == ["0", "25", "50", "75", "100"]
        root = parse(svg)
        foot = float(root.get("height", "")) - 40
        heights = [float(one.get("cy", "")) for one in root.iter("circle")]
        assert heights == pytest.approx([foot + (30 - foot) * value / 100] * len(heights), abs=0.06)


@pytest.mark.parametrize(("value", "ticks"), [(0.0, ["0", "25", "50", "75", "100"]), (100.0, ["0", "25"])])
def test_clients_that_are_all_wrong_or_all_right(value: float, ticks: list[str]) -> None:
    svg = client_chart([Bars("x", (value,) * 3, 0)], width=380, title="t")
    assert texts(svg, "end")[: len(ticks)] == ticks
    many = client_chart([Bars("x", (value,) * 61, 0)], width=380, title="t")
    assert texts(many, "end")[:5] == ["0", "25", "50", "75", "100"]


def test_a_loss_that_never_changes() -> None:
    for value in (0.0, 2.0):
        assert texts(line_chart([Curve("a", ((1.0, value),), 0)], width=400, title="t", y_label="y"), "end")[0] == "0"


def test_a_single_point_and_no_point() -> None:
    assert len(tooltips(line_chart([line([3.0])], width=400, title="t", y_label="y"))) == 1
    assert line_chart([], width=400, title="t", y_label="y") == ""


def test_many_points_carry_few_dots() -> None:
    svg = line_chart([line([float(value) for value in range(1000)])], width=400, title="t", y_label="y")
    assert len(tooltips(svg)) == 40


def test_bars_stand_side_by_side_and_name_the_untested() -> None:
    svg = FIGURES["bars"]
    first = ["x, client 0: 50.00%", "y, client 0: 60.00%"]
    assert tooltips(svg) == [*first, "x, client 1: no test images", "y, client 1: 70.00%"]
    rects = [(float(one.get("x", "")), float(one.get("width", ""))) for one in parse(svg).iter("rect")]
    assert all(x + width <= after for (x, width), (after, _) in itertools.pairwise(rects))


@pytest.mark.parametrize("clients", [4, 12, 60])
def test_up_to_sixty_clients_have_bars(clients: int) -> None:
    svg = client_chart([Bars("x", (50.0,) * clients, 0)], width=380, title="t")
    assert len(list(parse(svg).iter("rect"))) == clients
    marks = [float(one.get("x", "")) for one in parse(svg).iter("text") if "mid" in one.get("class", "")][:-1]
    assert all(b - a >= 20 for a, b in itertools.pairwise(marks)), "client numbers must not touch"


def test_more_than_sixty_clients_are_a_sorted_curve() -> None:
    svg = client_chart([Bars("x", (*map(float, range(100, 0, -1)), None), 0)], width=960, title="t")
    assert not list(parse(svg).iter("rect"))
    assert "clients, worst to best (%)" in texts(svg, "axis")
    assert tooltips(svg)[0] == "x, clients, worst to best (%) 100: 100.0%"


def test_bars_too_thin_to_see_become_a_curve() -> None:
    series = [Bars(name, (50.0,) * 50, index) for index, name in enumerate("abc")]
    assert list(parse(client_chart(series, width=960, title="t")).iter("rect"))
    assert not list(parse(client_chart(series, width=380, title="t")).iter("rect"))


def test_circle_area_is_the_number_of_images() -> None:
    svg = FIGURES["heat"]
    radii = [float(one.get("r", "")) for one in parse(svg).iter("circle")]
    assert radii[0] == pytest.approx(2 * radii[1], rel=0.01)
    assert radii[2] == pytest.approx(4 * radii[1], rel=0.01)
    assert "client 1, c: 16 images" in tooltips(svg)


def test_narrow_columns_are_shaded_cells() -> None:
    root = parse(FIGURES["shade"])
    assert not list(root.iter("circle"))
    assert [one.get("fill-opacity") for one in root.iter("rect")][:2] == ["1.00", "0.57"]


def test_long_class_names_are_cut_but_told() -> None:
    svg = heat_map(["a very long class name"], [[1]], width=380, title="t")
    assert texts(svg, "end") == ["a very lo…"]
    assert "a very long class name" in tooltips(svg)


def test_traffic_is_logarithmic() -> None:
    loads = [Load("a", 1e3, 1e4, 0), Load("b", 1e5, 0, 1)]
    svg = traffic_chart(loads, width=960, title="t")
    one, ten, hundred, nothing = (float(rect.get("width", "")) for rect in parse(svg).iter("rect"))
    assert hundred - ten == pytest.approx(ten - one, abs=0.2)
    assert nothing == 0
    assert "↑ nothing" in texts(svg, "tick")


def test_colours_repeat_after_the_palette() -> None:
    assert 's1"' in FIGURES["line"]
    assert 's9"' not in FIGURES["line"]


def test_the_numbers_exchanged_are_logarithmic_and_none_stands_apart() -> None:
    spots = [Spot(f"m{power}", 10.0**power, 80, 0, power) for power in (3, 4, 6)] + [Spot("local", 0, 70, 0, 0)]
    svg = exchange_chart(spots, width=960, title="t")
    three, four, six, none = (float(one.get("cx", "")) for one in parse(svg).iter("circle") if not one.get("class"))
    assert six - four == pytest.approx(2 * (four - three), abs=0.2)
    assert none < three - 30
    assert [text for text in texts(svg, "mid") if not text.startswith("numbers")] == ["1k", "10k", "100k", "1M", "none"]
    assert texts(svg, "tag") == ["m3", "m4", "m6", "local"]
    assert "local: 70.00%, no number exchanged per client and round" in tooltips(svg)
    assert "none" not in texts(exchange_chart(spots[:3], width=960, title="t"), "tick")


def test_seeds_have_an_error_bar() -> None:
    svg = exchange_chart([Spot("a", 100, 80, 10, 0), Spot("b", 100, 99, 3, 1)], width=960, title="t")
    assert "a: 80.00 ± 10.00%, 100 numbers exchanged per client and round" in tooltips(svg)
    dots = [float(one.get("cy", "")) for one in parse(svg).iter("circle") if not one.get("class")]
    bars = [one.get("d", "") for one in parse(svg).iter("path") if "line" in one.get("class", "")]
    low, high = (float(number) for number in re.findall(r"^M[\d.]+ ([\d.]+)V([\d.]+)", bars[0])[0])
    assert (low + high) / 2 == pytest.approx(dots[0], abs=0.1)
    assert high < dots[0] < low
    assert float(re.findall(r"V([\d.]+)", bars[1])[0]) == 30, "a bar ends at 100 percent, the top"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 100), st.floats(0, 20)), min_size=1, max_size=8))
def test_every_spot_stays_in_the_frame(found: list[tuple[int, float, float]]) -> None:
    spots = [Spot(f"method {i}", floats, value, spread, i) for i, (floats, value, spread) in enumerate(found)]
    for width in (380, 960):
        root = parse(exchange_chart(spots, width=width, title="t"))
        for one in root.iter("circle"):
            assert 46 <= float(one.get("cx", "")) <= width - 16
            assert 30 <= float(one.get("cy", "")) <= 250 + width / 8 - 40
    assert exchange_chart([], width=380, title="t") == ""


def test_cells_are_shaded_on_either_side_of_zero() -> None:
    svg = FIGURES["cells"]
    cells = [one for one in parse(svg).iter("g") if "cell" in one.get("class", "")]
    kinds = [(one.get("class", "").split()[1], one[0].get("fill-opacity")) for one in cells]
    assert kinds[:3] == [("more", "1.00"), ("more", "0.50"), ("less", "1.00")]
    assert texts(svg, "in-cell")[:4] == ["00", "01", "02", "10"]
    assert "row 0 & column 2" in tooltips(svg)
    assert texts(svg, "end") == ["0", "2", "1", "-1"], "row names in their order, then the low end of the scale"


def test_a_group_of_neighbours_is_outlined_and_striped() -> None:
    root = parse(FIGURES["cells"])
    (block,) = (one for one in root.iter("rect") if one.get("class") == "block")
    strips = [one.get("class") for one in root.iter("rect") if "strip" in one.get("class", "")]
    assert strips == ["strip s0", "strip s0", "strip s1"] * 2
    assert float(block.get("width", "")) == pytest.approx(2 * 52)
    alone = cell_chart(HEADS[:2], HEADS[:2], [[1, 1]] * 2, told, width=400, title="t")
    assert "block" not in alone, "one group needs no outline"


def test_many_cells_have_neither_tooltips_nor_numbers() -> None:
    heads = [Head(str(client)) for client in range(64)]
    svg = cell_chart(heads, heads, [[0.5] * 64] * 64, told, width=400, title="t")
    assert tooltips(svg) == []
    assert texts(svg, "in-cell") == []
    assert svg.count('fill-opacity="0.50"') == 64 * 64
    marks = [float(one.get("x", "")) for one in parse(svg).iter("text") if one.get("class") == "tick mid"]
    assert all(b - a >= 20 for a, b in itertools.pairwise(marks)), "client numbers must not touch"


def test_many_rows_stay_low() -> None:
    rows = [Head(str(k)) for k in range(100)]
    root = parse(cell_chart(rows, HEADS, [[0.0] * 3] * 100, told, width=400, title="t"))
    assert float(root.get("height", "")) == 36 + 3 * 100 + 66


def test_points_keep_their_proportions_and_groups_their_shapes() -> None:
    svg = FIGURES["map"]
    marks = [one for one in parse(svg).iter("path") if "mark" in one.get("class", "")]
    assert [one.get("class") for one in marks] == ["mark s0", "mark s0", "mark s1"]
    starts = [tuple(map(float, re.findall(r"^M([\d.]+) ([\d.]+)", one.get("d", ""))[0])) for one in marks]
    # A circle's outline starts 5 left of its middle, a square's 4.5 left of and above it.
    (ax, ay), (bx, by), (cx, cy) = (starts[0][0] + 5, starts[0][1]), (starts[1][0] + 5, starts[1][1]), starts[2]
    assert bx - ax == pytest.approx(2 * (ay - by), abs=0.3)
    assert (cx + 4.5 - ax, cy + 4.5) == pytest.approx((2 * (bx - ax), ay), abs=0.3)
    assert texts(svg, "tick") == ["0", "2", "1"]
    assert tooltips(svg)[0] == "0, a<b: -1.000, 0.000"


def test_points_on_one_spot_are_not_named_over_each_other() -> None:
    heads = [Head(str(client), 0) for client in range(30)]
    svg = point_map(heads, [(0.0, 0.0)] * 30, width=400, title="t")
    places = {(one.get("x"), one.get("y")) for one in parse(svg).iter("text") if "tick" in one.get("class", "")}
    assert len(places) == len(texts(svg, "tick")) < 30
    assert len(tooltips(svg)) == 30
    crowd = point_map([Head(str(client), 0) for client in range(33)], [(0.0, 0.0)] * 33, width=400, title="t")
    assert texts(crowd, "tick") == []
