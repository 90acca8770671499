"""vLLM's scheduler over its own KV cache manager, on a CPU, with the laws of the kit checked in each step.

`python -m hicache.engines.vllm.scheduler --seed 1` runs it. The model runner computes no attention: it writes into the
slots of each scheduled token the bytes that stand for the tokens up to it, and samples a token that depends on these
alone. Requests arrive, share prefixes, are preempted and aborted, all drawn from the seed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from hicache.engines.stubs import Stub
from hicache.engines.vllm.adapter import CONFIGURATIONS, Running, Vllm0330, cache_groups
from hicache.engines.vllm.imports import CONNECTOR, import_from
from hicache.testing.driving.block_view import BlockView
from hicache.testing.driving.running import RunningRequest
from hicache.testing.geometry import GeometricConfig, Publish
from hicache.testing.violation import ViolationError, violation
from hicache.types import SHARED, Component, Key, Slots

MODULE = "hicache.engines.vllm.scheduler"
POLICIES = ("fcfs", "priority")

BLOCKS = 24
"""The blocks of a pool: fewer than the running requests need at their longest, so that they preempt each other."""

MAX_MODEL_TOKENS, MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 64, 40, 24
MAX_RUNNING, MAX_WAITING = 6, 4
STEP_TOKENS, CHUNK_TOKENS = 24, 8
"""The most tokens of a step, and of one request in a step: several requests compute their prompts side by side."""

ARRIVAL, ABORT = 0.6, 0.03
"""How likely it is in a step that a request arrives, and that one is aborted."""

VOCABULARY = 50
KNOWN_PROMPTS = 8
"""How many of the latest prompts and answers a new prompt may begin with."""

LAYOUTS: Mapping[str, GeometricConfig] = {
    "-".join(config.components): config.with_blocks(BLOCKS)
    for config in CONFIGURATIONS
    if config.geometry.publish is Publish.SCHEDULED and Component.MAMBA not in config.components
}
"""The layouts that vLLM caches at scheduling, by the names of their components."""


@dataclass(slots=True)
class SchedulerCounts:
    """What a run has met. `evictions`: blocks whose hash was removed. `hit_tokens`: those that admissions found."""

    steps: int = 0
    admissions: int = 0
    finished: int = 0
    aborted: int = 0
    preemptions: int = 0
    evictions: int = 0
    hit_tokens: int = 0


class ScheduledCache(Vllm0330):
    """The cache of a scheduler, as the kit reads it. Its verbs are called by the scheduler."""

    def __init__(self, config: GeometricConfig, policy: str) -> None:
        super().__init__(config)
        self.requests = self._requests
        self.scheduler = open_scheduler(config, self._blocks, policy)
        self._manager = self.scheduler.kv_cache_manager
        self._pool = self._manager.block_pool

    def slots_of(self, blocks: Sequence[int]) -> Slots:
        """The slots of FULL of a block table."""
        return self._slots(Component.FULL, blocks)


class SchedulerRun:
    """One run of the scheduler.

    A step raises ViolationError if a law does not hold, and RuntimeError if vLLM raises. The message names the step,
    and the command that repeats it.
    """

    def __init__(self, layout: str, policy: str, seed: int) -> None:
        config = LAYOUTS[layout]
        self.counts = SchedulerCounts()
        self._words = f"--layout {layout} --policy {policy} --seed {seed}"
        self.cache = ScheduledCache(config, policy)
        self.scheduler = self.cache.scheduler
        self.scheduler.kv_event_publisher = SimpleNamespace(publish=self._count_evictions)
        # Each check is several verbs after the one before it.
        self._view = BlockView(self.cache, config, itertools.count(step=2).__next__, checks_computed=True)
        self._view.verb = "a step"
        self._draws = random.Random(seed)
        self._running: dict[str, RunningRequest] = {}
        self._blocks: dict[str, list[int]] = {}
        self._prompts: list[Sequence[int]] = []

    def run(self, steps: int) -> SchedulerCounts:
        """Run so many steps."""
        for _ in range(steps):
            self.step()
        return self.counts

    def step(self) -> None:
        """Draw arrivals and aborts, schedule, compute and update; check after the computation and after the update."""
        self.counts.steps += 1
        try:
            self._draw()
            output = self.scheduler.schedule()
            self.counts.preemptions += len(output.preempted_req_ids)
            computed = self._execute(output)
            self._check()
            self.scheduler.update_from_output(output, computed)
            self.counts.finished += len(self.scheduler.finished_req_ids)
            self._check()
        except ViolationError as error:
            raise violation(error.clause, f"{self._place()}: {error.place}", error.expected, error.actual) from error
        except Exception as error:
            raise RuntimeError(f"{self._place()}: {type(error).__name__}: {error}") from error

    def _place(self) -> str:
        """The step, and the command that runs up to it."""
        steps = self.counts.steps
        return f"step {steps} of `python -m {MODULE} {self._words} --steps {steps}`"

    # Requests.

    def _draw(self) -> None:
        if len(self.scheduler.waiting) < MAX_WAITING and self._draws.random() < ARRIVAL:
            self._add()
        if self.scheduler.requests and self._draws.random() < ABORT:
            name = self._draws.choice(list(self.scheduler.requests))
            (status,) = import_from("vllm.v1.request", "RequestStatus")
            self.counts.aborted += len(self.scheduler.finish_requests(name, status.FINISHED_ABORTED))

    def _add(self) -> None:
        """Add a request, whose prompt begins with a part of an earlier prompt or answer."""
        known = self._draws.choice([[], *self._prompts[-KNOWN_PROMPTS:]])
        length = self._draws.randint(1, MAX_PROMPT_TOKENS)
        tokens = list(known[: self._draws.randint(0, length)])
        tokens += self._draws.choices(range(VOCABULARY), k=length - len(tokens))
        request = self.cache.requests.new(
            Key(np.array(tokens, dtype=np.int32), SHARED),
            sampling_parameters(self._draws.randint(1, MAX_OUTPUT_TOKENS)),
            arrival_time=float(self.counts.steps),
            priority=self._draws.randrange(3),
        )
        self._prompts.append(request.all_token_ids)
        self.scheduler.add_request(request)

    # The model runner.

    def _execute(self, output: Any) -> Any:
        """Compute the scheduled tokens by the block tables that the scheduler sent."""
        for new in output.scheduled_new_reqs:
            self._start(new.req_id, new.block_ids, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        rows = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
        for name, blocks, computed_tokens in rows:
            if name in cached.resumed_req_ids:
                self._start(name, blocks, computed_tokens)
            elif blocks is not None:
                self._blocks[name] += blocks[0]
        names = list(output.num_scheduled_tokens)
        sampled = [self._compute(name, output.num_scheduled_tokens[name]) for name in names]
        numbers = {name: number for number, name in enumerate(names)}
        return import_from("vllm.v1.outputs").ModelRunnerOutput(names, numbers, sampled)

    def _start(self, name: str, blocks: Sequence[Sequence[int]], computed_tokens: int) -> None:
        self.counts.admissions += 1
        self.counts.hit_tokens += computed_tokens
        running = Running(self.scheduler.requests[name], SHARED, computed_tokens)
        empty = Key(np.zeros(0, dtype=np.int32), SHARED)
        table = self.cache.slots_of(blocks[0])
        self._running[name] = RunningRequest(running, empty, table, None, 0, computed_tokens, awaited=None)
        self._running[name].kv_tokens = computed_tokens
        self._blocks[name] = list(blocks[0])

    def _compute(self, name: str, count: int) -> list[int]:
        """Compute so many tokens of a request; returns the next token after its last one."""
        running, request = self._running[name], self.scheduler.requests[name]
        end = running.computed_tokens + count
        tokens = request.all_token_ids[:end]
        running.key = Key(np.array(tokens, dtype=np.int32), SHARED)
        self._view.set_table(running, self.cache.slots_of(self._blocks[name]))
        self._view.compute(running, end)
        return [(31 * sum(tokens) + end) % VOCABULARY] if end == request.num_tokens else []

    # The hook.

    def _check(self) -> None:
        names = [request.request_id for request in self.scheduler.running]
        self._running = {name: self._running[name] for name in names}
        for request in self.scheduler.requests.values():
            self.cache.requests.remember(request, SHARED)
        self._view.check(self._running.values(), is_awaited=False)

    def _count_evictions(self, batch: Any) -> None:
        removed = (event for event in batch.events if type(event).__name__ == "BlockRemoved")
        self.counts.evictions += sum(len(event.block_hashes) for event in removed)


def sampling_parameters(output_tokens: int) -> SimpleNamespace:
    """What vLLM reads of the sampling parameters of a request that generates so many tokens."""
    return SimpleNamespace(
        max_tokens=output_tokens,
        min_tokens=0,
        eos_token_id=None,
        stop_token_ids=(),
        extra_args=None,
        structured_outputs=None,
        repetition_detection=None,
        num_logprobs=None,
        skip_reading_prefix_cache=None,
    )


def import_scheduler() -> Any:
    """The class of vLLM's scheduler."""
    base = import_from(f"{CONNECTOR}.base")
    # Two packages are imported without their own `__init__`: the names that the scheduler takes from them.
    for name in ("KVConnectorBase_V1", "KVConnectorRole", "SupportsHMA"):
        setattr(sys.modules[CONNECTOR], name, getattr(base, name))
    vars(sys.modules["vllm.v1.structured_output"])["StructuredOutputManager"] = Stub
    return import_from("vllm.v1.core.sched.scheduler").Scheduler


def open_scheduler(config: GeometricConfig, blocks: int, policy: str) -> Any:
    """An idle scheduler of vLLM, with an empty cache."""
    geometry = config.geometry
    return import_scheduler()(
        _engine_config(blocks, policy),
        cache_groups(config, blocks),
        SimpleNamespace(accept_tokens=lambda *_: True),
        geometry.alignment,
        min(geometry.tokens(name) for name in config.components),
    )


def _engine_config(blocks: int, policy: str) -> SimpleNamespace:
    """What the scheduler reads of vLLM's configuration: a text model on one device, without a connector or drafts."""
    absent = ("lora_config", "kv_transfer_config", "ec_transfer_config", "speculative_config")
    ahead = ("num_hash_lookahead_tokens", "num_lookahead_tokens", "num_prefill_lookahead_tokens")
    return SimpleNamespace(
        **dict.fromkeys(absent),
        **dict.fromkeys((*ahead, "num_speculative_tokens"), 0),
        scheduler_config=_scheduler_config(policy),
        cache_config=SimpleNamespace(
            num_gpu_blocks=blocks + 1,
            enable_prefix_caching=True,
            enable_mamba_shared_prefix_checkpoint=False,
            mamba_cache_mode="none",
        ),
        model_config=SimpleNamespace(
            max_model_len=MAX_MODEL_TOKENS,
            runner_type="generate",
            is_diffusion=False,
            is_encoder_decoder=False,
            supports_multimodal_inputs=False,
            uses_mrope=False,
            return_sampling_mask=False,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            data_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        observability_config=SimpleNamespace(
            kv_cache_metrics=False, per_request_spec_decode_metrics="none", enable_mfu_metrics=False
        ),
        kv_events_config=SimpleNamespace(enable_kv_cache_events=True, publisher="null"),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        is_mm_encoder_only=False,
        use_v2_model_runner=False,
        max_concurrent_batches=1,
        max_in_flight_tokens=STEP_TOKENS,
    )


def _scheduler_config(policy: str) -> SimpleNamespace:
    return SimpleNamespace(
        policy=policy,
        max_num_seqs=MAX_RUNNING,
        max_num_active_seqs=None,
        max_num_batched_tokens=STEP_TOKENS,
        max_num_scheduled_tokens=None,
        enable_chunked_prefill=True,
        long_prefill_token_threshold=CHUNK_TOKENS,
        long_prefill_token_threshold_adaptive=False,
        prefill_schedule_interval=1,
        scheduler_reserve_full_isl=True,
        watermark=0.0,
        async_scheduling=False,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the scheduler and print what was counted, or the clause that does not hold. Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__, allow_abbrev=False)
    parser.add_argument("--layout", choices=LAYOUTS, default="full", help="the components of the model")
    parser.add_argument("--policy", choices=POLICIES, default="fcfs", help="the scheduling policy of vLLM")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args(words)
    try:
        counts = SchedulerRun(options.layout, options.policy, options.seed).run(options.steps)
    except ImportError as error:
        parser.error(str(error))
    except (ViolationError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{counts}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
