"""Runs the state machines on every combination of components that the adapter supports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import settings

from hicache.config import ExecutorKind
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.devices import missing_device
from hicache.testing.hybrid_model import DRAFT, EXPERTS, GROUPS, OTHER_SIDECARS
from hicache.types import Component, Pool

from .black_box_machine import BlackBoxMachine, BlackBoxRequests, BlackBoxVerbs
from .device_machine import DeviceMachine
from .host_machine import HostMachine
from .loading_machine import LoadingMachine
from .machine import CacheMachine, search_configurations
from .offload_machine import OffloadMachine
from .request_machine import RequestMachine
from .situation import Situation
from .slot_log import Met
from .storage_machine import StorageMachine
from .streams_machine import HostStreamsMachine, StorageStreamsMachine

NEEDS = {
    Component.FULL.value: frozenset[Capability](),
    Component.SWA.value: frozenset({Capability.SWA}),
    Component.MAMBA.value: frozenset({Capability.MAMBA}),
    Pool.INDEXER.value: frozenset({Capability.INDEXER}),
    **dict.fromkeys(OTHER_SIDECARS, frozenset({Capability.SIDECARS})),
    GROUPS: frozenset({Capability.SIDECARS, Capability.GROUPS}),
}
COMBINATIONS = [
    (("full",), ()),
    (("full",), ("indexer",)),
    (("full",), (DRAFT, EXPERTS)),
    (("full",), (GROUPS,)),
    (("full", "swa"), ()),
    (("full", "mamba"), ()),
    (("full", "swa", "mamba"), ("indexer",)),
]
COMBINED = pytest.mark.parametrize(
    ("components", "sidecars"), COMBINATIONS, ids=["+".join(names + extra) for names, extra in COMBINATIONS]
)
OF_REQUESTS = [*COMBINATIONS, (("full", "swa", "mamba"), ())]
"""All combinations; and all components without a sidecar, for caches of blocks that have none."""

WITHOUT_SIDECARS = [("full",), ("full", "swa"), ("full", "mamba"), ("full", "swa", "mamba")]
FROM_OUTSIDE = pytest.mark.parametrize("components", WITHOUT_SIDECARS, ids=["+".join(one) for one in WITHOUT_SIDECARS])

LOOKING = (Capability.SNAPSHOT, Capability.SIZES, Capability.BYTES)
ON_STREAMS = pytest.mark.parametrize(
    "is_modelled", [True, pytest.param(False, marks=pytest.mark.gpu)], ids=["model", "gpu"]
)

SHORT = 8
"""Steps of a short run over two tiers. Most defects need no more, and shrinking a long run takes minutes."""

ON_TWO_TIERS = ("MATCH-1", "MATCH-5", "MATCH-12", "LOCK-7", "HOST-4", "HOST-5", "HOST-7", "FLOW-4", "FLOW-5", "FLOW-10")


@dataclass(frozen=True)
class Search:
    """Lets Hypothesis search for a sequence of steps that breaks a law. `operations`: the verbs of each example."""

    adapter_type: type[CacheAdapter]
    operations: list[int]

    def __call__(
        self,
        machine: type[CacheMachine],
        components: tuple[str, ...],
        sidecars: tuple[str, ...] = (),
        share: int = 1,
        lengths: Sequence[int] = (),
        **more: object,
    ) -> None:
        """Run the machine on caches of these components.

        `share`: divides the number of examples of the profile. `lengths`: steps of shorter runs that come first, each
        with as many examples. `more`: further class attributes of the machine.
        """
        self.require(frozenset().union(*(NEEDS[name] for name in components + sidecars)))
        bound = {"adapter_type": self.adapter_type, "operations": self.operations}
        bound |= {"components": components, "sidecars": sidecars, **more}
        opened: type[CacheMachine] = type(machine.__name__, (machine,), bound)
        examples, steps = max(5, settings().max_examples // share), settings().stateful_step_count
        for longest in (*lengths, steps):
            search_configurations(opened, settings(max_examples=examples, stateful_step_count=longest))

    def require(self, capabilities: frozenset[Capability]) -> None:
        """Skip the test unless the adapter declares these capabilities."""
        lacking = capabilities - self.adapter_type.capabilities
        if lacking:
            reasons = ", ".join(sorted(f"{capability.name}: {capability.value}" for capability in lacking))
            pytest.skip(f"{self.adapter_type.__name__} does not declare {reasons}")


@pytest.fixture
def search(adapter_type: type[CacheAdapter], operations: list[int]) -> Search:
    """A search on the adapter under test."""
    return Search(adapter_type, operations)


@clause(
    *("POOL-1", "POOL-2", "POOL-3", "MATCH-1", "INS-1", "INS-4", "INS-5", "INS-7", "LOCK-2", "LOCK-4", "LOCK-5"),
    *("EVICT-1", "EVICT-2", "EVICT-5", "EVICT-6", "EVICT-9"),
    needs=LOOKING,
)
@COMBINED
def test_any_order_of_verbs(search: Search, components: tuple[str, ...], sidecars: tuple[str, ...]) -> None:
    """In any order of verbs the cache agrees with the oracle and keeps every law."""
    search(DeviceMachine, components, sidecars)


@clause(
    *("KEY-1", "KEY-2", "POOL-2", "POOL-3", "POOL-4", "MATCH-1", "MATCH-11", "INS-1", "LOCK-5"),
    *("EVICT-1", "EVICT-9", "REQ-3", "REUSE-7"),
)
@FROM_OUTSIDE
def test_any_order_of_verbs_from_outside(search: Search, components: tuple[str, ...]) -> None:
    """In any order of verbs the answers give no slot with a reader, and find nothing that was not inserted."""
    _from_outside(search, BlackBoxVerbs, components)


@clause(
    *("POOL-2", "MATCH-1", "REQ-1", "REQ-2", "REQ-4", "REQ-5", "REUSE-7"), needs=(Capability.REQUESTS,), verbs=False
)
@FROM_OUTSIDE
def test_any_mix_of_requests_from_outside(search: Search, components: tuple[str, ...]) -> None:
    """In any order of requests the answers give no slot of another request, and no prefix that was never computed."""
    _from_outside(search, BlackBoxRequests, components)


@clause(
    *("POOL-1", "REQ-1", "REQ-2", "REQ-3", "REQ-4", "REQ-5", "REQ-11"),
    needs=(*LOOKING, Capability.REQUESTS),
    verbs=False,
)
@pytest.mark.parametrize(
    ("components", "sidecars"), OF_REQUESTS, ids=["+".join(names + extra) for names, extra in OF_REQUESTS]
)
def test_any_mix_of_requests(search: Search, components: tuple[str, ...], sidecars: tuple[str, ...]) -> None:
    """In any order of requests each reads its own bytes, and in the end nothing is held."""
    search(RequestMachine, components, sidecars)


@clause(
    *ON_TWO_TIERS,
    *("EVICT-7", "EVICT-8", "HOST-3", "HOST-6", "FLOW-1", "FLOW-2", "FLOW-3", "FLOW-6", "FLOW-7", "FLOW-8"),
    needs=(*LOOKING, Capability.HOST, Capability.STEPPED, Capability.EVENTS),
)
@COMBINED
def test_any_order_of_verbs_and_transfers(
    search: Search, components: tuple[str, ...], sidecars: tuple[str, ...]
) -> None:
    """In any order of verbs and of transfers that move, end or fail, both tiers agree with the oracle."""
    _on_two_tiers(search, components, sidecars, ExecutorKind.STEPPED)


@clause(*ON_TWO_TIERS, needs=(*LOOKING, Capability.HOST))
@COMBINED
def test_any_order_of_verbs_while_threads_move_bytes(
    search: Search, components: tuple[str, ...], sidecars: tuple[str, ...]
) -> None:
    """The same with threads that move the bytes, so that a test does not decide when a transfer ends."""
    _on_two_tiers(search, components, sidecars, ExecutorKind.THREADED)


@ON_STREAMS
@clause(*ON_TWO_TIERS, "POOL-6", needs=(*LOOKING, Capability.HOST))
@pytest.mark.parametrize(("components", "sidecars"), [COMBINATIONS[0], COMBINATIONS[-1]], ids=["full", "all"])
def test_any_order_of_verbs_while_streams_move_bytes(
    search: Search, components: tuple[str, ...], sidecars: tuple[str, ...], is_modelled: bool
) -> None:
    """The same with CUDA streams: on a GPU, and on a model that runs them in any order and finds each race."""
    _on_streams(search, HostStreamsMachine, components, sidecars, is_modelled)


@ON_STREAMS
@clause("MATCH-1", "FETCH-1", "FETCH-4", "FLOW-12", needs=(*LOOKING, Capability.HOST, Capability.STORAGE))
@pytest.mark.parametrize(("components", "sidecars"), COMBINATIONS[-1:], ids=["all"])
def test_any_order_of_verbs_and_answers_of_storage_while_streams_move_bytes(
    search: Search, components: tuple[str, ...], sidecars: tuple[str, ...], is_modelled: bool
) -> None:
    """Storage reads and writes the pages of the host that streams copy, each after the other."""
    search.require(frozenset({Capability.STEPPED_STORAGE}))
    _on_streams(search, StorageStreamsMachine, components, sidecars, is_modelled)


@clause(
    *("REQ-1", "REQ-2", "REQ-3", "REQ-4", "REQ-5", "REQ-7", "HOST-5", "FLOW-4", "FLOW-7", "FLOW-10"),
    needs=(*LOOKING, Capability.REQUESTS, Capability.HOST, Capability.STEPPED, Capability.EVENTS),
)
@COMBINED
def test_any_mix_of_requests_that_load(search: Search, components: tuple[str, ...], sidecars: tuple[str, ...]) -> None:
    """Requests that wait for loads resume with them, resume without them, or abort; in the end nothing is held."""
    stepped, met = ExecutorKind.STEPPED, Counter[Situation]()
    search(LoadingMachine, components, sidecars, share=5, executor=stepped, met=met)


@clause(
    *("REQ-2", "REQ-3", "POOL-1", "MATCH-1", "LOCK-2", "FLOW-1", "FLOW-2", "FLOW-3", "FLOW-4", "FLOW-7", "FLOW-10"),
    needs=(*LOOKING, Capability.REQUESTS, Capability.TABLES, Capability.HOST, Capability.STEPPED),
    verbs=False,
)
def test_any_mix_of_requests_and_transfers(search: Search) -> None:
    """Beside the device: requests store and retrieve while transfers move, end and fail; in the end nothing is held."""
    search(OffloadMachine, (Component.FULL.value,))


@pytest.mark.parametrize("executor", [ExecutorKind.STEPPED, ExecutorKind.THREADED], ids=["stepped", "threaded"])
@clause(
    *("MATCH-1", "FETCH-1", "FETCH-4", "FETCH-6", "FETCH-8", "FETCH-9", "FLOW-9", "FLOW-12", "EVICT-9", "POOL-1"),
    "STORE-3",
    needs=(*LOOKING, Capability.HOST, Capability.STORAGE),
)
@COMBINED
def test_any_order_of_verbs_and_answers_of_storage(
    search: Search, components: tuple[str, ...], sidecars: tuple[str, ...], executor: ExecutorKind
) -> None:
    """In any order of verbs, faults and answers of storage a prefetch brings exactly what was stored."""
    if executor is ExecutorKind.STEPPED:
        search.require(frozenset({Capability.STEPPED_STORAGE}))
    host_executor = executor if Capability.STEPPED in search.adapter_type.capabilities else ExecutorKind.THREADED
    met = Counter[Situation]()
    search(StorageMachine, components, sidecars, share=5, met=met, executor=host_executor, storage_executor=executor)


def _from_outside(search: Search, machine: type[BlackBoxMachine], components: tuple[str, ...]) -> None:
    """Search without a look into the cache. Fails if the search met too little to find anything."""
    adapter = search.adapter_type
    if adapter.profile == "offload":
        pytest.skip(f"{adapter.__name__} copies its hits from the host: the machine of transfers has requests too")
    # The laws are the same for each component: FULL alone has most of the examples.
    met, share = Counter[Met](), 1 if components == (Component.FULL.value,) else 2
    search(machine, components, share=share, met=met)
    missed = [one.value for one in Met if not met[one] and one.demanded_by not in adapter.departures]
    assert not missed, f"the search is vacuous: it met no {', no '.join(missed)}; it met {dict(met)}"


def _on_streams(
    search: Search,
    machine: type[CacheMachine],
    components: tuple[str, ...],
    sidecars: tuple[str, ...],
    is_modelled: bool,
) -> None:
    """Search on a GPU, or on a model of one; skips the test if the adapter does not run on a model."""
    if is_modelled and search.adapter_type.on_model(0) is None:
        pytest.skip(f"{search.adapter_type.__name__} does not run on a model of CUDA")
    # Asked here and not at collection: a search of a cache without streams needs no torch.
    if not is_modelled and (missing := missing_device("cuda")):
        pytest.skip(missing)
    met = Counter[Situation]()
    search(machine, components, sidecars, share=20, met=met, is_modelled=is_modelled)


def _on_two_tiers(
    search: Search, components: tuple[str, ...], sidecars: tuple[str, ...], executor: ExecutorKind
) -> None:
    # Both tiers are compared after each step, and the cache starts with prompts: fewer examples suffice.
    lengths, met = (SHORT,), Counter[Situation]()
    search(HostMachine, components, sidecars, share=5, lengths=lengths, executor=executor, met=met)
