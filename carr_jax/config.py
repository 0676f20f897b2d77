"""Configuration: the defaults, and what values are allowed; `preflight.py` says what is missing to start.

A file in `configs/` calls `rl()` or `sft()` here and changes what its experiment changes.  The result is a
locked `ConfigDict`: an unknown key is an error that names the nearest known one.  Every field is read by the
code and explained by the comment beside it.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping

from ml_collections import ConfigDict

from carr_jax.rewards.carr import READERS
from carr_jax.rewards.mixing import MODES


def _shared() -> dict:
    """The sections that reinforcement learning and supervised fine-tuning have in common."""
    return dict(
        seed=0,  # decides data order, sampling, initialisation; the same seed gives the same run
        model=dict(
            policy="",  # Hugging Face model folder to start from (Qwen3, dense or MoE); "" = random weights
            preset="tiny",  # architecture when starting from random weights: tiny or tiny_moe
            hf_config="",  # a Hugging Face config.json instead of a preset
            tokenizer="",  # tokenizer folder when `policy` brings none; "" = train one on the pages
            vocab_size=1536,  # size of the tokenizer trained on the pages
            dtype="float32",  # compute type of the trainer: float32 or bfloat16 (parameters are always fp32)
            remat="products",  # what is kept for the backward pass: products (of all matrices, and attention),
            # attention (its result alone), offload (the same, with the inputs of the layers in host memory),
            # full (nothing: all is computed again)
            attention="auto",  # kernel: splash (TPU), cudnn (NVIDIA, without learn.pack), blockwise (any
            # device), or auto: splash on a TPU, else blockwise
            experts="auto",  # grouped matmul of a MoE: megablox (TPU), tokamax (NVIDIA), tiled (any device),
            # or auto: megablox on a TPU, else tiled
        ),
        data=dict(
            source="world",  # world: generated; files: question and page files in `path`; tfds: the dataset
            # `name` in the folder `path`, made by launch/build_dataset.py
            path="",  # folder with question files (data/rows.py) and corpus.jsonl(.gz), or of datasets
            name="",  # of a dataset, such as carr_questions or carr_questions:1.0.0
            skip_bad_rows=False,  # True: rows of files that cannot be read are told and left out
            train_questions=512,  # how many training questions to take; 0 = all (not of the world)
            held_out_questions=96,  # how many held-out questions evaluation answers; 0 = no evaluation
        ),
        world=dict(
            seed=0,  # the world's own seed, so that runs with other seeds search the same world
            entities_per_kind=150,  # entities of each of the 8 kinds that questions are made of
            distractors=600,  # pages about entities that no question needs
            look_alikes=200,  # further pages that bear the name of an entity of the questions
            hops=(2, 3),  # relation hops of a question, in turn
            obfuscate=0.0,  # probability that the first entity is described, not named
            shortcut=0.0,  # probability that a last clue alone determines the answer
        ),
        search=_search(),
        agent=dict(
            context=64_000,  # tokens of prompt, turns and observations together
            turns=100,  # most assistant turns with tool calls; the answer may follow
            tool_calls=100,  # most executed tool calls
            turn_tokens=8_192,  # most tokens sampled in one turn
            deadline_s=0.0,  # an episode that takes longer ends with an unknown reward; 0 = no deadline
            strict=False,  # True: a turn must be written byte for byte as the template writes it
            forgive=False,  # True: a malformed call is answered with an error text and the episode goes on
        ),
        learn=_learn(),
        mesh=dict(  # devices along each mesh axis, see sharding.py; -1 = all that the others leave
            data=1,
            fsdp=1,
            expert=1,
            context=1,
            tensor=1,
        ),
        checkpoint=dict(
            every=1,  # optimiser steps between checkpoints; a killed run repeats at most these
            keep=2,  # newest checkpoints kept
        ),
    )


def _search() -> dict:
    """The section `search`."""
    return dict(
        source="corpus",  # what the tools reach: corpus (the index below, else the pages of `data`),
        # server (a tool server, launch/serve_tools.py), retrieval (a server that answers POST /retrieve)
        max_results=10,  # most results of one search
        snippet_chars=300,  # longest description of a result, in characters
        page_chars=10_000,  # how much of a page one open shows
        find_radius=200,  # characters shown on each side of a find hit
        find_limit=20,  # most hits of one find
        index=dict(
            path="",  # folder made by launch/build_index.py, searched instead of the pages of `data`
            dense_model="",  # the model folder it was built with, to search by meaning too; "" = words only
        ),
        server=dict(
            url="",  # address of the tool server, or of the retrieval server's /retrieve
            token="",  # environment variable with the tool server's token; "" = it wants none
            request_s=120.0,  # seconds that it may take for a call
            attempts=4,  # times that a call is sent before the tool counts as unavailable
        ),
    )


def _learn() -> dict:
    """The section `learn`, as far as both have it."""
    return dict(
        lr=2e-6,  # peak learning rate
        schedule="constant",  # constant, or cosine (to a tenth of the peak over the whole run)
        warmup_steps=0,  # linear warm-up
        b1=0.9,  # AdamW's decay of the first moment
        b2=0.98,  # and of the second
        weight_decay=0.1,  # on matrices only
        clip_norm=1.0,  # global gradient norm
        normalizer="global_tokens",  # denominator of the loss: global_tokens, per_group, per_sequence
        row_length=64_000,  # tokens of one packed row; at least agent.context
        rows=1,  # rows of one micro-batch over all devices; 0 = one for each data * fsdp * expert shard
        pack=True,  # several trajectories in a row; False = one, which some attention kernels need
        logprob_chunk=1024,  # tokens of a device whose logits are held at once
        moments="float32",  # AdamW's moments: float32, bfloat16 (half the memory), host (in host memory)
    )


def _judge() -> dict:
    """The section `judge`."""
    return dict(
        kind="exact",  # who judges: exact (gold names and pages, calls nobody), or llm (the model below)
        model="deepseek-chat",  # the judge's name, which is part of every reply in the cache
        endpoints=(),  # where it is asked: "URL", "URL KEYS" or "URL KEYS NAME"; KEYS are environment variables
        # with commas between, "-" for none; NAME is what the model is called there
        temperature=0.0,  # of the judge's sampling
        max_tokens=2048,  # most tokens of a reply; what is cut off is asked once more with four times as many
        tries=3,  # unusable replies after which a verdict is unknown
        votes=1,  # odd: more than half of so many draws must agree; at temperature 0 they may all be the same
        concurrency=64,  # most calls at a time, of all keys together
        key_concurrency=0,  # and of one key; 0 = no limit of its own
        queue_s=0.0,  # seconds that a call may wait for its turn here; 0 = as long as it takes
        request_s=120.0,  # seconds that an endpoint may take for a reply
        cache="",  # file of replies, which runs may share; "" = judge/replies.sqlite in the run folder
        replay=False,  # True: what is not in the cache stops the run, and nobody is asked
        budget_usd=0.0,  # most that the judge of a run may cost; then the run saves and stops; 0 = no limit
        price_prompt=0.0,  # US dollars for a million tokens: of prompts,
        price_cached=0.0,  # of prompts as far as the provider has them in its cache,
        price_completion=0.0,  # and of replies
        page_bytes=24_000,  # most that the judge reads of one cited page
        pages_bytes=200_000,  # and of all of them, or of a response
        at_least=0.0,  # share of right decisions in each step below which no run starts; 0 = start unmeasured
        calibration="runs/calibration/report.json",  # where launch/calibrate_judge.py wrote that share
    )


def rl() -> ConfigDict:
    """Defaults of reinforcement learning: the recipe of CaRR (DESIGN "numbers we train with")."""
    config = _shared()
    config["reward"] = dict(
        mix="carr_paper",  # how outcome and rubric reward become one number, see rewards/mixing.py
        alpha=0.3,  # weight of the rubric (or entity) reward
        entity_names="exact",  # e_grpo looks for: exact canonical names, or robust: any name, and variants
        citations="tolerant",  # how they are read: tolerant, or strict_reference (as the public code does)
        over_length="stats_only",  # over-length: stats_only, train_as_failure or drop
        score_everything=False,  # also judge rubrics that cannot change a reward, for the metrics
    )
    config["judge"] = _judge()
    config["rollout"] = dict(
        prompts=16,  # questions of one step
        group_size=8,  # trajectories of one question (G)
        temperature=1.0,  # of sampling and of the trainer's log-probs
        engine="embedded",  # who samples: embedded (in this process), or sglang (the servers below)
        staleness=0,  # versions that a trained token may lag behind; 0 = synchronous, the reference
        refill=0,  # groups without spread that a step may replace by others (dynamic sampling); 0 = none
        in_flight=0,  # most episodes that run at a time; 0 = all that have started
        mismatch_alarm=0.02,  # mean |log-prob difference| of engine and trainer: a run does not start above it,
        # and a step above it warns
        servers=(),  # addresses of SGLang servers, such as ("http://10.0.0.5:30000",); launch/serve_sglang.py
        weights_folder="",  # where servers read new weights: RAM disk, shared folder; "" = in the run folder
        push="",  # command that brings {folder} to other hosts, such as "rsync -a {folder} host:/dev/shm/p/"
        on_update="keep",  # turns in flight when weights change: keep (the server goes on by itself, if it can
        # name the weights of every token), or resume (sample the rest from the prefix so far)
        request_s=60.0,  # seconds that a server may take for a turn, and
        token_s=0.25,  # for each token that the turn may have; then it is asked again, or another server
        health_s=5.0,  # seconds between two looks at a server
        slots=64,  # sequences that the embedded engine decodes together
        prefill_rows=1,  # sequences of one prefill call
        prefill_chunk=128,  # tokens per sequence of one prefill call
    )
    config["serve"] = dict(  # one server, as launch/serve_sglang.py starts it
        python="",  # interpreter of SGLang's environment; "" = .venv-sglang/bin/python
        host="127.0.0.1",  # address that it listens on; it has no password, so never a public one
        port=30000,
        tensor=1,  # GPUs that share each layer
        expert=1,  # GPUs that share the experts of a MoE
        memory_fraction=0.85,  # of a GPU's memory, for weights and cache
        max_running=0,  # most requests decoded together; 0 = SGLang decides
        deterministic=False,  # draws depend on seed and position alone; slower
        ready_s=1800.0,  # seconds that it may take to begin
        extra=(),  # further options of SGLang, such as ("--quantization=fp8",)
    )
    config["learn"].update(
        eps_low=0.2,  # clip of the importance ratio below 1
        eps_high=0.28,  # and above
        ratio_correction="icepop",  # trainer/engine mismatch: icepop, tis or none
        icepop_low=0.5,  # a ratio below has weight 0
        icepop_high=2.0,  # a ratio above has weight 0
        tis_cap=2.0,  # truncation of the tis weight
    )
    config["train"] = dict(
        steps=419,  # optimiser steps of the run
        trajectories_every=1,  # steps between saved trajectory files; the first and last are always saved
    )
    return _locked(config)


def sft() -> ConfigDict:
    """Defaults of supervised fine-tuning on rejection-sampled expert traces."""
    config = _shared()
    config["learn"].update(lr=4e-5, schedule="cosine")
    config["sft"] = dict(
        traces="",  # folders that launch/collect_sft.py made, with commas between; "" = the expert, now
        held_out=0.0,  # share of the questions whose traces are not learned, but measured after each epoch
        epochs=3,  # passes over the kept traces
        batch=16,  # traces of one optimiser step
        worlds=1,  # worlds (seeds counting up) whose questions the expert answers: facts that a policy sees
        # again and again it learns by heart, instead of learning to read
        wander=0.0,  # probability that the expert first opens a result that it does not need
        pretrain_steps=0,  # first steps on pages of other worlds, for a policy that cannot read yet
        pretrain_pages=48,  # pages of one such step
        min_outcome=1.0,  # a trace is kept when its outcome
        min_rubric=1.0,  # and its rubric reward reach these
    )
    config["train"] = dict(steps=0)  # stop after so many optimiser steps; 0 = after the epochs
    return _locked(config)


def _locked(tree: Mapping) -> ConfigDict:
    return ConfigDict(tree).lock()


# ------------------------------------------------------------------------------------------------ validation

_CHOICES = {
    "model.dtype": ("float32", "bfloat16"),
    "model.remat": ("products", "attention", "full", "offload"),
    "model.attention": ("auto", "blockwise", "splash", "cudnn"),
    "model.experts": ("auto", "tiled", "megablox", "tokamax"),
    "learn.moments": ("float32", "bfloat16", "host"),
    "model.preset": ("tiny", "tiny_moe"),
    "data.source": ("world", "files", "tfds"),
    "search.source": ("corpus", "server", "retrieval"),
    "learn.schedule": ("constant", "cosine"),
    "rollout.engine": ("embedded", "sglang"),
    "rollout.on_update": ("resume", "keep"),
    "learn.normalizer": ("global_tokens", "per_group", "per_sequence"),
    "learn.ratio_correction": ("icepop", "tis", "none"),
    "reward.entity_names": ("exact", "robust"),
    "reward.citations": tuple(READERS),
    "reward.over_length": ("stats_only", "train_as_failure", "drop"),
    "reward.mix": MODES,
    "judge.kind": ("exact", "llm"),
}
_POSITIVE = (
    "model.vocab_size world.entities_per_kind search.max_results search.snippet_chars search.page_chars "
    "search.server.request_s search.server.attempts search.find_radius search.find_limit "
    "agent.context agent.turns agent.tool_calls agent.turn_tokens "
    "rollout.prompts rollout.slots rollout.prefill_rows rollout.prefill_chunk rollout.temperature "
    "rollout.mismatch_alarm rollout.request_s rollout.token_s rollout.health_s learn.lr learn.clip_norm "
    "learn.row_length learn.logprob_chunk learn.icepop_low learn.tis_cap checkpoint.every checkpoint.keep "
    "train.trajectories_every serve.port serve.tensor serve.expert serve.ready_s "
    "sft.epochs sft.batch sft.pretrain_pages sft.worlds judge.max_tokens judge.tries judge.votes "
    "judge.concurrency judge.request_s"
).split()
_SHARES = (
    "serve.memory_fraction world.obfuscate world.shortcut reward.alpha learn.eps_low learn.b1 learn.b2 "
    "sft.wander sft.min_outcome sft.min_rubric sft.held_out judge.at_least"
).split()
_AXES = "mesh.data mesh.fsdp mesh.expert mesh.context mesh.tensor".split()
_NOT_NEGATIVE = (
    "world.distractors world.look_alikes data.train_questions data.held_out_questions learn.weight_decay "
    "learn.rows learn.warmup_steps learn.eps_high train.steps sft.pretrain_steps "
    "agent.deadline_s serve.max_running rollout.staleness rollout.refill rollout.in_flight judge.temperature "
    "judge.key_concurrency judge.queue_s judge.budget_usd judge.price_prompt judge.price_cached "
    "judge.price_completion"
).split()


def problems(config: ConfigDict) -> list[str]:
    """Everything that is wrong with the values, one line each, empty when nothing is."""
    flat = flatten(config)
    found = [
        f"config.{key}={flat[key]!r} is not one of {', '.join(choices)}{_hint(flat[key], choices)}"
        for key, choices in _CHOICES.items()
        if key in flat and flat[key] not in choices
    ]
    rules: list[tuple[list[str], Callable, str]] = [
        (_POSITIVE, lambda v: v > 0, "must be positive"),
        (_SHARES, lambda v: 0 <= v <= 1, "must lie between 0 and 1"),
        (_NOT_NEGATIVE, lambda v: v >= 0, "must not be negative"),
        (_AXES, lambda v: v > 0 or v == -1, "must be positive, or -1 for all other devices"),
    ]
    for keys, holds, says in rules:
        found += [f"config.{k}={flat[k]!r} {says}" for k in keys if k in flat and not holds(flat[k])]
    return found + _contradictions(flat)


def _contradictions(flat: Mapping) -> list[str]:
    """Values that are fine alone but not together."""
    hops = flat["world.hops"]
    row_shards = math.prod(flat[f"mesh.{axis}"] for axis in ("data", "fsdp", "expert"))
    context = flat["mesh.context"]
    checks = [
        (
            flat["learn.row_length"] >= flat["agent.context"],
            "config.learn.row_length must be at least config.agent.context: a trajectory is never cut",
        ),
        (
            bool(hops) and all(isinstance(n, int) and 1 <= n <= 4 for n in hops),
            "config.world.hops must be lengths from 1 to 4, such as (2, 3)",
        ),
        (
            row_shards < 0 or flat["learn.rows"] % max(row_shards, 1) == 0,
            "config.learn.rows must be a multiple of config.mesh.data * fsdp * expert, or 0",
        ),
        (
            context < 2 or flat["learn.row_length"] % (2 * context) == 0,
            "config.learn.row_length must be a multiple of 2 * config.mesh.context: each row is cut so often",
        ),
        (
            flat["model.attention"] != "cudnn" or not flat["learn.pack"],
            "config.model.attention=cudnn knows no segments and needs config.learn.pack=False",
        ),
        (
            flat.get("rollout.group_size", 2) >= 2,
            "config.rollout.group_size must be at least 2: advantages compare siblings",
        ),
        (
            flat["data.source"] != "files" or flat["data.path"] or flat.get("sft.traces"),
            "config.data.source=files needs config.data.path, a folder with question and page files",
        ),
        (
            not flat.get("sft.traces") or flat["model.policy"] or flat["model.tokenizer"],
            "config.sft.traces are tokens: give config.model.policy or config.model.tokenizer",
        ),
        (
            flat["data.source"] != "tfds" or (flat["data.path"] and flat["data.name"]),
            "config.data.source=tfds needs config.data.path and config.data.name; see launch/build_dataset.py",
        ),
        (
            flat["data.source"] == "tfds" or not flat["data.name"],
            "config.data.name is used only with config.data.source=tfds",
        ),
        (
            flat["data.source"] == "files" or not flat["data.skip_bad_rows"],
            "config.data.skip_bad_rows is used only with config.data.source=files",
        ),
        (
            flat["data.source"] == "world" or flat.get("sft.worlds", 1) == 1,
            "config.sft.worlds above 1 needs config.data.source=world",
        ),
        (
            flat.get("rollout.engine", "embedded") == "embedded" or flat["rollout.servers"],
            "config.rollout.engine=sglang needs config.rollout.servers; start them with launch/serve_sglang.py",
        ),
        (
            flat.get("rollout.engine", "sglang") == "sglang" or not flat["rollout.servers"],
            "config.rollout.servers are used only with config.rollout.engine=sglang",
        ),
        (
            flat.get("learn.icepop_low", 0) < flat.get("learn.icepop_high", 1),
            "config.learn.icepop_low must be below config.learn.icepop_high",
        ),
    ]
    return [message for holds, message in (*checks, *_search_checks(flat), *_judge_checks(flat)) if not holds]


def _search_checks(flat: Mapping) -> list[tuple[bool, str]]:
    """(whether it holds, what to say when it does not) for the section `search`."""
    elsewhere = flat["search.source"] != "corpus" or flat["search.index.path"]
    return [
        (
            flat["search.source"] not in ("server", "retrieval") or flat["search.server.url"],
            f"config.search.source={flat['search.source']} needs config.search.server.url",
        ),
        (
            flat["search.source"] == "corpus" or not flat["search.index.path"],
            "config.search.index.path is used only with config.search.source=corpus",
        ),
        (
            flat["search.index.path"] or not flat["search.index.dense_model"],
            "config.search.index.dense_model needs config.search.index.path",
        ),
        (
            flat["data.source"] == "world" or not elsewhere or flat["model.policy"] or flat["model.tokenizer"],
            "without pages in memory there is nothing to train a tokenizer on: give config.model.policy or "
            "config.model.tokenizer",
        ),
    ]


def _judge_checks(flat: Mapping) -> list[tuple[bool, str]]:
    """(whether it holds, what to say when it does not) for the section `judge`."""
    if "judge.kind" not in flat:
        return []
    return [
        (
            flat["judge.kind"] == "exact" or flat["judge.endpoints"] or flat["judge.replay"],
            "config.judge.kind=llm needs config.judge.endpoints, or config.judge.replay=True",
        ),
        (
            flat["judge.votes"] % 2 == 1,
            "config.judge.votes must be odd: an even number may be a tie",
        ),
        (
            not flat["judge.budget_usd"] or flat["judge.price_prompt"] or flat["judge.price_completion"],
            "config.judge.budget_usd needs config.judge.price_prompt and config.judge.price_completion",
        ),
        (
            flat["judge.page_bytes"] >= 200 and flat["judge.pages_bytes"] >= 4000,
            "config.judge.page_bytes must be at least 200, and config.judge.pages_bytes at least 4000",
        ),
    ]


def _hint(value: str, choices: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(value), choices, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def flatten(config: Mapping, prefix: str = "") -> dict:
    """{"section.field": value} for all leaves."""
    flat = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, name + ".") if isinstance(value, Mapping | ConfigDict) else {name: value})
    return flat


def to_json(config: ConfigDict) -> str:
    """The flat fields as JSON, sorted, for config.json and for comparing runs."""
    return json.dumps(flatten(config), sort_keys=True, indent=1)
