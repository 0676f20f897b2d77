"""The records that cross a wall between two rooms of the house.

Everything here is plain data: no jax, no I/O, no behaviour beyond small derived properties.  How it looks in a
file stands in `stored.py`.  The order follows one training step:
Question -> Generation -> ToolResult -> Turn -> Trajectory -> Verdict -> Score -> Group -> TrainBatch.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

UNAVAILABLE = "The tool is not available."  # all that a policy is told of an outage
PLACEHOLDER = re.compile(r"<(E\d+)>")


class InputError(ValueError):
    """What a person gave (options, files, folders) cannot be used; the message says where and why."""


# ---------------------------------------------------------------------------------------------- questions


@dataclass(frozen=True)
class Rubric:
    """One single-hop statement about hidden entities (CaRR, section 3.1).

    `text` holds placeholders such as "<E1> was born in <E0>."; `support_urls` are pages known to state it
    (gold evidence, empty when unknown).  `relation` is "fact", or for a statement that is arithmetic on two
    facts and stands on no page, the name of its comparison: "earlier" or "later" (first placeholder against
    the second, dates or numbers).
    """

    text: str
    support_urls: tuple[str, ...] = ()
    relation: str = "fact"

    @functools.cached_property
    def entities(self) -> tuple[str, ...]:
        """Placeholder ids in order of first appearance, e.g. ("E1", "E0")."""
        return tuple(dict.fromkeys(PLACEHOLDER.findall(self.text)))


@dataclass(frozen=True)
class Question:
    """A multi-hop question with everything the reward needs; made before training and frozen.

    `entities` maps "E0", "E1", ... to the accepted names of that hidden entity, canonical name first; empty
    when unknown (public rubric files have placeholders only).  `answer_type` is entity, date, number or yesno.
    """

    id: str
    question: str
    answer: str
    answer_aliases: tuple[str, ...] = ()
    answer_type: str = "entity"
    rubrics: tuple[Rubric, ...] = ()
    entities: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gold_urls: tuple[str, ...] = ()
    hops: int = 0
    source: str = ""
    split: str = "train"
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answers(self) -> tuple[str, ...]:
        """The gold answer and its aliases."""
        return (self.answer, *self.answer_aliases)

    @property
    def gold_entities(self) -> tuple[tuple[str, ...], ...]:
        """Accepted names of each gold entity, E0 first (the set E_q of E-GRPO)."""
        return tuple(self.entities[k] for k in sorted(self.entities, key=lambda k: int(k[1:])))


@dataclass(frozen=True)
class Page:
    """One page of a search corpus, or of the web; `published` is its date, as whoever read it gives that."""

    url: str
    title: str
    text: str
    published: str = ""


# ------------------------------------------------------------------------------------- what an engine returns


@dataclass(frozen=True)
class Sampling:
    """How to sample one turn.  Only temperature sampling: truncated sampling would bias the ratio (P14).

    Raises ValueError for a temperature that is not positive or a budget below one token.
    """

    max_tokens: int
    stop_ids: tuple[int, ...]
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")


@dataclass(frozen=True)
class Generation:
    """What the engine sampled for one turn.

    `ids` include the stop token when `finish` is "stop"; `logprobs[i]` is the fp32 log-probability of `ids[i]`
    under the sampling distribution, NaN when the engine did not say; `versions[i]` the policy version that
    sampled it.  `finish` is one of "stop", "length", "abort".

    `routes` are the experts that a mixture of experts chose, int16 [prefix + len(ids) - 1, L, k]: row i for
    the token at position i of the whole sequence (nothing has passed the last token yet), -1 where unknown.
    None when the engine does not report them.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: str
    routes: np.ndarray | None = None


# ----------------------------------------------------------------------------------------- what a tool returns


@dataclass(frozen=True)
class Seen:
    """A piece of a page that the trajectory saw: kind "snippet", "page" or "match" (a find hit).

    `url` is the address that answered; `asked` the one that was asked for, where a redirect lies between.
    """

    url: str
    title: str
    kind: str
    text: str
    asked: str = ""


@dataclass(frozen=True)
class ToolResult:
    """`output` is exactly the text shown to the policy, `seen` the same content by page.

    `error` is None or a code: "bad_call" (the policy's fault: unknown tool, wrong argument), "not_found" (no
    such id, page or pattern: an honest answer) or "unavailable" (infrastructure: the episode becomes unknown).
    `reason` is a short stable code of the cause, such as "timeout", "binary" or "http_404": the policy never
    sees it, trajectories keep it and metrics count it.
    """

    output: str
    seen: tuple[Seen, ...] = ()
    error: str | None = None
    reason: str = ""


@dataclass(frozen=True)
class ToolCall:
    """One parsed call; `result` is None until it was executed."""

    name: str
    arguments: Mapping[str, Any]
    result: ToolResult | None = None


# --------------------------------------------------------------------------------------------- trajectories


class End(enum.StrEnum):
    """Why an episode ended; the set is closed."""

    ANSWERED = "answered"  # a final turn without a tool call: the only end that is judged
    FORMAT_ERROR = "format_error"  # an ill-formed turn: reward 0, trained on
    CONTEXT_BUDGET = "context_budget"  # the three over-length ends: reward 0, see `over_length`
    TURN_BUDGET = "turn_budget"
    TOOL_BUDGET = "tool_budget"
    TOOL_ERROR = "tool_error"  # infrastructure: reward unknown, never 0
    ENGINE_ERROR = "engine_error"
    DEADLINE = "deadline"  # took longer than any honest episode: reward unknown
    UNFINISHED = "unfinished"  # a checkpoint caught it between two turns: it goes on, and is never scored

    @property
    def over_length(self) -> bool:
        return self in (End.CONTEXT_BUDGET, End.TURN_BUDGET, End.TOOL_BUDGET)

    @property
    def infrastructure(self) -> bool:
        return self in (End.TOOL_ERROR, End.ENGINE_ERROR, End.DEADLINE)


@dataclass(frozen=True)
class Turn:
    """One assistant turn: `ids[start:end]` of its trajectory were sampled, stop token included.

    `content` is what stands after the thought, without tool calls; `ill_formed` the reason when the turn breaks
    the grammar, else None; `noncanonical` when it parses but is not written as the template writes it.
    """

    start: int
    end: int
    thought: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    ill_formed: str | None = None
    noncanonical: bool = False


@dataclass(frozen=True)
class Trajectory:
    """An append-only list of token ids with its origin (DESIGN "tokens in, tokens out").

    `ids`, `mask`, `logprobs` and `versions` have equal length N.  `mask[i]` is 1 exactly for tokens that the
    engine sampled in this episode; `logprobs[i]` is the engine's fp32 value there, NaN when it gave none (such
    a token is not trained on), and 0.0 elsewhere; `versions[i]` the policy version there and -1 elsewhere.
    `response` is the content of the final turn when `end` is ANSWERED, else None.

    `routes[i]` are the experts that the engine chose for the token at position i in each of L layers, -1 where
    they are not known, as for the last token, which has passed no layer.  None without a mixture of experts,
    and in files: they are a hundred times as large as all else.
    """

    question_id: str
    sample: int
    prompt_length: int
    ids: np.ndarray  # int32 [N]
    mask: np.ndarray  # int8 [N]
    logprobs: np.ndarray  # float32 [N]
    versions: np.ndarray  # int32 [N]
    turns: tuple[Turn, ...]
    end: End
    response: str | None = None
    routes: np.ndarray | None = field(default=None, metadata={"stored": False})  # int16 [N, L, k]

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(call for turn in self.turns for call in turn.calls)

    @property
    def thoughts(self) -> tuple[str, ...]:
        return tuple(turn.thought for turn in self.turns)

    @property
    def seen(self) -> tuple[Seen, ...]:
        """Everything that the tools showed, in order."""
        return tuple(s for call in self.calls if call.result for s in call.result.seen)

    @property
    def generated_tokens(self) -> int:
        return int(self.mask.sum())


@dataclass(frozen=True)
class Begun:
    """A group that has started and is not trained: `version` was the policy's when it started.

    Of its trajectories some have ended; the others have the end UNFINISHED.
    """

    position: int  # in the stream of questions
    version: int
    trajectories: tuple[Trajectory, ...]


# -------------------------------------------------------------------------------------------------- rewards


@dataclass(frozen=True)
class Verdict:
    """One judge call.  `step` is outcome, identify or support; `status` ok or unknown; `parsed` its value.

    `calls` counts the replies it took, `invalid` those among them that could not be used, `from_reasoning` the
    votes that were found in a reasoning field only.  `tokens`, `cost_usd` and `latency_s` are of these replies,
    and 0 for judges that call nobody; `cached` when the verdict was replayed.  `evidence` are the pages that
    prove each statement of a support verdict, as far as the judge names them.
    """

    step: str
    status: str
    parsed: Any
    raw: str = ""
    tokens: int = 0
    cost_usd: float = 0.0
    latency_s: float = 0.0
    cached: bool = False
    calls: int = 1
    invalid: int = 0
    from_reasoning: int = 0
    evidence: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class RubricScore:
    """How far one rubric came: identified (step 1), supported (step 2), connected (step 3)."""

    rubric: str
    filled: str | None
    identified: bool
    supported: bool
    connected: bool


@dataclass(frozen=True)
class Score:
    """The reward components of one trajectory, before mixing.

    `status` is "ok" or "unknown" (judge or infrastructure failed: never a zero).  `outcome` is R_o in {0, 1},
    `rubric` R_r in [0, 1], or None when no rubric call could change the reward and all were skipped;
    `entity_match` the share gamma of gold entities that stand in the thoughts.
    """

    status: str
    outcome: float = 0.0
    rubric: float | None = None
    entity_match: float = 0.0
    citations: int = 0
    rubric_scores: tuple[RubricScore, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    skipped_calls: int = 0
    reason: str = ""

    @property
    def known(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True)
class Group:
    """G trajectories of one question with their scores, mixed rewards and advantages.

    `rewards` and `advantages` are float64 [G]; a reward is NaN when unknown.  `trained[i]` says whether
    trajectory i enters the loss.
    """

    question: Question
    trajectories: tuple[Trajectory, ...]
    scores: tuple[Score, ...]
    rewards: np.ndarray
    advantages: np.ndarray
    trained: np.ndarray  # bool [G]


# ---------------------------------------------------------------------------------------------- train batch


@dataclass(frozen=True)
class TrainBatch:
    """Packed trajectories of one optimiser step; all arrays are [M, R, T]: micro-batches, rows, tokens.

    Position t of `targets`, `weights`, `engine_logprobs`, `advantages` belongs to the *prediction* of token
    t + 1 of the same segment, made by the hidden state at t (P18).  `weights` is 0 for everything that is not a
    training target, and otherwise 1 / (the normaliser's denominator): the loss is a plain weighted sum.
    `segments` is 0 for padding and counts 1, 2, ... within a row; `positions` restart in each segment.  Only
    the first `micro_batches` of the M slots are filled.

    `routes` are the experts to replay for each token, [M, R, T, L * k]: those of all layers side by side, as
    an axis as short as k would be padded to 16 times the memory on a TPU.  -1 where the router chooses; None
    when there is nothing to replay.
    """

    tokens: np.ndarray  # int32
    targets: np.ndarray  # int32
    segments: np.ndarray  # int32
    positions: np.ndarray  # int32
    weights: np.ndarray  # float32
    engine_logprobs: np.ndarray  # float32
    advantages: np.ndarray  # float32
    micro_batches: int
    routes: np.ndarray | None = None  # int16
