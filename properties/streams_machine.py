"""Machines of two tiers and of three over CUDA streams: of a GPU, or of a model that runs them in any order."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st

from hicache.config import ExecutorKind
from hicache.testing.adapter import CacheAdapter

from .host_machine import HostMachine
from .machine import CacheMachine
from .storage_machine import StorageMachine

ORDER = st.integers(0, 9999)


class OnStreams(CacheMachine):
    """`is_modelled`: on a model, in a drawn order of streams; a race that it finds is an error of the verb."""

    executor = ExecutorKind.STREAMS
    is_modelled: ClassVar[bool]

    def class_opened(self, data: st.DataObject) -> type[CacheAdapter]:
        if not self.is_modelled:
            return super().class_opened(data)
        modelled = self.adapter_type.on_model(data.draw(ORDER, label="order of streams"))
        assert modelled is not None, "the test asks for a model before it runs the machine"
        return modelled


class HostStreamsMachine(OnStreams, HostMachine):
    """Two tiers."""


class StorageStreamsMachine(OnStreams, StorageMachine):
    """Three tiers. The host copies on streams, and storage answers when the machine says so."""

    storage_executor = ExecutorKind.STEPPED
