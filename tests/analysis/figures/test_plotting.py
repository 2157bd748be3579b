"""The plots: what is where in them."""

import numpy as np
import pytest

from promptfed.analysis.figures import plotting


def test_heat_maps_share_one_scale_from_zero() -> None:
    panels = {"a": np.array([[0.0, 0.5]]), "b": np.array([[0.25, 0.1]])}
    plot = plotting.heat_maps(panels, ["x"], ["0", "1"], "client")
    images = [axes.images[0] for axes in plot.axes[:2]]
    assert [image.get_clim() for image in images] == [(0, 0.5), (0, 0.5)]
    assert [axes.get_title(loc="left") for axes in plot.axes[:2]] == ["a", "b"]
    assert [text.get_text() for text in plot.axes[1].get_xticklabels()] == ["0", "1"]


def test_an_empty_heat_map_has_a_scale() -> None:
    plot = plotting.heat_maps({"a": np.zeros((2, 2))}, ["x", "y"], ["0", "1"], "client")
    assert plot.axes[0].images[0].get_clim() == (0, 1)


def test_many_names_are_thinned() -> None:
    names = [str(number) for number in range(100)]
    plot = plotting.heat_maps({"a": np.ones((1, 100))}, ["x"], names, "client")
    assert [text.get_text() for text in plot.axes[0].get_xticklabels()][:3] == ["0", "3", "6"]


def test_points_keep_their_group() -> None:
    points, groups = np.arange(24.0).reshape(12, 2), np.array([*range(10), 0, 9])
    axes = plotting.scatter(points, groups, "client").axes[0]
    assert [len(found.get_offsets()) for found in axes.collections] == [2, *[1] * 8, 2]
    assert axes.collections[0].get_offsets().tolist() == [[0, 1], [20, 21]]
    assert [text.get_text() for text in axes.get_legend().get_texts()][9] == "client 9"


def test_panels_of_points_have_a_cross_for_each_group() -> None:
    two, one = np.arange(12.0).reshape(3, 2, 2), np.ones((1, 2, 2))
    crosses = np.array([[4.0, 5], [6, 7]])
    plot = plotting.scatters(dict.fromkeys("abc", (two, crosses)) | {"d": (one, crosses)}, "template")
    assert [axes.get_title(loc="left") for axes in plot.axes] == ["a", "b", "c", "d", "", ""]
    groups = [found.get_offsets().tolist() for found in plot.axes[0].collections]
    assert groups == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]], crosses.tolist()]
    assert [len(found.get_offsets()) for found in plot.axes[3].collections] == [1, 1, 2]
    colours = [found.get_facecolor() for found in plot.axes[0].collections]
    assert (colours[2] == np.concatenate(colours[:2])).all(), "a cross has its group's colour"
    (legend,) = plot.legends
    assert [text.get_text() for text in legend.get_texts()] == ["template 0", "template 1"]


def test_bars_stand_side_by_side_with_their_level() -> None:
    axes = plotting.bars({"a": [0.1, 0.2], "b": [0.3, 0.4]}, ["0", "1"], "client", "y", {"a": 0.5, "b": 0.5}).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0.1, 0.2, 0.3, 0.4]
    assert [bar.get_x() for bar in axes.patches] == pytest.approx([-0.4, 0.6, 0, 1])
    assert len(axes.lines) == 1, "one level that is the same for both"


def test_pictures_are_a_grid() -> None:
    image = np.full((2, 2, 3), 0.5)
    plot = plotting.pictures({"image": [image, image], "map": [image, image]}, ["one", "two"])
    assert [axes.get_title() for axes in plot.axes] == ["one", "two", "", ""]
    assert [axes.get_ylabel() for axes in plot.axes] == ["image", "", "map", ""]


def test_one_point_is_a_dot() -> None:
    axes = plotting.lines({"a": [(1, 0.5)]}, "round", "y").axes[0]
    assert axes.lines[0].get_marker() == "o"


def test_a_curve_has_bars_where_points_spread() -> None:
    curves = {"a": [(2, 50.0, 1.5), (4, 60.0, 0.0)], "b": [(4, 55.0, 0.0), (16, 40.0, 2.0)]}
    plot = plotting.spreads(curves, "size", "accuracy")
    axes = plot.axes[0]
    assert [[*zip(*line.lines[0].get_data(), strict=True)] for line in axes.containers] == [
        [(2, 50), (4, 60)],
        [(4, 55), (16, 40)],
    ]
    (bars,) = axes.containers[0].lines[2]
    lengths = [ends[1, 1] - ends[0, 1] for ends in map(np.asarray, bars.get_segments()) if len(ends)]
    assert [length for length in lengths if np.isfinite(length)] == [3], "one point has a bar of ± 1.5"
    assert axes.get_xticks().tolist() == [2, 4, 16]
    (legend,) = plot.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_long_names_of_curves_stay_inside_the_picture(count: int) -> None:
    names = [
        f"fedprox+pt, random-patch (method.lr=0.0{number}, " + "prompt.momentum=0.5, " * 5 for number in range(count)
    ]
    plot = plotting.spreads({name: [(2, 50.0, 0.0)] for name in names}, "size", "accuracy")
    plot.draw_without_rendering()
    legend, axes = plot.legends[0].get_window_extent(), plot.axes[0].get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= plot.bbox.x1
    assert axes.y1 < legend.y0 < legend.y1 <= plot.bbox.y1
    assert axes.height > plot.dpi * 2


def test_many_sizes_are_thinned() -> None:
    curve = [(size, 50.0, 0.0) for size in range(1, 65)]
    assert len(plotting.spreads({"a": curve}, "size", "accuracy").axes[0].get_xticks()) < 20
