"""What the figures of the ideas show is what the frame says."""

import numpy as np
import pandas as pd
import pytest

from gdro.theory_figures import bars_by_bin, line_panels

FRAME = pd.DataFrame(
    {
        "x": [1, 2, 1, 2, 1, 2, 1, 2],
        "y": [1.0, 2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0],
        "who": ["a", "a", "b", "b"] * 2,
        "where": ["left"] * 4 + ["right"] * 4,
    }
)
ENDS = FRAME.assign(low=FRAME["y"] - 0.5, high=FRAME["y"] + 0.25)


def test_a_panel_holds_its_own_lines():
    figure = line_panels(FRAME, x="x", y="y", hue="who", panel="where", ylabel="loss", bounds=["b"])
    left, right = figure.axes
    assert [axis.get_title() for axis in figure.axes] == ["left", "right"]
    assert [line.get_ydata().tolist() for line in left.lines] == [[1, 2], [3, 5]]
    assert [line.get_ydata().tolist() for line in right.lines] == [[7, 11], [13, 17]]
    assert left.lines[0].get_color() == right.lines[0].get_color() != left.lines[1].get_color()
    assert left.get_ylabel() == "loss"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_points_have_the_error_bars_of_their_ends():
    figure = line_panels(ENDS[:2], x="x", y="y", hue="who", low="low", high="high", points=["a"])
    (bars,) = figure.axes[0].containers
    marks, _, (stems,) = bars.lines
    assert marks.get_ydata().tolist() == [1, 2]
    assert [segment[:, 1].tolist() for segment in stems.get_segments()] == [[0.5, 1.25], [1.5, 2.25]]


def test_a_line_with_ends_has_a_band():
    figure = line_panels(ENDS[:2], x="x", y="y", hue="who", low="low", high="high")
    (band,) = figure.axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.5, 2.25)


def test_bins_are_coloured_in_order_and_axes_are_as_asked():
    figure = line_panels(FRAME[:4], x="x", y="y", hue="who", ordered=True, log="xy", xlabel="round")
    (axis,) = figure.axes
    first, second = (np.array(line.get_color()[:3]) for line in axis.lines)
    assert first.sum() < second.sum()  # hard is dark
    assert (axis.get_xscale(), axis.get_yscale(), axis.get_xlabel()) == ("log", "log", "round")


def test_bars_stand_where_their_bin_is():
    frame = pd.DataFrame({"bin": ["hard", "easy"], "asked": [2.0, 6.0], "given": [3.0, 5.0]})
    values = {"asked": "asked for", "given": "given"}
    figure = bars_by_bin(frame, bin="bin", values=values, ylabel="rollouts", line=4, line_label="mean")
    (axis,) = figure.axes
    assert [[bar.get_height() for bar in group] for group in axis.containers] == [[2, 6], [3, 5]]
    assert [t.get_text() for t in axis.get_xticklabels()] == ["hard", "easy"]
    assert axis.lines[0].get_ydata()[0] == 4
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["mean", "asked for", "given"]


def test_an_unknown_option_is_refused():
    with pytest.raises(ValueError, match=r"unknown options \['colour'\]; known: bounds, log"):
        line_panels(FRAME, x="x", y="y", hue="who", colour="red")
