"""GpuPart: what only a GPU runs of a cache, and which of it a run has not run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from hicache.config import ExecutorKind
from hicache.testing.adapter import Capability
from hicache.testing.contract import Clause
from hicache.testing.report.run import Execution, Outcome, RunRecord


class GpuPart(str, Enum):
    """A part of a cache that only a GPU runs."""

    STREAMS = "CUDA streams"
    PINNED_MEMORY = "pinned host memory"
    NCCL = "NCCL"


_CAPABILITY_OF = {
    GpuPart.STREAMS: Capability.HOST,
    GpuPart.PINNED_MEMORY: Capability.HOST,
    GpuPart.NCCL: Capability.RANKS,
}


GPU, NO_GPU = "gpu", "none"
"""The name in the environment of a run for the GPUs that it had, and what stands there without one."""

DRIVER = "driver"
"""The name in the environment of a run for the version of the driver of its GPUs."""


def parts_run(executions: Iterable[Execution], clauses: Mapping[str, Clause], implementation: str) -> set[GpuPart]:
    """The parts that tests ran: on a GPU, or on a model of CUDA. `implementation`: as in the record of the run."""
    run = [one for one in executions if one.outcome is not Outcome.SKIPPED]
    parts = {part for one in run for part in _parts_of(one, clauses)}
    # An adapter that is opened on a GPU copies on streams, with any executor of the configuration.
    return parts | ({GpuPart.STREAMS} if is_on_gpu(implementation) and any(_executors(one) for one in run) else set())


def is_on_gpu(implementation: str) -> bool:
    """Whether an adapter is opened on a GPU, by its path as in the record of the run."""
    return implementation.partition("@")[2].startswith("cuda")


def not_on_gpu(record: RunRecord, clauses: Mapping[str, Clause]) -> tuple[GpuPart, ...]:
    """The parts that the cache has and that no test ran on a GPU."""
    has_gpu = record.environment.get(GPU, NO_GPU) != NO_GPU
    run = parts_run(record.executions, clauses, record.implementation) if has_gpu else set[GpuPart]()
    return tuple(part for part in GpuPart if _CAPABILITY_OF[part].name in record.capabilities and part not in run)


def untried_on_gpu(record: RunRecord, clauses: Mapping[str, Clause]) -> str:
    """The same as a sentence; empty where all parts ran."""
    parts = not_on_gpu(record, clauses)
    return f"No test ran on a GPU of: {', '.join(part.value for part in parts)}" if parts else ""


def _executors(execution: Execution) -> set[str]:
    """The kinds of executor that the configuration of a test names; none without a host tier."""
    return {kind.value for kind in ExecutorKind} & set(execution.configuration.replace("/", "-").split("-"))


def _parts_of(execution: Execution, clauses: Mapping[str, Clause]) -> set[GpuPart]:
    """The parts that a test runs. NCCL counts where ranks were seen in a collective: a rank alone uses it for none."""
    shown = {
        GpuPart.STREAMS: ExecutorKind.STREAMS.value in _executors(execution),
        GpuPart.PINNED_MEMORY: any(clauses[one].gpu for one in execution.clauses if one in clauses),
        GpuPart.NCCL: "nccl" in execution.collectives,
    }
    return {part for part, is_shown in shown.items() if is_shown}
