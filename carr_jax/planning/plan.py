"""A plan: memory, FLOPs, time and traffic of one optimiser step on chips that are not there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
from ml_collections import ConfigDict

from carr_jax.models.flops import parameter_count, training_flops
from carr_jax.planning.knobs import knobs
from carr_jax.planning.memory import (
    GIB,
    Memory,
    bytes_per_chip,
    compiled_peak,
    estimated_temporaries,
    out_of_memory,
)
from carr_jax.planning.program import program_flops, saved_bytes
from carr_jax.planning.step import Step, trace
from carr_jax.planning.topology import Topology, devices
from carr_jax.planning.traffic import per_micro_step
from carr_jax.records import InputError

UTILISATIONS = (0.4, 0.5, 0.6)
_BATCH_BYTES = 7 * 4  # of one token: the arrays of a TrainBatch


@dataclass(frozen=True)
class Plan:
    """What a step needs.  Times in seconds, traffic in GB of one device in one micro-batch.

    `source` says where the peak comes from: "compiler", "compiler (refused)" or "estimate".  `flops` are the
    model's (causal, 3 x forward) over all rows, `program_ratio` what the program performs over that.  `moved`
    and `ideal` are empty and None where they cannot be known.
    """

    topology: Topology
    step: Step
    memory: Memory
    source: str
    flops: float
    program_ratio: float | None
    moved: dict[str, float]
    ideal: float | None
    trace_seconds: float
    compile_seconds: float
    knobs: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.memory.fits and "refused" not in self.source

    @property
    def tokens(self) -> int:
        return self.step.rows * self.step.batch_shape[2]

    def seconds(self, utilisation: float) -> float:
        """Of one optimiser step at this share of the chips' peak."""
        return self.flops / (self.topology.peak_flops * utilisation)


def make_plan(config: ConfigDict, topology: Topology) -> Plan:
    """Traces, lowers and (where there is a compiler) compiles the step of `config` for `topology`.

    Raises InputError for what a person can mend.  A program that is too large for its chip is a plan, too.
    """
    began = time.monotonic()
    step = trace(config, devices(topology)[: topology.chips], topology.chip.kind)
    memory = known_memory(step, topology.chip.memory_gib)
    traced = time.monotonic()
    platform = ("cuda",) if topology.chip.kind == "gpu" else None
    lowered = step.traced.lower(lowering_platforms=platform)
    memory, source, text = measure(lowered, step, memory, config, topology)
    done = time.monotonic()
    length = step.batch_shape[2]
    counted = program_flops(step.traced.jaxpr, step.unseen)
    whole = training_flops(step.model, [length] * (step.batch_shape[0] * step.batch_shape[1]))
    moved = per_micro_step(text, step.batch_shape[0]) if text else {}
    return Plan(
        topology=topology,
        step=step,
        memory=memory,
        source=source,
        flops=training_flops(step.model, [length] * step.rows),
        program_ratio=None if counted.unknown_kernels else counted.total / whole,
        moved={kind: size / 1e9 for kind, size in moved.items()},
        ideal=ideal_traffic(step, itemsize(config)),
        trace_seconds=traced - began,
        compile_seconds=done - traced,
        knobs=() if memory.fits and "refused" not in source else knobs(config, step, memory),
    )


def measure(
    lowered: jax.stages.Lowered, step: Step, memory: Memory, config: ConfigDict, topology: Topology
) -> tuple[Memory, str, str]:
    """(memory with its peak, where the peak comes from, the compiled text if there is one)."""
    if topology.chip.kind == "gpu":
        sizes = (step.tokens, step.row_tokens, config.learn.logprob_chunk, itemsize(config))
        temporaries = estimated_temporaries(step.model, *sizes, step.mesh.shape["tensor"])
        return memory.with_peak(memory.peak + temporaries), "estimate", ""
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        found = out_of_memory(str(error))
        if found is None:
            said = " ".join(str(error).split())[:300]
            raise InputError(f"the compiler for {topology.name} failed: {said}") from error
        return memory.with_peak(found[0]), "compiler (refused)", ""
    return memory.with_peak(compiled_peak(compiled, topology.chip.kind)), "compiler", compiled.as_text()


def known_memory(step: Step, limit: float) -> Memory:
    """What is known before anything is compiled; temporaries are still 0."""
    weights, _ = bytes_per_chip(step.state.params)
    optimizer, on_host = bytes_per_chip(step.state.opt_state)
    batch = _BATCH_BYTES * step.batch_shape[0] * step.tokens
    kept = saved_bytes(step.traced.jaxpr, step.model.num_layers) / step.mesh.size
    return Memory(
        weights=weights / GIB,
        optimizer=optimizer / GIB,
        batch=batch / GIB,
        gradients=weights / GIB,
        activations=kept / GIB,
        temporaries=0.0,
        host=on_host / GIB,
        limit=limit,
    )


def ideal_traffic(step: Step, item: int) -> float | None:
    """GB that one device must move in one micro-batch when parameters and rows are cut.

    Each parameter is gathered for the forward and for the backward pass and its gradient is scattered, all in
    the compute type; likewise keys and values of whole rows over the context axis.  None with expert
    parallelism, whose traffic depends on the routing.
    """
    mesh, model = step.mesh.shape, step.model
    if mesh["expert"] > 1:
        return None
    moved = 0.0
    if mesh["fsdp"] * mesh["context"] > 1:
        moved += parameter_count(model)
    if mesh["context"] > 1:
        moved += step.row_tokens * model.num_layers * 2 * model.num_kv_heads * model.head_dim
    return 3 * item * moved / mesh["tensor"] / 1e9


def itemsize(config: ConfigDict) -> int:
    """Bytes of the compute type."""
    return jax.numpy.dtype(config.model.dtype).itemsize


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as flat plain values, for the last line of `--json`."""
    memory, step = plan.memory, plan.step
    parts = ("weights", "optimizer", "batch", "gradients", "activations", "temporaries", "host")
    return {
        "topology": plan.topology.name,
        "chips": plan.topology.chips,
        "mesh": dict(step.mesh.shape),
        "model": step.source,
        "loss": step.loss,
        "batch_shape": list(step.batch_shape),
        "tokens_per_step": plan.tokens,
        "peak_gib": round(memory.peak, 3),
        "arguments_gib": round(memory.arguments, 3),
        "limit_gib": round(memory.limit, 3),
        "fits": plan.fits,
        "peak_from": plan.source,
        **{f"{part}_gib": round(getattr(memory, part), 3) for part in parts},
        "flops_per_step": plan.flops,
        "program_flops_ratio": plan.program_ratio and round(plan.program_ratio, 4),
        "seconds_at_mfu": {str(u): float(f"{plan.seconds(u):.4g}") for u in UTILISATIONS},
        "traffic_gb_per_micro_step": {kind: round(size, 4) for kind, size in plan.moved.items()},
        "ideal_traffic_gb_per_micro_step": plan.ideal and round(plan.ideal, 4),
        "trace_seconds": round(plan.trace_seconds, 1),
        "compile_seconds": round(plan.compile_seconds, 1),
        "knobs": list(plan.knobs),
    }
