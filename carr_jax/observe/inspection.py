"""Why a trajectory earned what it did: HTML for notebooks, and how alpha changes the rewards of a group."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from carr_jax.observe.plots import STATE_COLORS, filled_names
from carr_jax.observe.viewer import clean, rubric_state
from carr_jax.records import PLACEHOLDER, Question, RubricScore, Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = {"connected": "#ffffff", "supported": "#06211e", "identified": "#0b3b36", "not identified": "#57606a"}
_WASH = "#ffe08a"  # behind a name in a page
_LINES = ("#0f766e", "#5aa9a0", "#b4451f", "#8b949e", "#30363d", "#c08a1e")
_CARD = (
    "font:14px/1.55 system-ui,sans-serif;color:#1a1f24;background:#ffffff;border:1px solid #e1e5e9;"
    "border-radius:10px;padding:14px 18px;margin:8px 0;max-width:860px"
)
_ROW = "display:grid;grid-template-columns:108px 1fr;column-gap:12px;align-items:baseline;margin-top:9px"
_CHIP = "display:inline-block;min-width:92px;text-align:center;font-size:12px;border-radius:5px;padding:1px 8px"
_SOFT = "color:#57606a;font-size:13px"


# ------------------------------------------------------------------------------------------------------ words


def stated_names(score: Score) -> Mapping[str, str | None]:
    """The name that the judge read for each entity, {} when identification was skipped or failed."""
    verdict = next((v for v in score.verdicts if v.step == "identify" and v.status == "ok"), None)
    return dict(verdict.parsed) if verdict and isinstance(verdict.parsed, Mapping) else {}


def why(rubric: RubricScore, names: Mapping[str, str | None]) -> str:
    """Why a rubric earned nothing, or that it earned its share; `names` as `stated_names` gives them."""
    if rubric.connected:
        return "counts: it is supported, and supported rubrics lead from it to the answer"
    if rubric.supported:
        return "supported, but no chain of supported rubrics leads from it to the answer"
    if rubric.identified:
        return "no page that the agent both saw and cited states it"
    missing = [e for e in dict.fromkeys(PLACEHOLDER.findall(rubric.rubric)) if names and not names.get(e)]
    return f"the answer does not name {' and '.join(missing)}" if missing else "it was not judged"


# ------------------------------------------------------------------------------------------------------- HTML


def highlighted(text: str, names: Sequence[str]) -> str:
    """Untrusted text as HTML with the names in it marked, whatever their case; the longest name first."""
    wanted = sorted({clean(name) for name in names if name.strip()}, key=len, reverse=True)
    if not wanted:
        return html.escape(clean(text))
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in wanted), re.IGNORECASE)
    pieces, end = [], 0
    text = clean(text)
    for match in pattern.finditer(text):
        pieces.append(html.escape(text[end : match.start()]))
        pieces.append(
            f'<mark style="background:{_WASH};color:#1a1f24;border-radius:3px">{html.escape(match[0])}</mark>'
        )
        end = match.end()
    return "".join(pieces) + html.escape(text[end:])


def rubrics_html(question: Question, score: Score) -> str:
    """Each rubric with the names that it was filled with, how far it came, and why no further."""
    names = stated_names(score)
    rows = "".join(_rubric_row(rubric, names) for rubric in score.rubric_scores)
    body = rows or f'<p style="{_SOFT}">No rubric was judged: {html.escape(clean(score.reason))}</p>'
    return f'<div style="{_CARD}"><b>{html.escape(clean(question.question))}</b>{body}</div>'


def _rubric_row(rubric: RubricScore, names: Mapping[str, str | None]) -> str:
    state = rubric_state(rubric)
    chip = f'<span style="{_CHIP};background:{STATE_COLORS[state]};color:{_INK[state]}">{state}</span>'
    text = highlighted(rubric.filled or rubric.rubric, list(filled_names(rubric).values()))
    return (
        f'<div style="{_ROW}">{chip}'
        f'<span>{text}<br><span style="{_SOFT}">{html.escape(why(rubric, names))}</span></span></div>'
    )


def evidence_html(score: Score, pages: Mapping[str, str]) -> str:
    """What the trajectory saw of each cited page, with the names of the answer marked."""
    names = [name for name in stated_names(score).values() if name]
    rows = "".join(
        f'<div style="margin-top:9px"><span style="{_SOFT}">{html.escape(clean(url))}</span><br>'
        f"{highlighted(text, names)}</div>"
        for url, text in pages.items()
    )
    nothing = f'<p style="{_SOFT}">No page was both seen and cited.</p>'
    return f'<div style="{_CARD}"><b>Cited pages, as far as they were seen</b>{rows or nothing}</div>'


def group_html(
    names: Sequence[str], scores: Sequence[Score], rewards: Sequence[float], advantages: Sequence[float]
) -> str:
    """A group as a table: outcome, rubric reward, mixed reward, advantage."""
    heads = ("attempt", "outcome", "rubric reward", "mixed reward", "advantage")
    cells = [
        (name, f"{s.outcome:.0f}", "" if s.rubric is None else f"{s.rubric:.2f}", f"{r:.3f}", f"{a:+.2f}")
        for name, s, r, a in zip(names, scores, rewards, advantages, strict=True)
    ]
    head = "".join(_cell("th", i, text) for i, text in enumerate(heads))
    body = "".join(f"<tr>{''.join(_cell('td', i, text) for i, text in enumerate(row))}</tr>" for row in cells)
    table = f'<table style="border-collapse:collapse;width:100%"><tr>{head}</tr>{body}</table>'
    return f'<div style="{_CARD}">{table}</div>'


def _cell(tag: str, column: int, text: str) -> str:
    align = "right" if column else "left"
    soft = ";font-weight:500;color:#57606a;font-size:13px" if tag == "th" else ""
    style = f"text-align:{align};padding:5px 12px;border-bottom:1px solid #e1e5e9;background:#ffffff{soft}"
    return f'<{tag} style="{style};color:{"#57606a" if soft else "#1a1f24"}">{html.escape(clean(text))}</{tag}>'


# ----------------------------------------------------------------------------------------------------- figures


def plot_alpha(
    alphas: Sequence[float], rewards: np.ndarray, advantages: np.ndarray, names: Sequence[str]
) -> Figure:
    """How the weight of the rubric reward spreads a group; `rewards` and `advantages` are [A, G]."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.0), layout="constrained")
    for axis, title, values in zip(axes, ("Mixed reward", "Advantage"), (rewards, advantages), strict=True):
        for i, (label, line) in enumerate(same_lines(np.asarray(values), names).items()):
            axis.plot(alphas, line, color=_LINES[i % len(_LINES)], linewidth=2.2, label=label)
        axis.axvline(0.3, color="#8b949e", linewidth=1, linestyle=(0, (3, 3)), zorder=0)
        _dress(axis, title)
    axes[0].annotate(
        "CaRR: 0.3", (0.3, 0.14), xycoords=("data", "axes fraction"), xytext=(5, 0), textcoords="offset points",
        fontsize=8, color="#57606a",
    )  # fmt: skip
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def same_lines(values: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of [A, G] by name; those that coincide are one line with all their names."""
    found: list[tuple[list[str], np.ndarray]] = []
    for name, line in zip(names, values.T, strict=True):
        twin = next((labels for labels, other in found if np.allclose(line, other, equal_nan=True)), None)
        if twin is None:
            found.append(([name], line))
        else:
            twin.append(name)
    return {" / ".join(labels): line for labels, line in found}


def _dress(axis: Axes, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=11)
    axis.set_xlabel("alpha, the weight of the rubric reward", fontsize=9, color="#57606a")
    axis.tick_params(labelsize=9, colors="#57606a")
    axis.grid(axis="y", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.01)
