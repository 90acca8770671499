"""StreamsMachine: HostMachine over CUDA streams, on a GPU or on a model of one, which runs them in any order."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st

from hicache.config import ExecutorKind
from hicache.testing.adapter import CacheAdapter

from .host_machine import HostMachine

ORDER = st.integers(0, 9999)


class StreamsMachine(HostMachine):
    """`is_modelled`: on a model, in a drawn order of streams; a race that it finds is an error of the next verb."""

    executor = ExecutorKind.STREAMS
    is_modelled: ClassVar[bool]

    def class_opened(self, data: st.DataObject) -> type[CacheAdapter]:
        if not self.is_modelled:
            return super().class_opened(data)
        modelled = self.adapter_type.on_model(data.draw(ORDER, label="order of streams"))
        assert modelled is not None, "the test asks for a model before it runs the machine"
        return modelled
