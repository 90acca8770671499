"""Scripts: for each situation a few calls of a machine's rules that lead to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hicache.config import WritePolicy
from hicache.types import SHARED, Component, Tier

from .host_machine import Hold, HostMachine
from .loading_machine import LoadingMachine
from .situation import Situation
from .tier_machine import Action, DrawnAction, TierMachine

FULL, MAMBA = Component.FULL.value, Component.MAMBA.value

STEP, ADVANCE, DRAIN = (Action.STEP, 0, 0), (Action.ADVANCE, 0, 0), (Action.DRAIN, 0, 0)
FAIL, CLAIM, ABANDON = (Action.FAIL, 0, 0), (Action.CLAIM, 0, 0), (Action.ABANDON, 0, 0)
SECOND_ENDS = (Action.COMPLETE, 1, 0)


@dataclass(frozen=True, slots=True)
class Script:
    """`steps`: calls the rules of a machine. `components`, `write_policy`: of the cache that the machine opens."""

    machine: type[TierMachine]
    steps: Callable[[Any], None]
    components: tuple[str, ...]
    write_policy: WritePolicy


SCRIPTS: dict[Situation, Script] = {}
"""The script of each situation."""

Steps = Callable[[Any], None]


def script_for(
    situation: Situation,
    machine: type[TierMachine] = HostMachine,
    *,
    others: tuple[str, ...] = (),
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH,
) -> Callable[[Steps], Steps]:
    """Register the decorated function as the script of a situation. `others`: components that it needs besides FULL."""

    def register(steps: Steps) -> Steps:
        SCRIPTS[situation] = Script(machine, steps, (FULL, *others), write_policy)
        return steps

    return register


def drop_device_copy(machine: HostMachine, *prompts: list[int]) -> None:
    """Cache these prompts, and drop their device copies."""
    machine.use([(pages, SHARED) for pages in prompts])
    machine.drop_device_copy()


def put(machine: HostMachine, pages: list[int], *soon: DrawnAction) -> None:
    """A prompt is computed."""
    machine.put(pages, 0, SHARED, passed=0, with_state=True, soon=list(soon))


def load(machine: HostMachine, *soon: DrawnAction, pages: int = 6, quota: int | None = None) -> None:
    """Load the first prompt that has data on the host alone."""
    machine.load_back(0, pages, quota, pressure=False, soon=list(soon))


def resend(machine: LoadingMachine, *soon: DrawnAction) -> None:
    """Finish a request, drop the device copy of its prompt, and admit the prompt again."""
    machine.finish(machine.admit([1, 2], 1, SHARED))
    machine.drop_device_copy()
    machine.admit_again(0, 1, pressure=False, soon=list(soon))


@script_for(Situation.LOAD)
def _(machine: HostMachine) -> None:
    drop_device_copy(machine, [1, 2])
    load(machine)


@script_for(Situation.LOAD_OF_OTHERS, others=(MAMBA,))
def _(machine: HostMachine) -> None:
    """The state of an inner node is evicted from the device, and its pages stay."""
    put(machine, [1])
    put(machine, [1, 2], DRAIN)
    machine.evict(Tier.DEVICE, MAMBA, 1, 0)
    load(machine, pages=1)


@script_for(Situation.LOAD_SHARED)
def _(machine: HostMachine) -> None:
    drop_device_copy(machine, [1, 2])
    load(machine)
    load(machine)


@script_for(Situation.LOAD_REFUSED)
def _(machine: HostMachine) -> None:
    drop_device_copy(machine, [1, 2])
    load(machine, quota=1)


@script_for(Situation.LOAD_DELIVERED)
def _(machine: HostMachine) -> None:
    drop_device_copy(machine, [1, 2])
    load(machine, DRAIN, CLAIM)


@script_for(Situation.LOAD_FAILED)
def _(machine: HostMachine) -> None:
    drop_device_copy(machine, [1, 2])
    load(machine, FAIL, STEP, CLAIM)


@script_for(Situation.LOAD_ABANDONED)
def _(machine: HostMachine) -> None:
    drop_device_copy(machine, [1, 2])
    load(machine, STEP, ABANDON)


@script_for(Situation.LAYERS_READ)
def _(machine: HostMachine) -> None:
    drop_device_copy(machine, [1, 2])
    load(machine, ADVANCE)


@script_for(Situation.BACKUP_FAILED)
def _(machine: HostMachine) -> None:
    put(machine, [1, 2], FAIL)


@script_for(Situation.BACKUP_REFUSED)
def _(machine: HostMachine) -> None:
    """A host lock leaves no room on the host."""
    put(machine, [1, 2, 3], DRAIN)
    machine.hold(Hold.HOST_READER, 0, 3)
    put(machine, [2, 2])


@script_for(Situation.EVICTION_REFUSED, write_policy=WritePolicy.WRITE_BACK)
def _(machine: HostMachine) -> None:
    put(machine, [1, 2])
    machine.evict(Tier.DEVICE, FULL, 1, failing=1)


@script_for(Situation.OUT_OF_ORDER)
def _(machine: HostMachine) -> None:
    put(machine, [1], STEP)
    put(machine, [2], STEP, SECOND_ENDS)


@script_for(Situation.SPLIT)
def _(machine: HostMachine) -> None:
    """An insert splits a node that is being backed up."""
    put(machine, [1, 2], STEP)
    put(machine, [1, 3])


@script_for(Situation.KEPT)
def _(machine: HostMachine) -> None:
    """A prompt is computed again while it is loaded, and the load is not claimed yet."""
    drop_device_copy(machine, [1, 2])
    load(machine)
    machine.put_again(0, 2, passed=0, with_state=True)
    machine.pass_time([DRAIN])


@script_for(Situation.RESET)
def _(machine: HostMachine) -> None:
    drop_device_copy(machine, [1, 2])
    load(machine, STEP)
    machine.reset([([1, 2], SHARED)])


@script_for(Situation.REQUEST_RESUMED, LoadingMachine)
def _(machine: LoadingMachine) -> None:
    resend(machine, DRAIN, CLAIM)


@script_for(Situation.REQUEST_FELL_BACK, LoadingMachine)
def _(machine: LoadingMachine) -> None:
    resend(machine, FAIL, STEP, CLAIM)


@script_for(Situation.REQUEST_ABORTED, LoadingMachine)
def _(machine: LoadingMachine) -> None:
    resend(machine, STEP, ABANDON)
