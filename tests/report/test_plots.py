"""The figures: right places, right words, and no colour of their own."""

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.report.plots import Bars, Line, Load, client_chart, heat_map, line_chart, nice_ticks, traffic_chart

NAME = "{http://www.w3.org/2000/svg}"


def parse(svg: str) -> ElementTree.Element:
    """Read an SVG; this fails where it is not well-formed."""
    return ElementTree.fromstring(svg)


def texts(svg: str, kind: str) -> list[str]:
    """The texts of one class."""
    return [one.text or "" for one in parse(svg).iter("text") if kind in one.get("class", "").split()]


def tooltips(svg: str) -> list[str]:
    """All tooltips but the figure's own title."""
    return [one.text or "" for one in parse(svg).iter("title")][1:]


def line(values: list[float], colour: int = 0, label: str = "pfedpt") -> Line:
    """A curve with a band of one below and one above."""
    points = tuple((float(index + 1), value) for index, value in enumerate(values))
    return Line(label, points, colour, band=tuple((x, y - 1, y + 1) for x, y in points))


FIGURES = {
    "line": line_chart(
        [line([50, 60, 70]), line([40, 45, 50], 9, "a<b")], width=960, title="A & B", y_label="y", unit="%"
    ),
    "bars": client_chart([Bars("x", (50.0, None), 0), Bars("y", (60.0, 70.0), 1)], width=380, title="Clients"),
    "curve": client_chart([Bars("x", tuple(map(float, range(61))), 0)], width=380, title="Clients"),
    "heat": heat_map(["a<b", "c"], [[4, 0], [1, 16]], width=960, title="Who"),
    "shade": heat_map(["a", "c"], [[4, 1]] * 100, width=380, title="Who"),
    "traffic": traffic_chart([Load("x", 3e6, 30720, 0), Load("local", 0, 0, 1)], width=960, title="Traffic"),
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
