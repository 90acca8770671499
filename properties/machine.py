"""CacheMachine: what every state machine starts from: a tiny cache of a drawn configuration, its driver, the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.driver import Driver
from hicache.testing.model import Model
from hicache.types import SHARED, Component, Key, Namespace

from .tiny import configurations


class CacheMachine(RuleBasedStateMachine):
    """Opens one adapter. The driver holds it to the laws after every verb. `operations`: verbs driven, per example."""

    adapter_type: ClassVar[type[CacheAdapter]]
    components: ClassVar[tuple[str, ...]]
    sidecars: ClassVar[tuple[str, ...]]
    operations: ClassVar[list[int]]

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """A fresh cache of a drawn configuration."""
        capabilities = self.adapter_type.capabilities
        self.config: CacheConfig = data.draw(configurations(self.components, self.sidecars, capabilities))
        note(f"configuration: {self.config}")
        self.adapter = self.adapter_type(self.config)
        self.driver = Driver(self.adapter, self.config)
        self.model = Model(
            components=self.components,
            page_size=self.config.page_size,
            sliding_window_size=self.config.sliding_window_size,
            bigram=self.config.bigram,
        )

    def teardown(self) -> None:
        """Close what was opened."""
        if hasattr(self, "driver"):
            self.operations.append(self.driver.operations)
            self.adapter.close()

    def key(self, pages: Sequence[int], tail: int, namespace: Namespace) -> Key:
        """A prompt of whole pages and a few tokens more."""
        allowed = namespace if Capability.NAMESPACES in self.adapter_type.capabilities else SHARED
        return self.driver.key([*self.driver.prompt(pages), *range(tail)], allowed)

    def slots_of(self, component: str, pages: int) -> int:
        """So many pages of a component in slots; a state is a page of one."""
        return pages * (1 if component == Component.MAMBA else self.config.page_size)

    def sync(self) -> None:
        """Let the oracle forget what was evicted."""
        self.model.sync(self.driver.snapshot())
