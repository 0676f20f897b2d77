"""Matplotlib figures for notebooks.  Matplotlib and networkx are imported on use: training needs neither."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from carr_jax.observe.svg import SMOOTH_FROM, moving_average
from carr_jax.observe.viewer import clean, rubric_state
from carr_jax.records import PLACEHOLDER, RubricScore, Score

if TYPE_CHECKING:
    import networkx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# (title, metrics keys): one panel each
PANELS = (
    ("Outcome", ("reward/outcome",)),
    ("Mixed reward", ("reward/mixed",)),
    ("Rubrics per answer", ("carr/identified", "carr/supported", "carr/connected")),
    ("Tool calls", ("agent/tool_calls",)),
    ("Generated tokens", ("agent/generated_tokens",)),
    ("Entropy", ("learn/entropy",)),
    ("Gradient norm", ("learn/grad_norm",)),
    ("Trainer / engine ratio", ("learn/ratio_mean",)),
    (
        "Trainer / engine mismatch",
        ("learn/ratio_outside_10", "learn/ratio_outside_half", "learn/sequence_outliers"),
    ),
    ("Masked and clipped", ("learn/icepop_masked", "learn/clipped")),
)
STATE_COLORS = {
    "connected": "#0f766e",
    "supported": "#5aa9a0",
    "identified": "#a9d3cc",
    "not identified": "#d5d9de",
}


def plot_run(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Small multiples of a run, one panel per thing to watch; `rows` come from `MetricsLog.read`.

    Panels without a measured value are left out.  Raises ValueError when none is left.
    """
    import matplotlib.pyplot as plt

    panels = [(title, keys) for title, keys in PANELS if any(points(rows, key)[0] for key in keys)]
    if not panels:
        raise ValueError("nothing to plot: the rows hold none of the metrics keys of a run")
    height = -(-len(panels) // 3)
    figure, axes = plt.subplots(
        height, 3, figsize=(11, 2.6 * height), squeeze=False, layout="constrained", sharex=True
    )
    for axis, (title, keys) in zip(axes.flat, panels, strict=False):
        _panel(axis, title, {key: points(rows, key) for key in keys})
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    return figure


def points(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """The steps at which `key` was measured, and its values there."""
    measured = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    return [step for step, _ in measured], [value for _, value in measured]


def _panel(axis: Axes, title: str, lines: Mapping[str, tuple[list[int], list[float]]]) -> None:
    colors = ["#0f766e"] if len(lines) == 1 else ["#a9d3cc", "#5aa9a0", "#0f766e"][-len(lines) :]
    for (key, (steps, values)), color in zip(lines.items(), colors, strict=True):
        marker = "o" if len(steps) < 12 else None
        if len(steps) >= SMOOTH_FROM:  # the raw values stay visible behind their moving average
            axis.plot(steps, values, color=color, alpha=0.3, linewidth=0.8)
            average = moving_average(list(zip(steps, values, strict=True)), max(5, len(steps) // 25))
            values = [value for _, value in average]
        axis.plot(steps, values, color=color, label=key.split("/")[1], marker=marker, markersize=4)
    if len(lines) > 1:
        axis.legend(frameon=False, fontsize=8)
    axis.set_title(title, loc="left", fontsize=10)
    axis.locator_params(axis="x", integer=True, nbins=5)
    axis.grid(axis="y", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


# ------------------------------------------------------------------------------------- the evidence graph


def evidence_graph(score: Score) -> networkx.Graph:
    """Bipartite: entities "E0", "E1", ... and rubrics 0, 1, ..., an edge where a rubric names an entity.

    Nodes carry `name` (an entity's name in the answer) or `state` and `text` (a rubric's).  Unlike the graph of
    step 3 it holds the unsupported rubrics too, to show where the chain breaks.
    """
    import networkx as nx

    graph = nx.Graph()
    graph.add_node("E0")
    for index, rubric in enumerate(score.rubric_scores):
        graph.add_node(index, state=rubric_state(rubric), text=rubric.filled or rubric.rubric)
        graph.add_edges_from((index, entity) for entity in PLACEHOLDER.findall(rubric.rubric))
        for entity, name in filled_names(rubric).items():
            graph.add_node(entity, name=name)
    return graph


def filled_names(score: RubricScore) -> dict[str, str]:
    """The names that stand in the filled rubric where its template has placeholders."""
    if score.filled is None:
        return {}
    seen: set[str] = set()
    pattern = ""
    for piece in re.split(r"(<E\d+>)", score.rubric):
        entity = piece[1:-1] if PLACEHOLDER.fullmatch(piece) else None
        pattern += f"(?P={entity})" if entity in seen else f"(?P<{entity}>.+?)" if entity else re.escape(piece)
        seen |= {entity} - {None}
    match = re.fullmatch(pattern, score.filled, re.DOTALL)
    return match.groupdict() if match else {}


def plot_evidence_graph(score: Score) -> Figure:
    """Entities (circles) and rubrics (squares) in layers of their distance from the answer E0.

    What hangs together in dark green is the chain that earns reward.  Raises ValueError when `score` has no
    rubrics, which is so when judging was skipped or failed.
    """
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not score.rubric_scores:
        raise ValueError("no rubric was judged for this trajectory: choose one whose score has rubric_scores")
    graph = evidence_graph(score)
    place = _layers(graph)
    figure, axis = plt.subplots(figsize=(10, 1.5 + 1.2 * _tallest(place)), layout="constrained")
    _draw_graph(axis, graph, place)
    for node, xy in place.items():
        text = graph.nodes[node].get("text", graph.nodes[node].get("name", ""))
        _label(
            axis,
            xy,
            text,
            "above" if isinstance(node, str) else "beside" if graph.degree(node) < 2 else "below",
        )
    entity = Line2D([], [], linestyle="", marker="o", markersize=9, color="white", markeredgecolor="#30363d")
    handles = [entity, *(Patch(color=color) for color in STATE_COLORS.values())]
    labels = ["entity", *(f"rubric, {state}" for state in STATE_COLORS)]
    figure.legend(handles, labels, loc="outside upper left", ncols=5, frameon=False, fontsize=8)
    axis.margins(0.14, 0.35)
    axis.axis("off")
    return figure


def _draw_graph(axis: Axes, graph: networkx.Graph, place: Mapping[Any, tuple[float, float]]) -> None:
    """Nodes and edges; an edge has the colour of its rubric."""
    import networkx as nx

    colors = {node: STATE_COLORS[state] for node, state in graph.nodes(data="state") if state}
    entities = [node for node in graph if node not in colors]
    edges = [colors[a if a in colors else b] for a, b in graph.edges]
    ring = {"node_color": "white", "edgecolors": "#30363d", "node_size": 700}
    nx.draw_networkx_edges(graph, place, ax=axis, edge_color=edges, width=2)
    nx.draw_networkx_nodes(graph, place, entities, ax=axis, **ring)
    nx.draw_networkx_nodes(
        graph, place, list(colors), ax=axis, node_color=list(colors.values()), node_shape="s"
    )
    nx.draw_networkx_labels(graph, place, {node: node for node in entities}, ax=axis, font_size=9)


# Where a label stands: (offset in points, horizontal and vertical alignment).  Names of entities above and
# statements below or beside: neighbours never write over each other.
_SIDES = {
    "above": ((0, 19), "center", "bottom"),
    "below": ((0, -17), "center", "top"),
    "beside": ((15, 0), "left", "center"),
}


def _label(axis: Axes, xy: tuple[float, float], text: str, side: str) -> None:
    """Untrusted text by a node, on a white ground that keeps edges from striking it through."""
    offset, horizontal, vertical = _SIDES[side]
    axis.annotate(
        textwrap.fill(clean(text), 24),
        xy,
        xytext=offset,
        textcoords="offset points",
        fontsize=8,
        ha=horizontal,
        va=vertical,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
        parse_math=False,  # a dollar sign would start TeX mode
    )


def _layers(graph: networkx.Graph) -> dict[Any, tuple[float, float]]:
    """x: distance from E0, what cannot be reached one layer further out; y: spread within the layer."""
    import networkx as nx

    distance = dict(nx.single_source_shortest_path_length(graph, "E0"))
    beyond = max(distance.values()) + 1
    columns: dict[int, list[Any]] = {}
    for node in graph:
        unreached = beyond + (0 if isinstance(node, int) else 1)
        columns.setdefault(distance.get(node, unreached), []).append(node)
    return {
        node: (float(x), (len(nodes) - 1) / 2 - row)
        for x, nodes in columns.items()
        for row, node in enumerate(nodes)
    }


def _tallest(place: Mapping[Any, tuple[float, float]]) -> int:
    columns = [x for x, _ in place.values()]
    return max(columns.count(x) for x in columns)
