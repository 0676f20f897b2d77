"""One group of trajectories as HTML.

Every string of the policy, the web or the judge passes through `escape`.
"""

from __future__ import annotations

import html

from carr_jax.observe.viewer import call_line, clean, describe_end, number, rubric_state, shorten
from carr_jax.records import Group, RubricScore, Score, ToolCall, Trajectory, Turn

STATES = {"connected": "st3", "supported": "st2", "identified": "st1", "not identified": "st0"}
OBSERVATION_LIMIT = 1500
FOLD_ABOVE = 260  # characters of an observation that show without a click
TEXT_LIMIT = 8000  # a thought may run away; the trajectory file has all of it


def escape(text: str) -> str:
    """Untrusted text made inert for HTML content and quoted attributes."""
    return html.escape(clean(text), quote=True)


def group_card(title: str, group: Group) -> str:
    """A question with the siblings that were compared with each other."""
    question = group.question
    facts = [f"Gold answer: <b>{escape(', '.join(question.answers))}</b>"]
    if question.hops:
        facts.append(f"{question.hops} hops")
    if question.source:
        facts.append(escape(question.source))
    samples = "".join(sample_details(group, index) for index in range(len(group.trajectories)))
    return (
        f'<section class="group card"><p class="eyebrow">{escape(title)}</p>'
        f'<p class="question">{escape(question.question)}</p>'
        f'<p class="key-row">{"".join(f"<span>{fact}</span>" for fact in facts)}</p>'
        f"{_legend(group)}{samples}</section>"
    )


def sample_details(group: Group, index: int) -> str:
    """One sibling: a line to compare by, and the whole trajectory on a click."""
    trajectory, score = group.trajectories[index], group.scores[index]
    trained = "" if group.trained[index] else " <small>not trained on</small>"
    calls = len(trajectory.calls)
    return (
        f'<details class="sample"><summary><span>Sample {trajectory.sample}</span>'
        f"<span>{_end(trajectory, score)}{trained}</span>"
        f'<span class="num"><small>reward</small> {number(float(group.rewards[index]))}</span>'
        f'<span class="num"><small>advantage</small> {number(float(group.advantages[index]), sign=True)}</span>'
        f"{_dots(score)}"
        f'<span class="num calls">{calls} <small>call{"" if calls == 1 else "s"}</small></span></summary>'
        f'<div class="inside">{_rubrics(score)}{_turns(trajectory)}</div></details>'
    )


def _end(trajectory: Trajectory, score: Score) -> str:
    style = "right" if score.known and score.outcome > 0 else "wrong" if score.known else "soft"
    return f'<span class="{style}">{escape(describe_end(trajectory, score))}</span>'


def _dots(score: Score) -> str:
    states = [rubric_state(r) for r in score.rubric_scores]
    text = ", ".join(f"{states.count(s)} {s}" for s in STATES if s in states) or "rubrics not judged"
    squares = "".join(f'<i class="{STATES[state]}"></i>' for state in states)
    return f'<span class="dots" role="img" aria-label="{text}" title="{text}">{squares}</span>'


def _legend(group: Group) -> str:
    if not any(score.rubric_scores for score in group.scores):
        return ""
    keys = (f'<span><i class="swatch {style}"></i> {state}</span>' for state, style in STATES.items())
    return f'<p class="key-row"><span>Rubrics:</span>{"".join(keys)}</p>'


def _rubrics(score: Score) -> str:
    if not score.known:
        return f'<p class="warn">Score unknown: {escape(score.reason or "the judge gave no verdict")}</p>'
    if not score.rubric_scores:
        return '<p class="note">Rubrics not judged: no rubric call could change this reward.</p>'
    return f'<ul class="rubrics">{"".join(map(_rubric, score.rubric_scores))}</ul>'


def _rubric(score: RubricScore) -> str:
    state = rubric_state(score)
    text = escape(score.filled or score.rubric)
    return f'<li><span class="chip {STATES[state]}">{state}</span><span>{text}</span></li>'


def _turns(trajectory: Trajectory) -> str:
    if not trajectory.turns:
        return '<p class="note">No turn was sampled.</p>'
    return "".join(_turn(index, turn) for index, turn in enumerate(trajectory.turns, 1))


def _turn(index: int, turn: Turn) -> str:
    parts = [f'<span class="n">{index}</span>']
    if turn.ill_formed:
        parts.append(f'<div class="warn">Ill-formed: {escape(turn.ill_formed)}</div>')
    if turn.thought.strip():
        parts.append(f'<div class="thought text">{escape(shorten(turn.thought.strip(), TEXT_LIMIT))}</div>')
    if turn.content.strip():
        content = escape(shorten(turn.content.strip(), TEXT_LIMIT))
        style, label = ("text", "") if turn.calls else ("answer text", '<span class="label">Answer</span>')
        parts.append(f'<div class="{style}">{label}{content}</div>')
    parts += [_call(call) for call in turn.calls]
    return f'<div class="turn">{"".join(parts)}</div>'


def _call(call: ToolCall) -> str:
    name, arguments = escape(call.name), escape(shorten(call_line(call)[len(clean(call.name)) :], TEXT_LIMIT))
    head = f'<div><code class="call"><b>{name}</b>{arguments}</code></div>'
    if call.result is None:
        return f'{head}<div class="warn">Not executed</div>'
    error = f'<div class="warn">{escape(call.result.error)}</div>' if call.result.error else ""
    return head + error + _observation(shorten(call.result.output.strip(), OBSERVATION_LIMIT))


def _observation(text: str) -> str:
    if len(text) <= FOLD_ABOVE:
        return f'<div class="observation text">{escape(text)}</div>'
    first = escape(" ".join(text[:110].split()))
    return (
        f'<details class="observation fold"><summary>{first} \N{HORIZONTAL ELLIPSIS}</summary>'
        f'<div class="text">{escape(text)}</div></details>'
    )
