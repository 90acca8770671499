"""A machine on an adapter that refuses configurations: it searches the others; where there is none, it is skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, settings

from hicache.config import CacheConfig, ExecutorKind
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter
from hicache.testing.caches.blocks import CONFIGURATIONS, BlockCacheAdapter
from hicache.testing.caches.offload import OffloadCacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.geometry import GeometricConfig
from hicache.types import Component
from properties.black_box_machine import BlackBoxRequests, BlackBoxVerbs
from properties.device_machine import DeviceMachine
from properties.machine import CacheMachine, search_configurations
from properties.offload_machine import OffloadMachine
from properties.slot_log import Met

FULL, SWA, MAMBA = (component.value for component in Component)

BRIEF = settings(
    max_examples=12,
    stateful_step_count=2,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


class HybridBlocks(BlockCacheAdapter):
    """Blocks of hybrid models alone: it lists no geometry without MAMBA."""

    @classmethod
    def configurations(cls) -> Sequence[GeometricConfig]:
        return [one for one in CONFIGURATIONS if MAMBA in one.components]


class HybridTree(ReferenceAdapter):
    """A tree of hybrid models alone: it lists nothing, and refuses each configuration without MAMBA."""

    def __init__(self, config: CacheConfig) -> None:
        if MAMBA not in config.components:
            raise ConfigurationError("a model without states")
        super().__init__(config)


class FewTrees(ReferenceAdapter):
    """It opens one in twelve of the configurations that a machine draws."""

    def __init__(self, config: CacheConfig) -> None:
        if config.page_size != 2 or config.bigram or not config.capacity_tokens[FULL] % 4:
            raise ConfigurationError("another page size, or an even number of pages")
        super().__init__(config)


class ThreadedOffload(OffloadCacheAdapter):
    """It lists no configuration whose transfers a test steps."""

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        hosts = [(one, one.host) for one in super().configurations() or ()]
        return [one for one, host in hosts if host is not None and host.executor is not ExecutorKind.STEPPED]


@pytest.mark.parametrize(
    ("adapter", "machine", "components", "reason"),
    [
        (HybridBlocks, BlackBoxRequests, (FULL,), "HybridBlocks refuses full: it lists no such geometry"),
        (HybridBlocks, BlackBoxRequests, (FULL, MAMBA), ""),
        (HybridTree, BlackBoxVerbs, (FULL,), "HybridTree refuses full: a model without states"),
        (HybridTree, DeviceMachine, (FULL, SWA), "HybridTree refuses full+swa: a model without states"),
        (FewTrees, DeviceMachine, (FULL,), ""),
        (ThreadedOffload, OffloadMachine, (FULL,), "ThreadedOffload refuses full: it lists no such geometry"),
    ],
)
def test_a_machine_searches_what_is_not_refused_or_says_why_it_is_skipped(
    adapter: type[CacheAdapter], machine: type[CacheMachine], components: tuple[str, ...], reason: str
) -> None:
    verbs: list[int] = []
    bound = {"adapter_type": adapter, "operations": verbs, "components": components, "sidecars": ()}
    bound |= {"met": Counter[Met]()}
    told = ""
    try:
        search_configurations(type(machine.__name__, (machine,), bound), BRIEF)
    except pytest.skip.Exception as skipped:
        told = str(skipped)
    assert bool(told) != bool(verbs), f"expected a search or a skip, got {len(verbs)} examples and {told!r}"
    assert told == reason, f"expected the reason {reason!r}, got {told!r}"
