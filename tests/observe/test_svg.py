"""Chart arithmetic against hand values."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.observe.svg import (
    Scale,
    Series,
    compact,
    line_chart,
    moving_average,
    nice_ticks,
    tick_labels,
    value_range,
)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.5, 1]), (0, 6, [0, 2, 4, 6]), (0.9, 1.1, [0.9, 1.0, 1.1]), (-1, 2, [-1, 0, 1, 2])],
)
def test_ticks_by_hand(low, high, ticks):
    assert nice_ticks(low, high) == pytest.approx(ticks)


@settings(max_examples=60, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_cover_the_range_with_distinct_labels(low, span):
    span = max(span, abs(low) * 1e-3)
    ticks = nice_ticks(low, low + span)
    assert ticks[0] <= low + 1e-6 * span and ticks[-1] >= low + span * (1 - 1e-6)
    assert 2 <= len(ticks) <= 6


def test_labels_tell_neighbours_apart():
    assert tick_labels([0.99, 0.995, 1.0, 1.005]) == ["0.990", "0.995", "1.000", "1.005"]
    assert tick_labels([0, 2, 4]) == ["0", "2", "4"]
    assert tick_labels([0, 5000, 10000]) == ["0", "5000", "10k"]
    assert tick_labels([0, 2e-6]) == ["0", "2e-06"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2, 4], (0, 4)),
        ([0.9, 1.0], (0.9, 1.0)),
        ([-1, 3], (-1, 3)),
        ([0], (0, 1)),
        ([5.0], (0, 5)),
        ([-5.0, -5.0], (-5, 0)),
    ],
)
def test_range(values, expected):
    assert value_range(values) == pytest.approx(expected)


def test_scale_average_and_numbers():
    assert [Scale(0, 10, 100, 0)(v) for v in (0, 5, 10)] == [100, 50, 0]
    assert Scale(3, 3, 0, 100)(3) == 50
    assert moving_average([(1, 1.0), (2, 3.0), (3, 5.0)], 2) == [(1, 1.0), (2, 2.0), (3, 4.0)]
    assert [compact(v) for v in (0, 0.25, 3200, 32000, 2e-6)] == ["0", "0.25", "3200", "32k", "2e-06"]


def test_chart_places_points_and_escapes():
    chart = line_chart("<b>", [Series("x&y", "s1", [(1, 0.0), (2, 10.0)]), Series("", "s2", [])])
    assert 'points="44.0,128.0 330.0,' in chart
    assert (
        "&lt;b&gt;" in chart
        and "step 2: x&amp;y 10" in chart
        and "<b>" not in chart.replace("<b>&lt;", "")[:60]
    )
    assert line_chart("none", [Series("", "s1", [])]) == ""


def test_long_runs_are_smoothed_and_hover_is_bounded():
    chart = line_chart("t", [Series("", "s3", [(i, float(i)) for i in range(1000)])])
    assert chart.count("<polyline") == 2 and chart.count('class="hover"') <= 120
