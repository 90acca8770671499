"""Walks: for each situation a short way there, through the rules of the machines that search for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hicache.config import WritePolicy
from hicache.types import SHARED, Component, Tier

from .host_machine import Hold, HostMachine
from .loading_machine import LoadingMachine
from .situation import Situation
from .tier_machine import Instant, Moment, TierMachine

FULL, MAMBA = Component.FULL.value, Component.MAMBA.value

STEP, ADVANCE, DRAIN = (Moment.STEP, 0, 0), (Moment.ADVANCE, 0, 0), (Moment.DRAIN, 0, 0)
FAIL, CLAIM, ABANDON = (Moment.FAIL, 0, 0), (Moment.CLAIM, 0, 0), (Moment.ABANDON, 0, 0)
SECOND_ENDS = (Moment.COMPLETE, 1, 0)


@dataclass(frozen=True, slots=True)
class Walk:
    """`steps`: what a machine is told to do. `components`, `write_policy`: of the cache that it opens for that."""

    machine: type[TierMachine]
    steps: Callable[[Any], None]
    components: tuple[str, ...]
    write_policy: WritePolicy


WALKS: dict[Situation, Walk] = {}
"""One for each situation."""

Steps = Callable[[Any], None]


def leads_to(
    situation: Situation,
    machine: type[TierMachine] = HostMachine,
    *,
    others: tuple[str, ...] = (),
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH,
) -> Callable[[Steps], Steps]:
    """What follows is the walk to a situation. `others`: the components that it needs beside FULL."""

    def keep(steps: Steps) -> Steps:
        WALKS[situation] = Walk(machine, steps, (FULL, *others), write_policy)
        return steps

    return keep


def strand(machine: HostMachine, *prompts: list[int]) -> None:
    """These prompts came before, and are on the host alone."""
    machine.use([(pages, SHARED) for pages in prompts])
    machine.strand()


def put(machine: HostMachine, pages: list[int], *soon: Instant) -> None:
    """A prompt is computed."""
    machine.put(pages, 0, SHARED, passed=0, with_state=True, soon=list(soon))


def load(machine: HostMachine, *soon: Instant, pages: int = 6, quota: int | None = None) -> None:
    """The first prompt that the host has more of is loaded."""
    machine.load_back(0, pages, quota, pressed=False, soon=list(soon))


def come_again(machine: LoadingMachine, *soon: Instant) -> None:
    """A request that ended, and whose prompt is on the host alone since, comes again."""
    machine.finish(machine.admit([1, 2], 1, SHARED))
    machine.strand()
    machine.admit_again(0, 1, pressed=False, soon=list(soon))


@leads_to(Situation.LOAD)
def _(machine: HostMachine) -> None:
    strand(machine, [1, 2])
    load(machine)


@leads_to(Situation.LOAD_OF_OTHERS, others=(MAMBA,))
def _(machine: HostMachine) -> None:
    """The state of an inner node leaves the device, and its pages stay."""
    put(machine, [1])
    put(machine, [1, 2], DRAIN)
    machine.evict(Tier.DEVICE, MAMBA, 1, 0)
    load(machine, pages=1)


@leads_to(Situation.LOAD_SHARED)
def _(machine: HostMachine) -> None:
    strand(machine, [1, 2])
    load(machine)
    load(machine)


@leads_to(Situation.LOAD_REFUSED)
def _(machine: HostMachine) -> None:
    strand(machine, [1, 2])
    load(machine, quota=1)


@leads_to(Situation.LOAD_DELIVERED)
def _(machine: HostMachine) -> None:
    strand(machine, [1, 2])
    load(machine, DRAIN, CLAIM)


@leads_to(Situation.LOAD_FAILED)
def _(machine: HostMachine) -> None:
    strand(machine, [1, 2])
    load(machine, FAIL, STEP, CLAIM)


@leads_to(Situation.LOAD_ABANDONED)
def _(machine: HostMachine) -> None:
    strand(machine, [1, 2])
    load(machine, STEP, ABANDON)


@leads_to(Situation.LAYERS_READ)
def _(machine: HostMachine) -> None:
    strand(machine, [1, 2])
    load(machine, ADVANCE)


@leads_to(Situation.BACKUP_FAILED)
def _(machine: HostMachine) -> None:
    put(machine, [1, 2], FAIL)


@leads_to(Situation.BACKUP_REFUSED)
def _(machine: HostMachine) -> None:
    """What somebody protects on the host leaves no room."""
    put(machine, [1, 2, 3], DRAIN)
    machine.hold(Hold.HOST_READER, 0, 3)
    put(machine, [2, 2])


@leads_to(Situation.EVICTION_REFUSED, write_policy=WritePolicy.WRITE_BACK)
def _(machine: HostMachine) -> None:
    put(machine, [1, 2])
    machine.evict(Tier.DEVICE, FULL, 1, failing=1)


@leads_to(Situation.OUT_OF_ORDER)
def _(machine: HostMachine) -> None:
    put(machine, [1], STEP)
    put(machine, [2], STEP, SECOND_ENDS)


@leads_to(Situation.SPLIT)
def _(machine: HostMachine) -> None:
    """A prompt parts from another one inside of what is being copied."""
    put(machine, [1, 2], STEP)
    put(machine, [1, 3])


@leads_to(Situation.KEPT)
def _(machine: HostMachine) -> None:
    """A prompt is computed once more while it is loaded, and its reader has not claimed it yet."""
    strand(machine, [1, 2])
    load(machine)
    machine.put_again(0, 2, passed=0, with_state=True)
    machine.pass_time([DRAIN])


@leads_to(Situation.RESET)
def _(machine: HostMachine) -> None:
    strand(machine, [1, 2])
    load(machine, STEP)
    machine.reset([([1, 2], SHARED)])


@leads_to(Situation.REQUEST_RESUMED, LoadingMachine)
def _(machine: LoadingMachine) -> None:
    come_again(machine, DRAIN, CLAIM)


@leads_to(Situation.REQUEST_FELL_BACK, LoadingMachine)
def _(machine: LoadingMachine) -> None:
    come_again(machine, FAIL, STEP, CLAIM)


@leads_to(Situation.REQUEST_ABORTED, LoadingMachine)
def _(machine: LoadingMachine) -> None:
    come_again(machine, STEP, ABANDON)
