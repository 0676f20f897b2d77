"""Small line charts as inline SVG: no scripts, and colours from the page's style sheet."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]

WIDTH, HEIGHT = 340, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 22
SMOOTH_FROM = 40  # steps
MAX_HOVER = 120  # hover columns; more would only bloat the page


@dataclass(frozen=True)
class Series:
    """One line: `points` are (step, value) in order of step, `style` a class of the page's style sheet."""

    label: str
    style: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Scale:
    """A linear map from values in [low, high] to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def line_chart(title: str, series: Sequence[Series]) -> str:
    """A `<figure>` with title, last values and chart; an empty string when no series has a point."""
    series = [s for s in series if s.points]
    if not series:
        return ""
    xs = [x for s in series for x, _ in s.points]
    ticks = nice_ticks(*value_range([y for s in series for _, y in s.points]))
    x_scale = Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y_scale = Scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    drawing = "".join(
        [
            *(_grid_line(tick, label, y_scale) for tick, label in zip(ticks, tick_labels(ticks), strict=True)),
            _step_labels(x_scale),
            *(_line(s, len(series) == 1, x_scale, y_scale) for s in series),
            _hover(series, x_scale),
        ]
    )
    return (
        f'<figure class="chart"><figcaption><b>{html.escape(title)}</b>{_legend(series)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)} by step">'
        f"{drawing}</svg></figure>"
    )


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """The range an axis must cover: from zero, unless the values move only far away from it."""
    low, high = min(values), max(values)
    if low == high:
        return (min(low, 0.0), max(high, 0.0)) if low else (0.0, 1.0)
    return (0.0, high) if 0 <= low < 0.8 * high else (low, high)


def nice_ticks(low: float, high: float) -> list[float]:
    """Three to five round numbers that cover [low, high]; `low < high`."""
    raw = (high - low) / 3
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Labels with just the decimals that tell neighbours apart; very large or small steps go to `compact`."""
    step = ticks[1] - ticks[0]
    if not 1e-4 <= step < 2500:
        return [compact(tick) for tick in ticks]
    decimals = next(d for d in range(6) if abs(round(step, d) - step) < 1e-3 * step)
    return [f"{tick:.{decimals}f}" for tick in ticks]


def compact(value: float) -> str:
    """A short number for an axis or a legend: 0.25, 12.5, 3200, 32k, 15M, 2e-06."""
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= 10 * unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.4g}"


def moving_average(points: Sequence[Point], size: int) -> list[Point]:
    """Each value averaged with its `size - 1` predecessors (fewer at the start)."""
    windows = (points[max(0, i + 1 - size) : i + 1] for i in range(len(points)))
    return [(w[-1][0], sum(y for _, y in w) / len(w)) for w in windows]


def _line(series: Series, alone: bool, x_scale: Scale, y_scale: Scale) -> str:
    """A long run shows its moving average, behind it its raw values if it is alone; a single step is a dot."""
    points = series.points
    if len(points) == 1:
        (x, y) = points[0]
        return f'<circle class="dot {series.style}" cx="{x_scale(x)}" cy="{y_scale(y)}" r="3.5"/>'
    if len(points) < SMOOTH_FROM:
        return _path(points, f"line {series.style}", x_scale, y_scale)
    average = moving_average(points, max(5, len(points) // 25))
    raw = _path(points, f"line raw {series.style}", x_scale, y_scale) if alone else ""
    return raw + _path(average, f"line {series.style}", x_scale, y_scale)


def _path(points: Sequence[Point], style: str, x_scale: Scale, y_scale: Scale) -> str:
    places = " ".join(f"{x_scale(x)},{y_scale(y)}" for x, y in points)
    return f'<polyline class="{style}" points="{places}"/>'


def _grid_line(tick: float, label: str, y_scale: Scale) -> str:
    y = y_scale(tick)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        f'<text class="tick" x="{LEFT - 7}" y="{y + 3.5}" text-anchor="end">{label}</text>'
    )


def _step_labels(x_scale: Scale) -> str:
    ends = (
        {x_scale.low: "start", x_scale.high: "end"} if x_scale.low != x_scale.high else {x_scale.low: "middle"}
    )
    return "".join(
        f'<text class="tick" x="{x_scale(x)}" y="{HEIGHT - 5}" text-anchor="{anchor}">{x:g}</text>'
        for x, anchor in ends.items()
    )


def _hover(series: Sequence[Series], x_scale: Scale) -> str:
    """Invisible columns whose native tooltip names the values of that step."""
    values: dict[float, list[str]] = {}
    for s in series:
        for x, y in s.points:
            values.setdefault(x, []).append(f"{s.label} {y:.4g}".strip())
    steps = sorted(values)[:: max(1, -(-len(values) // MAX_HOVER))]
    width = round((WIDTH - LEFT - RIGHT) / len(steps), 1)
    return "".join(
        f'<rect class="hover" x="{round(x_scale(x) - width / 2, 1)}" y="{TOP}" width="{width}" '
        f'height="{HEIGHT - TOP - BOTTOM}">'
        f"<title>step {x:g}: {html.escape(', '.join(values[x]))}</title></rect>"
        for x in steps
    )


def _legend(series: Sequence[Series]) -> str:
    """The last value of each line; names and colours only where there are several."""
    names = [f'<i class="{s.style}"></i> {html.escape(s.label)} ' if len(series) > 1 else "" for s in series]
    lasts = [compact(s.points[-1][1]) for s in series]
    entries = (f'<span class="key">{name}<b>{last}</b></span>' for name, last in zip(names, lasts, strict=True))
    return f'<span class="legend">{"".join(entries)}</span>'
