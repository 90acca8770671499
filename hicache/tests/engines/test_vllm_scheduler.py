"""vLLM's scheduler under the laws of the kit: they hold, and each planted defect is found."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hicache.engines.interface import release_of
from hicache.engines.vllm import adapter as vllm
from hicache.engines.vllm import scheduler
from hicache.engines.vllm.imports import import_from
from hicache.engines.vllm.scheduler import LAYOUTS, SchedulerRun
from hicache.testing.violation import ViolationError

STEPS = 1000
SEED = 1

pytestmark = pytest.mark.skipif(
    release_of("vllm") != vllm.Vllm0330.version,
    reason=f"vllm {vllm.Vllm0330.version} is not installed: `tox -e vllm-{vllm.Vllm0330.version}` installs it",
)


def test_the_scheduler_is_vllms_own_and_no_stub() -> None:
    run = SchedulerRun("full", "fcfs", SEED)
    for part in (run.scheduler, run.scheduler.kv_cache_manager, run.scheduler.kv_cache_manager.block_pool):
        file = sys.modules[type(part).__module__].__file__
        assert file is not None, f"{type(part).__name__} is a stub"
        assert Path(file).is_file(), f"expected {type(part).__name__} to be read from a file, got {file}"
        assert type(part).__module__.startswith("vllm."), f"got {type(part).__module__}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_law_holds_after_each_step(layout: str) -> None:
    counts = SchedulerRun(layout, "fcfs", SEED).run(STEPS)
    assert counts.steps == STEPS, f"expected {STEPS} steps, got {counts}"
    for met in ("finished", "aborted", "preemptions", "evictions", "hit_tokens"):
        assert getattr(counts, met) >= 10, f"expected at least 10 {met}, got {counts}"


def test_a_run_is_repeated_by_its_seed() -> None:
    first, second, other = (SchedulerRun("full", "fcfs", seed).run(200) for seed in (SEED, SEED, SEED + 1))
    assert first == second, f"expected equal counts for equal seeds, got {first} and {second}"
    assert first != other, f"expected other counts for another seed, got {other}"


# Planted defects.


def frees_shared_blocks_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preempted request gives up a shared block twice, so that it is freed while another request has it."""
    cls = scheduler.import_scheduler()
    sound = cls._preempt_request

    def preempt(self: Any, request: Any, *arguments: Any, **named: Any) -> None:
        pool = self.kv_cache_manager.block_pool
        numbers = self.kv_cache_manager.get_block_ids(request.request_id)[0]
        sound(self, request, *arguments, **named)
        pool.free_blocks([block for block in map(pool.blocks.__getitem__, numbers) if block.ref_cnt])

    monkeypatch.setattr(cls, "_preempt_request", preempt)


def keeps_the_hash_of_a_reused_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block keeps its hash when another request gets it and overwrites it."""
    (cls,) = import_from("vllm.v1.core.block_pool", "BlockPool")
    monkeypatch.setattr(cls, "_maybe_evict_cached_block", lambda *_: False)


def does_not_count_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hit on a block that a running request has does not raise its reference count."""
    (cls,) = import_from("vllm.v1.core.block_pool", "BlockPool")
    sound = cls.touch

    def touch(self: Any, blocks: Iterable[Any]) -> None:
        sound(self, [block for block in blocks if not block.ref_cnt])

    monkeypatch.setattr(cls, "touch", touch)


Plant = Callable[[pytest.MonkeyPatch], None]
DEFECTS: dict[Plant, str] = {
    frees_shared_blocks_twice: "POOL-1",
    keeps_the_hash_of_a_reused_block: "REQ-3",
    does_not_count_a_hit: "LOCK-2",
}
"""The planted defects, each with the clause that it breaks first."""


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_found_and_its_command_repeats_it(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch)
    with pytest.raises(ViolationError) as caught:
        SchedulerRun("full", "fcfs", SEED).run(STEPS)
    message = str(caught.value)
    form = rf"{DEFECTS[plant]}: step (\d+) of `python -m {scheduler.MODULE} (.+)`: .+: expected .+, got .+"
    found = re.fullmatch(form, message, re.DOTALL)
    assert found is not None, f"expected the clause, the step, the command, and what was expected, got {message}"
    assert found[2].endswith(f"--seed {SEED} --steps {found[1]}"), f"expected the seed and the step, got {found[2]}"
    assert scheduler.main(shlex.split(found[2])) == 1, "expected the command to end with 1"
    assert capsys.readouterr().err == f"{message}\n", "expected the command to print the same message"


@pytest.mark.parametrize(("layout", "seed", "step"), [("full", 9, 48), ("full-swa", 3, 17)])
def test_by_priority_what_was_only_scheduled_stays_cached(layout: str, seed: int, step: int) -> None:
    """A defect of vLLM: a request that is preempted in the step that has scheduled it (docs/findings/vllm.md)."""
    with pytest.raises(ViolationError, match="no request computed it") as caught:
        SchedulerRun(layout, "priority", seed).run(STEPS)
    assert caught.value.clause == "REQ-11", f"got {caught.value}"
    assert f"--seed {seed} --steps {step}`" in caught.value.place, f"expected step {step}, got {caught.value}"


def test_what_vllm_raises_names_the_step_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    # With this seed a reused block becomes full in its first step, and vLLM asserts that it has no hash.
    keeps_the_hash_of_a_reused_block(monkeypatch)
    form = rf"step (\d+) of `python -m {scheduler.MODULE} .+ --seed 3 --steps \1`: AssertionError"
    with pytest.raises(RuntimeError, match=form):
        SchedulerRun("full", "fcfs", 3).run(STEPS)
