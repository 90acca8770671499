"""The searches over two and three tiers reach the situations that they are meant to test.

For each situation over two tiers a script, a few calls of a machine's rules, leads to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.types import SHARED, Component, Tier

from .host_machine import Hold, HostMachine
from .loading_machine import LoadingMachine
from .machine import search_configurations
from .situation import Situation
from .small_caches import fixed_config
from .storage_machine import StorageMachine
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
    machine.put(pages, 0, SHARED, passed=0, with_state=True, priority=0, soon=list(soon))


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
    machine.put_again(0, 2, passed=0, with_state=True, priority=0)
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


NEEDS = (
    *(Capability.SNAPSHOT, Capability.SIZES, Capability.BYTES, Capability.EVENTS),
    *(Capability.REQUESTS, Capability.HOST, Capability.STEPPED),
)

STORAGE_NEEDS = (
    *(Capability.SNAPSHOT, Capability.SIZES, Capability.BYTES, Capability.EVENTS),
    *(Capability.HOST, Capability.STORAGE, Capability.STEPPED),
)

OF_LOADS = {
    *(Situation.LOAD, Situation.LOAD_SHARED, Situation.LOAD_REFUSED, Situation.LOAD_DELIVERED),
    *(Situation.LOAD_ABANDONED, Situation.LAYERS_READ, Situation.RESET),
}
OF_REQUESTS = {Situation.REQUEST_RESUMED, Situation.REQUEST_ABORTED}
"""What a search reaches by itself within few examples. For every situation there is a script as well."""

OF_STORAGE = {
    *(Situation.PREFETCH, Situation.PREFETCH_REFUSED, Situation.PREFETCH_BROUGHT, Situation.PREFETCH_OVERTAKEN),
    *(Situation.PREFETCH_RETRIED, Situation.PREFETCH_CUT, Situation.PREFETCH_ABORTED, Situation.PREFETCH_STILL_WRITING),
    *(Situation.PREFETCH_RESET, Situation.STORE_FAILED, Situation.OPERATOR, Situation.OPERATOR_REFUSED),
}
"""What a search over three tiers must reach. There are no scripts for these."""

SEARCH = settings(
    max_examples=20,
    stateful_step_count=30,
    database=None,
    deadline=None,
    phases=[Phase.generate],
)
"""One part of a search, with its own seed, so that it draws the same examples in every profile."""

PARTS, STORAGE_PARTS = 4, 12
"""The number of parts of a search over two tiers, and over three."""

PAGES = 4
"""Pages of each component's pool on each tier, where a search continues from a script."""


@clause(needs=NEEDS)
@pytest.mark.parametrize(
    ("machine", "expected"), [(HostMachine, OF_LOADS), (LoadingMachine, OF_REQUESTS)], ids=["verbs", "requests"]
)
def test_a_search_meets_its_situations(
    adapter_type: type[CacheAdapter], operations: list[int], machine: type[TierMachine], expected: set[Situation]
) -> None:
    search(bind(machine, adapter_type, operations, (Component.FULL.value,)), expected, PARTS)


@clause(needs=NEEDS)
@pytest.mark.parametrize("situation", SCRIPTS, ids=lambda situation: situation.name.lower())
def test_a_search_continues_from_each_situation(
    adapter_type: type[CacheAdapter], operations: list[int], situation: Situation
) -> None:
    script = SCRIPTS[situation]
    if Component.MAMBA in script.components and Capability.MAMBA not in adapter_type.capabilities:
        pytest.skip(f"{adapter_type.__name__} does not declare MAMBA: {Capability.MAMBA.value}")
    pages = dict.fromkeys(script.components, PAGES)

    def run_script(machine: TierMachine, data: st.DataObject) -> None:
        TierMachine.opened(machine, data)
        script.steps(machine)
        assert situation in machine.met, f"{situation.value}: expected the script to reach it, got {dict(machine.met)}"

    caches = st.just(fixed_config(pages, pages, script.write_policy, events=True))
    machine = bind(
        script.machine, adapter_type, operations, script.components, opened=run_script, caches=lambda _: caches
    )
    search_configurations(machine, settings(SEARCH, derandomize=True, max_examples=3))


@clause(needs=STORAGE_NEEDS)
def test_a_search_over_three_tiers_meets_its_situations(
    adapter_type: type[CacheAdapter], operations: list[int]
) -> None:
    search(bind(StorageMachine, adapter_type, operations, (Component.FULL.value,)), OF_STORAGE, STORAGE_PARTS)


@clause(needs=())
def test_every_situation_is_met() -> None:
    """Every situation has a script, or the search over three tiers must reach it."""
    missed = [situation.name for situation in Situation if situation not in OF_STORAGE and situation not in SCRIPTS]
    assert not missed, f"expected a script or a search for each situation, missing {missed}"


def search(machine: type[TierMachine], expected: set[Situation], parts: int) -> None:
    """Run the machine part by part, until it has met all that is expected."""
    for number in range(parts):
        search_configurations(seed(number)(machine), SEARCH)
        missed = sorted(situation.value for situation in expected - machine.met.keys())
        if not missed:
            return
    pytest.fail(f"{parts * SEARCH.max_examples} examples did not reach {missed}; they reached {dict(machine.met)}")


def bind(
    machine: type[TierMachine],
    adapter_type: type[CacheAdapter],
    operations: list[int],
    components: tuple[str, ...],
    **more: object,
) -> type[TierMachine]:
    """The machine bound to a cache of these components. `operations`: gets its verbs. `more`: further attributes."""
    bound = {"adapter_type": adapter_type, "components": components, "sidecars": (), "operations": operations}
    bound |= {"executor": ExecutorKind.STEPPED, "storage_executor": ExecutorKind.STEPPED, "met": Counter[Situation]()}
    return type(machine.__name__, (machine,), bound | more)
