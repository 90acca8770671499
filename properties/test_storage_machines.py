"""Runs the state machine of three tiers on every combination of components that the adapter supports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from hicache.config import ExecutorKind
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.plugin.tags import OPERATIONS

from .situation import Situation
from .situation_scripts import SCRIPTS
from .storage_machine import StorageMachine
from .test_machines import COMBINED, LOOKING, search
from .test_situations import SEARCH as LONG_SEARCH

NEEDS = (*LOOKING, Capability.EVENTS, Capability.HOST, Capability.STORAGE)
CLAUSES = ("FETCH-1", "FETCH-4", "FETCH-6", "FETCH-8", "FETCH-9", "FLOW-9", "FLOW-12", "EVICT-9", "POOL-1", "STORE-3")
SEARCH = settings(LONG_SEARCH, max_examples=240)
"""An example on three tiers takes as long as two examples on two tiers."""

MET = {
    *(
        Situation.PREFETCH,
        Situation.PREFETCH_REFUSED,
        Situation.PREFETCH_BROUGHT,
        Situation.PREFETCH_OVERTAKEN,
    ),
    *(
        Situation.PREFETCH_RETRIED,
        Situation.PREFETCH_CUT,
        Situation.PREFETCH_ABORTED,
        Situation.PREFETCH_STILL_WRITING,
    ),
    *(Situation.PREFETCH_RESET, Situation.STORE_FAILED, Situation.OPERATOR, Situation.OPERATOR_REFUSED),
}


@pytest.mark.parametrize("executor", [ExecutorKind.STEPPED, ExecutorKind.THREADED], ids=["stepped", "threaded"])
@clause(*CLAUSES, needs=(*NEEDS, Capability.STEPPED))
@COMBINED
def test_any_order_of_verbs_and_answers_of_storage(
    adapter_type: type[CacheAdapter],
    components: tuple[str, ...],
    sidecars: tuple[str, ...],
    executor: ExecutorKind,
    record_property: Callable[[str, object], None],
) -> None:
    """In any order of verbs, faults and answers of storage a prefetch brings exactly what was stored."""
    met = Counter[Situation]()
    operations = search(StorageMachine, adapter_type, components, sidecars, share=5, executor=executor, met=met)
    record_property(OPERATIONS, operations)


@clause(needs=(*NEEDS, Capability.STEPPED))
def test_a_search_meets_its_situations(adapter_type: type[CacheAdapter]) -> None:
    met = Counter[Situation]()
    bound = {"adapter_type": adapter_type, "components": ("full",), "sidecars": (), "operations": []}
    bound |= {"executor": ExecutorKind.STEPPED, "met": met}
    run_state_machine_as_test(type(StorageMachine.__name__, (StorageMachine,), bound), settings=SEARCH)
    missed = sorted(situation.value for situation in MET - met.keys())
    assert not missed, f"{SEARCH.max_examples} examples did not reach {missed}; they reached {dict(met)}"


@clause(needs=())
def test_every_situation_is_met() -> None:
    """Every situation has a script, or the search over three tiers must reach it."""
    missed = [situation.name for situation in Situation if situation not in MET and situation not in SCRIPTS]
    assert not missed, f"expected a script or a search for each situation, missing {missed}"
